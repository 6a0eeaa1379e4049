#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "host/parallel.hpp"
#include "host/rows.hpp"

namespace gpuhash::host {

/// Moves the live slots of one table into an empty one.
///
/// Buckets keep their order, so the old table is read and the new one written as two streams. Threads own regions of
/// the new table, as in write_each(), and read the range of old buckets from which nearly all of their keys come.
/// Whoever comes across another owner's key puts it on a list that its owner reads in a second pass. With another seed
/// nothing keeps its order, and most keys take that way.
template <class View>
class Rehash {
 public:
  Rehash(const View& from, const View& to, bool compact_rows)
      : from_(from), to_(to), compact_rows_(compact_rows && from.rows.bytes != 0) {}

  void run() {
    const int parts = writer_parts(static_cast<std::int64_t>(from_.control->size), to_);
    Tally total;
    try {
      move_all(parts, total);
    } catch (const std::bad_alloc&) {
      throw OutOfMemoryError("could not allocate scratch memory for a rehash of " +
                             std::to_string(from_.control->size) + " keys");
    }
    Control& control = *to_.control;
    control.size = total.size;
    control.filter_bits = total.filter_bits;
    control.far_keys = total.far_keys;
    control.erased = 0;
    control.dropped += total.dropped;
    hand_over_row_numbers();
  }

 private:
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;

  /// Slots per run of a pipeline.
  static constexpr std::size_t kGathered = 1024;

  struct Item {
    const SlotType* slot;
    bool stray;
    Key key() const { return key_of_slot(slot->key, stray); }
  };
  using Items = std::vector<Item>;

  static void append(Items& items, const Item& item) {
    if (items.size() == items.capacity()) scratch_may_fail();
    items.push_back(item);
  }

  struct Owned {
    std::uint32_t begin;
    std::uint32_t end;
    Owned(const Geometry& geometry, int part, int parts)
        : begin(static_cast<std::uint32_t>(part_begin(geometry.region_count, part, parts))),
          end(static_cast<std::uint32_t>(part_begin(geometry.region_count, part + 1, parts))) {}
    bool has(std::uint32_t region) const { return begin <= region && region < end; }
  };

  struct Part {
    Items foreign;    // another owner's
    Items put_aside;  // would leave their region
    Tally tally;
  };

  struct ItemKeys {
    const Item* items;
    Key operator[](std::int64_t i) const { return items[i].key(); }
  };

  /// The pipeline's visitor.
  struct Mover {
    static constexpr bool kDistinct = true;

    Rehash* rehash;
    const Item* items;
    Items* put_aside;
    Tally tally{};

    void write(std::int64_t i, const Key& stored, SlotType* slot, bool is_new) {
      if (!is_new) {
        ++tally.dropped;
        return;
      }
      ++tally.size;
      *slot = *items[i].slot;
      slot->key = stored;
      rehash->move_row(slot);
    }
    void left_region(std::int64_t i) { append(*put_aside, items[i]); }
  };

  void move_all(int count, Tally& total) {
    auto parts = scratch<Part>(count);
    parallel_for(count, [&](int p) {
      Part& part = parts[static_cast<std::size_t>(p)];
      move_range(part, Owned(to_.geometry, p, count), count == 1 ? Reach::kTable : Reach::kRegion);
    });
    parallel_for(count, [&](int p) {
      Part& part = parts[static_cast<std::size_t>(p)];
      const Owned owned(to_.geometry, p, count);
      for (const Part& other : parts)
        for (const Item& item : other.foreign)
          if (owned.has(region_of(item))) move(&item, 1, Reach::kRegion, part);
    });
    Part last;
    for (Part& part : parts) {
      for (const Item& item : part.put_aside) move(&item, 1, Reach::kTable, last);
      part.tally.add_to(total);
    }
    last.tally.add_to(total);
  }

  void move_range(Part& part, Owned owned, Reach reach) {
    std::array<Item, kGathered> items;
    std::size_t count = 0;
    const auto visit = [&](const SlotType* slot, bool stray) {
      const Item item{slot, stray};
      if (!owned.has(region_of(item))) return append(part.foreign, item);
      items[count++] = item;
      if (count < kGathered) return;
      move(items.data(), count, reach, part);
      count = 0;
    };
    const auto bucket_of_region = [&](std::uint32_t region) {
      return std::uint64_t{from_.geometry.bucket_count} * region / to_.geometry.region_count;
    };
    in_pieces(static_cast<std::int64_t>(bucket_of_region(owned.begin)),
              static_cast<std::int64_t>(bucket_of_region(owned.end)), kBucketsPerPiece,
              [&](std::int64_t begin, std::int64_t end) {
                for_each_live(from_, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end), visit);
              });
    const std::uint64_t stray_bucket = from_.geometry.bucket_count;
    if (owned.begin == 0) for_each_live(from_, stray_bucket, stray_bucket + 1, visit);
    move(items.data(), count, reach, part);
  }

  std::uint32_t region_of(const Item& item) const { return Probe<Key>(item.key(), to_.geometry).region(to_.geometry); }

  void move(const Item* items, std::size_t count, Reach reach, Part& part) {
    Mover mover{this, items, &part.put_aside};
    with_simd([&](auto simd) {
      // kNear: two streams need no prefetching.
      Pipeline<Purpose::kInsertion, true, decltype(simd), View, ItemKeys, FromPosition, Mover> pipeline(
          to_, reach, ItemKeys{items}, FromPosition{0}, mover);
      pipeline.run(static_cast<std::int64_t>(count));
      mover.tally = pipeline.visitor().tally;
      mover.tally.add(pipeline.passed());
    });
    mover.tally.add_to(part.tally);
  }

  void move_row([[maybe_unused]] SlotType* slot) {
    if constexpr (View::kHasValue)
      if (compact_rows_) {
        const std::uint64_t row = next_row_.fetch_add(1, std::memory_order_relaxed);
        std::memcpy(row_data(to_, row), row_data(from_, slot->value), static_cast<std::size_t>(from_.rows.bytes));
        slot->value = static_cast<typename View::Value>(row);
      }
  }

  void hand_over_row_numbers() {
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
