#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "host_parallel.hpp"
#include "host_rows.hpp"

namespace gpuhash::host {

/// Moves the live slots of one table into an empty one.
///
/// Owner computes, as in write_each(), but nobody scans all of `from`: buckets keep their order, so the keys of an
/// owner's regions lie in one range of buckets, but for those that were displaced. Whoever comes across another owner's
/// key puts it on a list that its owner reads in a second pass.
template <class View>
class Rehash {
 public:
  Rehash(const View& from, const View& to, bool compact_rows)
      : from_(from), to_(to), compact_rows_(compact_rows && from.rows.bytes != 0) {}

  void run() {
    const int parts = writer_parts(static_cast<std::int64_t>(from_.control->size), to_.geometry);
    Tally total;
    if (parts == 1)
      for_each_live(from_, 0, std::uint64_t{from_.geometry.bucket_count} + 1,
                    [&](SlotType* slot, bool stray) { move<Reach::kTable>({slot, stray}, total); });
    else
      run_parallel(parts, total);
    Control& control = *to_.control;
    control.size = total.size;
    control.filter_bits = total.filter_bits;
    control.erased = 0;
    control.dropped += total.dropped;
    settle_rows();
  }

 private:
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;

  struct Item {
    const SlotType* slot;
    bool stray;
    Key key() const { return key_of_slot(slot->key, stray); }
  };
  struct Part {
    std::vector<Item> foreign;    // another owner's
    std::vector<Item> put_aside;  // would leave their region
    Tally tally;
  };

  void run_parallel(int count, Tally& total) {
    auto parts = scratch<Part>(count);
    try {
      parallel_for(count,
                   [&](int p) { move_range(parts[static_cast<std::size_t>(p)], Owned(to_.geometry, p, count)); });
      parallel_for(count, [&](int p) {
        for (const Part& other : parts)
          for (const Item& item : other.foreign)
            move_if_owned(item, parts[static_cast<std::size_t>(p)], Owned(to_.geometry, p, count), nullptr);
      });
    } catch (const std::bad_alloc&) {
      throw OutOfMemoryError("could not allocate scratch memory for a rehash of " +
                             std::to_string(from_.control->size) + " keys");
    }
    for (const Part& part : parts) {
      for (const Item& item : part.put_aside) move<Reach::kTable>(item, total);
      total.size += part.tally.size;
      total.filter_bits += part.tally.filter_bits;
      total.dropped += part.tally.dropped;
    }
  }

  void move_range(Part& part, Owned owned) {
    const auto bucket_of_region = [&](std::uint32_t region) {
      return std::uint64_t{from_.geometry.bucket_count} * region / to_.geometry.region_count;
    };
    const auto visit = [&](SlotType* slot, bool stray) { move_if_owned({slot, stray}, part, owned, &part.foreign); };
    for_each_live(from_, bucket_of_region(owned.begin), bucket_of_region(owned.end), visit);
    const std::uint64_t stray_bucket = from_.geometry.bucket_count;
    if (owned.begin == 0) for_each_live(from_, stray_bucket, stray_bucket + 1, visit);
  }

  void move_if_owned(const Item& item, Part& part, Owned owned, std::vector<Item>* foreign) {
    if (!owned.has(Probe<Key>(item.key(), to_.geometry).region(to_.geometry))) {
      if (foreign != nullptr) foreign->push_back(item);
    } else if (!move<Reach::kRegion>(item, part.tally)) {
      part.put_aside.push_back(item);
    }
  }

  /// False where the key would leave its region.
  template <Reach kReach>
  bool move(const Item& item, Tally& tally) {
    const Probe<Key> probe(item.key(), to_.geometry);
    const auto place = walk<Purpose::kInsertion, kReach>(to_, probe);
    tally.filter_bits += place.new_filter_bits;
    if (place.left_region) return false;
    if (place.vacant == nullptr) {
      ++tally.dropped;
      return true;
    }
    ++tally.size;
    *place.vacant = *item.slot;
    place.vacant->key = probe.stored();
    if constexpr (View::kHasValue)
      if (compact_rows_) {
        const std::uint64_t row = next_row_.fetch_add(1, std::memory_order_relaxed);
        std::memcpy(row_data(to_, row), row_data(from_, item.slot->value), static_cast<std::size_t>(from_.rows.bytes));
        place.vacant->value = static_cast<typename View::Value>(row);
      }
    return true;
  }

  void settle_rows() {
    Control& control = *to_.control;
    if (compact_rows_) {
      control.next_row = next_row_.load(std::memory_order_relaxed);
      control.free_rows = 0;
    } else {
      control.next_row = from_.control->next_row;
      control.free_rows = from_.control->free_rows;
      if (control.free_rows != 0 && to_.rows.free != from_.rows.free)
        std::memcpy(to_.rows.free, from_.rows.free, control.free_rows * sizeof(std::int64_t));
    }
  }

  const View& from_;
  const View& to_;
  bool compact_rows_;
  std::atomic<std::uint64_t> next_row_{0};
};

}  // namespace gpuhash::host
