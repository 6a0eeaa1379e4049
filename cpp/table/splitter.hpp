#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <gpuhash/batches.hpp>
#include <gpuhash/device_context.hpp>

namespace gpuhash {

/// Row numbers of a table with shards have the shard's number above these bits.
inline constexpr int kShardShift = 40;

/// What gather() does beside putting answers into the keys' order.
struct GatherOptions {
  const bool* found = nullptr;     // in the order of the owners; where it is false, the key gets the fallback
  const void* fallback = nullptr;  // one item; null: items are taken as they are
  bool fallback_per_key = false;   // fallback is [n] items, in the keys' order
  bool* found_out = nullptr;       // [n], in the keys' order: gets what `found` says
};

/// A batch of keys that is split by owners: which of a table's shards each key belongs to. In the *owners' order* come
/// the keys of shard 0, then those of shard 1, and so on, each in the order of the batch.
class Split {
 public:
  explicit Split(std::size_t shards) : counts_(shards), offsets_(shards) {}
  virtual ~Split() = default;

  /// Until it is known how many keys each shard gets. To be called once, before all that follows.
  virtual void wait() {}

  /// Keys per shard.
  const std::vector<std::int64_t>& counts() const { return counts_; }
  /// Where each shard's keys begin in the owners' order.
  const std::vector<std::int64_t>& offsets() const { return offsets_; }

  /// Writes each key's item of `bytes` to its shard's list, to[shard] [counts()[shard], bytes], which work on this
  /// device can reach.
  virtual void scatter(const void* items, std::int64_t bytes, const std::vector<void*>& to, Stream stream) const = 0;
  /// Puts items [n, bytes] out of the owners' order into that of the keys.
  virtual void gather(const void* items, std::int64_t bytes, void* out, const GatherOptions& options,
                      Stream stream) const = 0;
  /// Likewise, row numbers, with the shard's number above; -1 stays.
  virtual void gather_rows(const std::int64_t* rows, std::int64_t* out, Stream stream) const = 0;

 protected:
  void set_offsets() {
    std::int64_t sum = 0;
    for (std::size_t shard = 0; shard < counts_.size(); ++shard) {
      offsets_[shard] = sum;
      sum += counts_[shard];
    }
  }

  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> offsets_;
};

/// Splits batches, on one platform.
class Splitter {
 public:
  static constexpr std::size_t kMaxShards = 64;

  virtual ~Splitter() = default;
  /// `seed` as for owner_of(). The keys are not needed any more once work on the stream is done.
  virtual std::unique_ptr<Split> split(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed,
                                       std::size_t shards, Stream stream) const = 0;
  /// Puts the shard's number above row numbers of one shard.
  virtual void number_rows(DeviceContext& context, std::int64_t* rows, std::int64_t count, std::size_t shard,
                           Stream stream) const = 0;
};

}  // namespace gpuhash
