#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gpuhash/batches.hpp>
#include <gpuhash/device_context.hpp>
#include "shared/host_device.hpp"

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

/// A batch of keys that is split by owners: which of several parts each key belongs to. In the *owners' order* come the
/// keys of part 0, then those of part 1, and so on, each in the order of the batch, and each from a position on that is
/// a multiple of `alignment`: what lies between two parts is of no matter.
class Split {
 public:
  static constexpr std::size_t kMaxParts = 64;

  Split(std::size_t parts, std::int64_t alignment) : counts_(parts), offsets_(parts), alignment_(alignment) {}
  virtual ~Split() = default;

  /// Until it is known how many keys each part gets. To be called once, before counts() and offsets().
  virtual void wait() {}

  /// Keys per part.
  const std::vector<std::int64_t>& counts() const { return counts_; }
  /// Where each part begins in the owners' order.
  const std::vector<std::int64_t>& offsets() const { return offsets_; }

  /// The positions in the owners' order of a batch of n keys, at most.
  static std::int64_t most_positions(std::int64_t keys, std::size_t parts, std::int64_t alignment) {
    return keys + static_cast<std::int64_t>(parts) * (alignment - 1);
  }
  /// Where the next part begins, if the one before ends here.
  GPUHASH_HD static std::int64_t align(std::int64_t end, std::int64_t alignment) {
    return (end + alignment - 1) / alignment * alignment;
  }

  /// Puts items [n, bytes] out of the order of the keys into the owners'.
  virtual void sort(const void* items, std::int64_t bytes, void* out, Stream stream) const = 0;
  /// The reverse.
  virtual void gather(const void* items, std::int64_t bytes, void* out, const GatherOptions& options,
                      Stream stream) const = 0;
  /// Likewise, row numbers, with the part's number above; -1 stays.
  virtual void gather_rows(const std::int64_t* rows, std::int64_t* out, Stream stream) const = 0;

 protected:
  void set_counts(const std::int64_t* counts) {
    std::int64_t sum = 0;
    for (std::size_t part = 0; part < counts_.size(); ++part) {
      offsets_[part] = sum;
      counts_[part] = counts[part];
      sum = align(sum + counts[part], alignment_);
    }
  }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> offsets_;
  std::int64_t alignment_;
};

/// Host memory in which a device says how batches are split, one batch after the other.
class CountsMailbox {
 public:
  struct Letter {
    std::int64_t counts[Split::kMaxParts];
    std::uint64_t number;  // of the batch; written last
  };

  /// The number of the next batch, and where the device is to write.
  std::pair<Letter*, std::uint64_t> next(DeviceContext& context) {
    if (memory_ == nullptr) memory_ = context.make_mailbox(sizeof(Letter));
    return {static_cast<Letter*>(memory_.get()), ++last_};
  }

 private:
  std::shared_ptr<void> memory_;  // made when it is first asked for: the host needs none
  std::uint64_t last_ = 0;
};

/// Splits batches, on one platform.
class Splitter {
 public:
  virtual ~Splitter() = default;
  /// `sorted` [Split::most_positions(), keys.bytes] gets the keys in the owners' order; `seed` as for owner_of(). The
  /// keys are not needed any more once work on the stream is done. The mailbox has to live until then.
  virtual std::unique_ptr<Split> split(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed,
                                       std::size_t parts, std::int64_t alignment, void* sorted, CountsMailbox& mailbox,
                                       Stream stream) const = 0;
  /// owners [n]: of any number of parts.
  virtual void find_owners(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, std::uint32_t parts,
                           std::int32_t* owners, Stream stream) const = 0;
  /// Puts the shard's number above row numbers of one shard.
  virtual void number_rows(DeviceContext& context, std::int64_t* rows, std::int64_t count, std::size_t shard,
                           Stream stream) const = 0;
};

}  // namespace gpuhash
