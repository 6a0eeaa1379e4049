#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gpuhash/action.hpp>
#include <gpuhash/device_context.hpp>
#include <gpuhash/requests.hpp>
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

/// The parts that a batch is split into. In the *owners' order* they come in that of their numbers, but for one, which
/// is the last.
struct Parts {
  std::size_t count;
  std::size_t last;
  std::int64_t alignment = 1;  // at multiples of it parts begin: what lies between two of them is of no matter
  std::int64_t gap = 0;        // positions between two of them, at least

  explicit Parts(std::size_t parts) : count(parts), last(parts - 1) {}
  Parts(std::size_t parts, std::size_t last_part, std::int64_t multiple, std::int64_t least_gap)
      : count(parts), last(last_part), alignment(multiple), gap(least_gap) {}

  /// The i-th part in the owners' order.
  GPUHASH_HD std::size_t at(std::size_t i) const { return i + 1 == count ? last : i + (i >= last ? 1 : 0); }
  /// Where the next part begins, if the one before ends here.
  GPUHASH_HD std::int64_t next_after(std::int64_t end) const {
    return (end + gap + alignment - 1) / alignment * alignment;
  }
  /// The positions in the owners' order of a batch of n keys, at most.
  std::int64_t most_positions(std::int64_t keys) const {
    return keys + static_cast<std::int64_t>(count) * (gap + alignment - 1);
  }
};

/// How values of one key are combined: what merging them needs to know.
struct Reduction {
  Action op;
  DType dtype;
  std::int64_t bytes() const { return static_cast<std::int64_t>(itemsize(dtype)); }
  /// Split::combine() can be called.
  bool can_merge() const { return combines(op) && (bytes() == 4 || bytes() == 8); }
};

/// A batch of keys that is split by owners: which of several parts each key belongs to. Each part is in the order of
/// the batch.
///
/// Where *hot* keys, which come very often, are merged, all of one key in a tile of some thousand keys (on the host, in
/// a thread's piece of the batch) have one place in the owners' order, and the parts have no order.
class Split {
 public:
  static constexpr std::size_t kMaxParts = 64;

  explicit Split(const Parts& parts) : parts_(parts), counts_(parts.count), offsets_(parts.count) {}
  virtual ~Split() = default;

  static constexpr std::size_t kMaxNotes = 7;
  /// told [parts, 1 + notes], in the device's memory, gets the keys of each part and beside them the notes.
  virtual void tell(std::span<const std::int64_t> notes, std::int64_t* told) const = 0;

  /// Puts the keys into the owners' order, [Parts::most_positions(), bytes of a key]. To be called once, before all
  /// that follows. The keys are not needed any more once work on the stream is done.
  virtual void sort_keys(void* sorted) = 0;

  /// Until it is known here how many keys each part gets. To be called once, before counts() and offsets().
  virtual void wait() {}

  const Parts& parts() const { return parts_; }
  /// Are hot keys merged?
  bool merges() const { return merges_; }
  /// Keys per part.
  const std::vector<std::int64_t>& counts() const { return counts_; }
  /// Where each part begins in the owners' order.
  const std::vector<std::int64_t>& offsets() const { return offsets_; }
  /// Where the last one ends.
  std::int64_t end() const { return offsets_[parts_.last] + counts_[parts_.last]; }

  /// Puts items [n, bytes] out of the order of the keys into the owners'.
  virtual void sort(const void* items, std::int64_t bytes, void* out, Stream stream) const = 0;
  /// The reverse.
  virtual void gather(const void* items, std::int64_t bytes, void* out, const GatherOptions& options,
                      Stream stream) const = 0;
  /// Likewise, row numbers, with the part's number above; -1 stays.
  virtual void gather_rows(const std::int64_t* rows, std::int64_t* out, Stream stream) const = 0;
  /// Likewise, a mask: of the keys that were merged into one place, one gets what is there, and the others false.
  virtual void gather_mask(const bool* mask, bool* out, Stream stream) const = 0;
  /// As sort(), of values whose keys may have been merged: they are combined. `values` is [n], or one for all keys.
  virtual void combine(const void* values, bool broadcast, const Reduction& reduction, void* out,
                       Stream stream) const = 0;

 protected:
  void set_merges() { merges_ = true; }
  void set_counts(const std::int64_t* counts) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < parts_.count; ++i) {
      const std::size_t part = parts_.at(i);
      offsets_[part] = sum;
      counts_[part] = counts[part];
      sum = parts_.next_after(sum + counts[part]);
    }
  }

 private:
  Parts parts_;
  bool merges_ = false;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> offsets_;
};

/// Some keys of a batch, by which it is judged how many duplicates there are, and which keys are hot.
class Sample {
 public:
  static constexpr std::int64_t kKeys = 1 << 12;
  /// Of them: a key that comes as often is hot. Where none does, no owner has much more to do than the others.
  static constexpr std::int64_t kHot = 64;

  struct Repeats {
    std::int64_t all;   // keys that repeat others
    std::int64_t most;  // how often one key comes
  };

  virtual ~Sample() = default;
  /// Waits the first time.
  const Repeats& repeats() {
    if (!repeats_) repeats_ = wait();
    return *repeats_;
  }
  bool has_hot_keys() { return repeats().most >= kHot; }

 protected:
  /// To be called once.
  virtual Repeats wait() = 0;

 private:
  std::optional<Repeats> repeats_;
};

/// Host memory in which a device says what it has counted, in one batch after the other.
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

/// Splits batches of keys of any width, on one platform. Those of more bytes than a slot are split by a hash of each.
class Splitter {
 public:
  virtual ~Splitter() = default;
  /// Counts the keys of each part; `seed` as for owner_of(). The mailbox has to live until the split has been waited
  /// for. sample: of these keys, with this seed, if hot ones are to be merged, should there be any; or null. It is
  /// waited for, while the device counts the keys as they are: most batches have no hot ones.
  virtual std::unique_ptr<Split> split(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed,
                                       const Parts& parts, CountsMailbox& mailbox, std::shared_ptr<Sample> sample,
                                       Stream stream) const = 0;
  /// Of Sample::kKeys keys or more, of up to 16 bytes: keys that share a hash must not be merged.
  virtual std::shared_ptr<Sample> sample(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed,
                                         CountsMailbox& mailbox, Stream stream) const = 0;
  /// owners [n]: of any number of parts.
  virtual void find_owners(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, std::uint32_t parts,
                           std::int32_t* owners, Stream stream) const = 0;
  /// Puts the shard's number above row numbers of one shard.
  virtual void number_rows(DeviceContext& context, std::int64_t* rows, std::int64_t count, std::size_t shard,
                           Stream stream) const = 0;
};

}  // namespace gpuhash
