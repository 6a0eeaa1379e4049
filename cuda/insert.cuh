#pragma once

#include "executor.hpp"
#include "probe.cuh"

namespace gpuhash::cuda {

/// What insertions count, per thread.
struct Counts {
  int inserted = 0;
  int filter_bits = 0;
  int dropped = 0;

  template <class View>
  __device__ __forceinline__ void add_to(const View& view, Workspace& work) const {
    std::uint64_t* const counters[3] = {&view.control->size, &view.control->filter_bits, &view.control->dropped};
    add_to_control(work, counters, {inserted, filter_bits, dropped});
  }
};

/// Finds or inserts keys [0, count) of a warp's chunk. key_at(position, key) gives a key, and is false where there is
/// none; value_at(position) gives the value of a new key, which is stored where a key is there, too, if `assign`.
/// done(finished, position, slot, is_new) is called by all lanes after each step, `finished` in those whose key is
/// done; slot is null for a key that found no room.
///
/// Within one kernel, slots only go from free to taken. All lanes with one key try the free slots of its sequence in
/// one order, and each takes the first that it sees free: where two try, the first slot they both could take decides,
/// and the loser finds its key there. So a key is stored once, also where a lane remembers an erased slot and first
/// looks whether the key lies behind it.
template <class View, class KeyAt, class ValueAt, class Done>
__device__ __forceinline__ void find_or_insert(const View& view, std::uint32_t count, bool assign, Counts& counts,
                                               KeyAt key_at, ValueAt value_at, Done done) {
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;
  Feed feed{count};
  Probe<Key> probe;
  std::uint32_t mine = 0;
  bool open = false;
  // The first bucket of the sequence with a free slot; the key goes there once it is known to lie nowhere behind.
  bool remembered = false;
  bool returned = false;  // it is known, and this is that bucket
  std::uint32_t remembered_bucket = 0;
  std::uint32_t remembered_hop = 0;

  while (true) {
    if (feed.take(!open, mine)) {
      Key key;
      open = key_at(mine, key);
      if (open) probe = Probe<Key>(key, view.geometry);
      remembered = false;
      returned = false;
    }
    const unsigned active = __ballot_sync(kAllLanes, open);
    if (active == 0) {
      if (feed.next >= count) break;
      continue;
    }
    const Seen seen =
        look<View, false>(view, active, probe.stored(), probe.bucket(), 0, [](const SlotType&, std::uint32_t) {});
    SlotType* slot = nullptr;
    bool is_new = false;
    bool finished = false;
    if (open) {
      SlotType* const bucket = view.slots + std::uint64_t{probe.bucket()} * View::kSlots;
      if (seen.hit != 0) {
        slot = bucket + slot_of_bit<View>(__ffs(seen.hit) - 1);
        finished = true;
      } else {
        std::uint32_t free = seen.empty | seen.erased;
        if (free != 0 && !remembered) {
          remembered = true;
          remembered_bucket = probe.bucket();
          remembered_hop = probe.hop();
        }
        const bool may_lie_behind = !returned && seen.empty == 0 &&
                                    filter_has(view.filters, probe.bucket(), probe.filter_bit()) &&
                                    !probe.exhausted(view.geometry);
        if (may_lie_behind) {
          probe.next(view.geometry);
        } else if (remembered && remembered_bucket == probe.bucket() && remembered_hop == probe.hop()) {
          while (free != 0 && !finished) {
            const std::uint32_t bit = __ffs(free) - 1;
            slot = bucket + slot_of_bit<View>(bit);
            const Key mark = seen.empty >> bit & 1 ? empty_key<Key>() : erased_key<Key>();
            const Key was = claim(slot, mark, probe.stored(), value_at(mine));
            is_new = was == mark;
            finished = is_new || was == probe.stored();
            free &= free - 1;
          }
          // Others took all of them: the bucket is full now, and the walk goes on from here.
          remembered = false;
          returned = false;
        } else if (remembered) {
          probe.rewind(remembered_bucket, remembered_hop);
          returned = true;
        } else if (probe.exhausted(view.geometry)) {
          ++counts.dropped;
          slot = nullptr;
          finished = true;
        } else {
          counts.filter_bits += set_filter(view.filters, probe.bucket(), probe.filter_bit());
          probe.next(view.geometry);
        }
      }
      if (finished) {
        counts.inserted += is_new;
        if constexpr (View::kHasValue)
          if (assign && !is_new && slot != nullptr) slot->value = value_at(mine);
        open = false;
      }
    }
    done(finished, mine, slot, is_new);
  }
}

/// What insert_kernel does with the keys' slots.
struct InsertTarget {
  bool assign;              // overwrite values that are there
  bool rows;                // the value of a new key is the number of a new row
  bool* inserted;           // [n] or null
  std::int64_t* locations;  // [n] or null: the index of each key's slot
  std::uint64_t initial;    // the value of new keys where the batch has none
};

/// A warp's chunk in shared memory.
template <class View>
struct InsertStage {
  typename View::SlotType items[kMaxChunk<typename View::SlotType>];
  bool inserted[kMaxChunk<typename View::SlotType>];
};

/// kWhole: keys and values have the width and the alignment of those in the slots.
template <class View, bool kWhole>
__global__ void __launch_bounds__(kBlock, INSERT_BLOCKS)
    insert_kernel(View view, KeyBatch keys, ValueBatch values, InsertTarget target, std::uint32_t chunk_length) {
  using Key = typename View::Key;
  using Value = typename View::Value;
  using SlotType = typename View::SlotType;
  __shared__ Workspace work;
  __shared__ InsertStage<View> stages[kWarps];
  InsertStage<View>& stage = stages[threadIdx.x / 32];
  const std::uint32_t lane = threadIdx.x % 32;
  const Chunk chunk = Chunk::of_warp(keys.count, chunk_length);
#pragma unroll 4
  for (std::uint32_t at = lane; at < chunk.count; at += 32) {
    const std::int64_t i = chunk.first + at;
    SlotType item{};
    item.key =
        kWhole ? load_streaming(static_cast<const Key*>(keys.data) + i) : load_bytes<Key>(keys.data, i, keys.bytes);
    if constexpr (View::kHasValue) {
      item.value = static_cast<Value>(target.initial);
      if (values.data != nullptr)
        item.value =
            kWhole ? load_streaming(static_cast<const Value*>(values.data) + i)
                   : load_bytes<Value>(values.data, values.broadcast ? 0 : i, static_cast<std::uint32_t>(values.bytes));
    }
    stage.items[at] = item;
  }
  __syncwarp();

  Counts counts;
  find_or_insert(
      view, chunk.count, target.assign, counts,
      [&](std::uint32_t at, Key& key) {
        key = stage.items[at].key;
        return true;
      },
      [&]([[maybe_unused]] std::uint32_t at) -> Value {
        if constexpr (View::kHasValue)
          return stage.items[at].value;
        else
          return {};
      },
      [&](bool finished, std::uint32_t at, [[maybe_unused]] SlotType* slot, bool is_new) {
        if constexpr (View::kHasValue && sizeof(Value) == sizeof(std::uint64_t)) {
          if (target.rows) {
            const std::uint64_t ticket = take_ticket(&view.control->row_tickets, is_new);
            if (is_new) {
              const std::uint64_t free = view.control->free_rows;
              slot->value = ticket < free ? static_cast<std::uint64_t>(view.rows.free[free - 1 - ticket])
                                          : view.control->next_row + (ticket - free);
            }
          }
        }
        if (!finished) return;
        stage.inserted[at] = is_new;
        if (target.locations != nullptr) target.locations[chunk.first + at] = slot == nullptr ? -1 : slot - view.slots;
      });
  __syncwarp();
  if (target.inserted != nullptr)
    for (std::uint32_t at = lane; at < chunk.count; at += 32) target.inserted[chunk.first + at] = stage.inserted[at];
  counts.add_to(view, work);
}

/// After the insertion: the rows that its tickets stand for are taken. One thread.
template <class View>
__global__ void settle_rows_kernel(View view) {
  Control& control = *view.control;
  if (control.row_tickets <= control.free_rows) {
    control.free_rows -= control.row_tickets;
  } else {
    control.next_row += control.row_tickets - control.free_rows;
    control.free_rows = 0;
  }
  control.row_tickets = 0;
}

/// Inserts the slots of `from` into `to`, a chunk of them per warp. The order of the buckets follows the order of the
/// hashes in both, so that neighbours stay neighbours and memory is nearly streamed.
template <class View>
__global__ void __launch_bounds__(kBlock) rehash_kernel(View from, View to, std::uint32_t chunk_length) {
  using Key = typename View::Key;
  using Value = typename View::Value;
  using SlotType = typename View::SlotType;
  __shared__ Workspace work;
  const auto slots = static_cast<std::int64_t>(from.slot_count());
  const Chunk chunk = Chunk::of_warp(slots, chunk_length);
  Counts counts;
  find_or_insert(
      to, chunk.count, false, counts,
      [&](std::uint32_t at, Key& key) {
        const std::int64_t i = chunk.first + at;
        const Key stored = from.slots[i].key;
        key = key_of_slot(stored, i >= slots - static_cast<std::int64_t>(View::kSlots));
        return is_live(stored);
      },
      [&]([[maybe_unused]] std::uint32_t at) -> Value {
        if constexpr (View::kHasValue)
          return from.slots[chunk.first + at].value;
        else
          return {};
      },
      [](bool, std::uint32_t, SlotType*, bool) {});
  counts.add_to(to, work);
}

/// Row counters of `to` continue those of `from`, and so does the stack of free rows.
template <class View>
__global__ void __launch_bounds__(kBlock) copy_free_rows_kernel(View from, View to) {
  const std::uint64_t free = from.control->free_rows;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kBlock;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kBlock + threadIdx.x; i < free; i += stride)
    to.rows.free[i] = from.rows.free[i];
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    to.control->next_row = from.control->next_row;
    to.control->free_rows = free;
  }
}

/// Deals out row numbers anew, from 0: source[new row] = old row.
template <class View>
__global__ void __launch_bounds__(kBlock) renumber_rows_kernel(View view, std::int64_t* source) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const bool live = i < static_cast<std::int64_t>(view.slot_count()) && is_live(view.slots[i].key);
  const std::uint64_t row = take_ticket(&view.control->next_row, live);
  if (live) {
    source[row] = static_cast<std::int64_t>(view.slots[i].value);
    view.slots[i].value = row;
  }
}

}  // namespace gpuhash::cuda
