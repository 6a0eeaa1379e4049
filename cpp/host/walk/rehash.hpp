#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "host/parallel.hpp"
#include "host/rows/rows.hpp"
#include "host/walk/write_each.hpp"

namespace gpuhash::host {

/// Makes buckets [begin, end) and their filters empty; end may include the stray bucket.
template <class View>
void clear_buckets(const View& view, std::uint64_t begin, std::uint64_t end) {
  std::memset(static_cast<void*>(bucket_at(view, begin)), kEmptyByte, (end - begin) * View::kBucketBytes);
  const std::uint32_t stray = view.geometry.bucket_count;
  std::memset(view.filters + begin, 0, (end <= stray ? end : View::filter_bytes(stray)) - begin);
}

/// Moves the live slots of one table into the memory of another, which holds nothing yet.
///
/// Buckets keep their order, so the old table is read and the new one written as two streams; the new one's buckets are
/// made empty just before they are written. Threads own ranges of regions of the new table, and read the range of old
/// buckets from which nearly all of their keys come. As long as a region gets keys from there, its filter bytes count
/// those of each bucket: to look which slots are empty, right after some were written, would take most of the time.
/// Then the few keys follow whose home buckets were full. A key of another owner, or of a region that does not get keys
/// any more or yet, comes on a list that its owner reads in a second pass. With another seed nothing keeps its order,
/// and most keys take that way. Where there is no memory for lists, one thread moves all keys into a table that was
/// emptied before.
template <class View>
class Rehash {
 public:
  Rehash(const View& from, const View& to, bool compact_rows)
      : from_(from), to_(to), compact_rows_(compact_rows && from.rows.bytes != 0) {}

  void run() {
    *to_.control = Control{};
    const std::uint64_t bucket_count = to_.geometry.bucket_count;
    clear_buckets(to_, bucket_count, bucket_count + 1);
    Tally total;
    if (!move_all(part_count(), total)) {
      clear_buckets(to_, 0, bucket_count + 1);
      next_row_ = 0;
      total = move_alone();
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
    Items full;       // whose home bucket is full, and whose region may still get keys
    Items late;       // for the second pass
    Items put_aside;  // would leave their region
    Tally tally;
  };

  /// Consecutive slots of the old table, at most kGathered, and what becomes of those of their keys that do not simply
  /// go home.
  struct HomeRun {
    const SlotType* first;
    std::size_t count;
    std::size_t moved = 0;
    std::size_t late_count = 0;
    std::size_t full_count = 0;
    std::uint16_t late[kGathered];  // offsets: keys of other buckets than those that may get keys now
    std::uint16_t full[kGathered];  // likewise: keys whose home bucket is full

    HomeRun(const SlotType* slots, std::ptrdiff_t length) : first(slots), count(static_cast<std::size_t>(length)) {}
  };

  struct Gathered {
    Item data[kGathered];
    Key keys[kGathered];
    std::size_t count = 0;
  };

  /// The pipeline's visitor.
  struct Mover {
    Rehash* rehash;
    const Item* items;
    Items* put_aside;
    Tally tally{};

    void write(std::int64_t i, const Key& stored, SlotType* slot, bool is_new) {
      if (!is_new) {
        tally.dropped += slot == nullptr ? 1 : 0;
        return;
      }
      ++tally.size;
      *slot = *items[i].slot;
      slot->key = stored;
      rehash->move_row(slot);
    }
    void left_region(std::int64_t i) { append(*put_aside, items[i]); }
  };

  /// A large table is made empty by several threads, however few keys there are.
  int part_count() const {
    const Geometry& to = to_.geometry;
    const std::int64_t most = std::min<std::int64_t>(to.region_count, kMostWriters);
    return std::max(writer_parts(static_cast<std::int64_t>(from_.control->size), to_),
                    static_cast<int>(std::min<std::int64_t>(most, reader_parts(to.bucket_count))));
  }

  /// False where there is no scratch memory.
  bool move_all(int count, Tally& total) {
    try {
      auto parts = scratch<Part>(count);
      parallel_for(count,
                   [&](int p) { move_range(parts[static_cast<std::size_t>(p)], Owned(to_.geometry, p, count)); });
      parallel_for(count, [&](int p) {
        Part& part = parts[static_cast<std::size_t>(p)];
        const Owned owned(to_.geometry, p, count);
        Gathered items;
        for (const Part& other : parts)
          for (const Item& item : other.late)
            if (owned.has(region_of(item))) add(item, items, Reach::kRegion, part);
        move(items, Reach::kRegion, part);
      });
      Part last;
      Gathered items;
      for (Part& part : parts) {
        for (const Item& item : part.put_aside) add(item, items, Reach::kTable, last);
        part.tally.add_to(total);
      }
      move(items, Reach::kTable, last);
      last.tally.add_to(total);
    } catch (const OutOfMemoryError&) {
      return false;
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }

  Tally move_alone() {
    Part all;
    Gathered items;
    const std::uint64_t bucket_count = from_.geometry.bucket_count;
    in_pieces(0, static_cast<std::int64_t>(bucket_count + 1), kBucketsPerPiece,
              [&](std::int64_t begin, std::int64_t end) {
                for_each_live(from_, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end),
                              [&](const SlotType* slot, bool stray) { add({slot, stray}, items, Reach::kTable, all); });
              });
    move(items, Reach::kTable, all);
    return all.tally;
  }

  void move_range(Part& part, Owned owned) {
    const Geometry& from = from_.geometry;
    const Geometry& to = to_.geometry;
    Gathered items;
    // New regions: those before `done` have all keys that come from their old buckets, those from `ready` on are not
    // empty yet, and those between them get keys.
    std::uint32_t done = owned.begin;
    std::uint32_t ready = owned.begin;
    const auto first_bucket = [&](std::uint64_t region) { return region * to.region_buckets; };
    const auto make_ready = [&](std::uint64_t end) {
      if (end <= ready) return;
      clear_buckets(to_, first_bucket(ready), first_bucket(end));
      ready = static_cast<std::uint32_t>(end);
    };
    const auto finish = [&](std::uint64_t end) {
      if (end <= done) return;
      std::memset(to_.filters + first_bucket(done), 0, first_bucket(end) - first_bucket(done));
      done = static_cast<std::uint32_t>(end);
      const auto moved = std::remove_if(part.full.begin(), part.full.end(), [&](const Item& item) {
        if (region_of(item) >= done) return false;
        add(item, items, Reach::kRegion, part);
        return true;
      });
      part.full.erase(moved, part.full.end());
      move(items, Reach::kRegion, part);
    };
    const auto move_slots = [&](const SlotType* first, const SlotType* last) {
      for (; first < last; first += kGathered) {
        HomeRun run(first, std::min<std::ptrdiff_t>(kGathered, last - first));
        move_home(run, first_bucket(done), first_bucket(ready));
        part.tally.size += run.moved;
        for (std::size_t n = 0; n < run.late_count; ++n) append(part.late, {first + run.late[n], false});
        for (std::size_t n = 0; n < run.full_count; ++n) append(part.full, {first + run.full[n], false});
      }
    };
    const auto bucket_of_region = [&](std::uint32_t region) {
      return std::uint64_t{from.bucket_count} * region / to.region_count;
    };
    const std::uint64_t end = bucket_of_region(owned.end);
    for (std::uint64_t bucket = bucket_of_region(owned.begin); bucket < end;) {
      interruption_point();
      // Keys of one old region have their new homes in as large a part of the new table, give or take a region.
      const std::uint64_t region_end = bucket / from.region_buckets + 1;
      const std::uint64_t new_end = region_end * to.region_count / from.region_count;
      make_ready(std::min<std::uint64_t>(owned.end, new_end + 1));
      const std::uint64_t piece_end = std::min(end, region_end * from.region_buckets);
      move_slots(bucket_at(from_, bucket), bucket_at(from_, piece_end));
      finish(std::min<std::uint64_t>(owned.end, new_end));
      bucket = piece_end;
    }
    make_ready(owned.end);
    finish(owned.end);
    if (owned.begin == 0)
      for_each_live(from_, from.bucket_count, std::uint64_t{from.bucket_count} + 1,
                    [&](const SlotType* slot, bool stray) { add({slot, stray}, items, Reach::kRegion, part); });
    move(items, Reach::kRegion, part);
  }

  /// Moves the keys whose home is one of buckets [begin, end), and not full: nearly all. Nothing is looked for, as no
  /// key is in the new table yet.
  void move_home(HomeRun& run, std::uint64_t begin, std::uint64_t end) {
    std::uint16_t live[kGathered];
    Key keys[kGathered];
    std::size_t live_count = 0;
    for (std::size_t s = 0; s < run.count; ++s) {  // without a branch, which nobody could predict
      const Key key = run.first[s].key;
      live[live_count] = static_cast<std::uint16_t>(s);
      keys[live_count] = key;
      live_count += is_live(key) ? 1 : 0;
    }
    const View to = to_;
    std::size_t late_count = 0;
    std::size_t full_count = 0;
    Homes<Key> homes;
    for (std::size_t block = 0; block < live_count; block += kHomes) {
      const std::size_t size = std::min(kHomes, live_count - block);
      homes.fill(keys + block, size, to.geometry);
      for (std::size_t b = 0; b < size; ++b) {
        const std::uint16_t l = live[block + b];
        const std::uint32_t home = homes.bucket(b);
        if (home < begin || home >= end) {
          run.late[late_count++] = l;
          continue;
        }
        std::uint8_t& count = to.filters[home];
        if (count < View::kSlots) {
          SlotType* const moved = bucket_at(to, home) + count++;
          *moved = run.first[l];
          move_row(moved);
        } else {
          run.full[full_count++] = l;
        }
      }
    }
    run.late_count = late_count;
    run.full_count = full_count;
    run.moved = live_count - late_count - full_count;
  }

  void add(const Item& item, Gathered& items, Reach reach, Part& part) {
    items.keys[items.count] = item.key();
    items.data[items.count++] = item;
    if (items.count == kGathered) move(items, reach, part);
  }

  std::uint32_t region_of(const Item& item) const { return Probe<Key>(item.key(), to_.geometry).region(to_.geometry); }

  /// Leaves no items.
  void move(Gathered& items, Reach reach, Part& part) {
    Mover mover{this, items.data, &part.put_aside};
    KeyRun keys{reinterpret_cast<const std::byte*>(items.keys), sizeof(Key),
                static_cast<std::int64_t>(std::exchange(items.count, 0)), 0};
    keys.distinct = true;
    mover.tally.add(walk<Purpose::kInsertion>(to_, reach, keys, mover));
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
