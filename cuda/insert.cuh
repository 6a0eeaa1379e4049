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

/// What goes with a key that is being inserted: its value, and the first bucket of its sequence with a free slot. The
/// key goes there once it is known to lie nowhere behind.
template <class Value>
struct InsertLoad {
  static constexpr std::uint32_t kNone = ~0u;

  Value value;
  std::uint32_t bucket;
  std::uint32_t hop;  // kNone: no such bucket yet
  bool returned;      // it is known, and the probe is back there

  __device__ __forceinline__ bool is_here(std::uint32_t other_bucket, std::uint32_t other_hop) const {
    return hop == other_hop && bucket == other_bucket;
  }
  __device__ __forceinline__ void forget() {
    hop = kNone;
    returned = false;
  }
};

template <class View>
using InsertQueue = Queue<typename View::Key, InsertLoad<typename View::Value>>;

/// Finds or inserts keys [0, count) of a warp's chunk. read(position, key, value) reads a key and its value, and is
/// false where there is none; the value is stored where the key is there, too, if `assign`. done(finished, position,
/// slot, is_new) is called by all lanes after each step, `finished` in those whose key is done; slot is null for a key
/// that found no room.
///
/// Within one kernel, slots only go from free to taken. All lanes with one key try the free slots of its sequence in
/// one order, and each takes the first that it sees free: where two try, the first slot they both could take decides,
/// and the loser finds its key there. So a key is stored once, also where a lane remembers an erased slot and first
/// looks whether the key lies behind it.
template <class View, class Read, class Done>
__device__ __forceinline__ void find_or_insert(const View& view, std::uint32_t count, InsertQueue<View>& queue,
                                               bool assign, Counts& counts, Read read, Done done) {
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;
  using Load = InsertLoad<typename View::Value>;
  walk_chunk<View, false, Load>(
      view, count, queue,
      [&](std::uint32_t at, Key& key, Load& load) {
        load.forget();
        return read(at, key, load.value);
      },
      [](const SlotType&, std::uint32_t) {},
      [&](bool on, std::uint32_t at, Probe<Key>& probe, Load& load, const Seen& seen) {
        SlotType* slot = nullptr;
        bool finished = false;
        bool is_new = false;
        if (on) {
          SlotType* const bucket = view.slots + std::uint64_t{probe.bucket()} * View::kSlots;
          std::uint32_t free = seen.empty | seen.erased;
          if (seen.hit != 0) {
            slot = bucket + slot_of_bit<View>(__ffs(seen.hit) - 1);
            finished = true;
          } else {
            if (free != 0 && load.hop == Load::kNone) {
              load.bucket = probe.bucket();
              load.hop = probe.hop();
            }
            const bool may_lie_behind = !load.returned && seen.empty == 0 &&
                                        filter_has(view.filters, probe.bucket(), probe.filter_bit()) &&
                                        !probe.exhausted(view.geometry);
            if (may_lie_behind) {
              probe.next(view.geometry);
            } else if (load.is_here(probe.bucket(), probe.hop())) {
              while (free != 0 && !finished) {
                const std::uint32_t bit = __ffs(free) - 1;
                slot = bucket + slot_of_bit<View>(bit);
                const Key mark = seen.empty >> bit & 1 ? empty_key<Key>() : erased_key<Key>();
                const Key was = claim(slot, mark, probe.stored(), load.value);
                is_new = was == mark;
                finished = is_new || was == probe.stored();
                free &= free - 1;
              }
              // Others took all of them: the bucket is full now, and the walk goes on from here, after another look.
              load.forget();
            } else if (load.hop != Load::kNone) {
              probe.move_to(load.bucket, load.hop);
              load.returned = true;
            } else if (probe.exhausted(view.geometry)) {
              ++counts.dropped;
              finished = true;
            } else {
              counts.filter_bits += set_filter(view.filters, probe.bucket(), probe.filter_bit());
              probe.next(view.geometry);
            }
          }
        }
        if (finished) {
          counts.inserted += is_new;
          if constexpr (View::kHasValue)
            if (assign && !is_new && slot != nullptr) slot->value = load.value;
        }
        done(finished, at, slot, is_new);
        return on && !finished;
      });
}

/// What insert_kernel does with the keys' slots.
struct InsertTarget {
  bool assign;              // overwrite values that are there
  bool rows;                // the value of a new key is the number of a new row
  bool* inserted;           // [n] or null
  std::int64_t* locations;  // [n] or null: the index of each key's slot
  std::uint64_t initial;    // the value of new keys where the batch has none
};

/// kWhole: keys and values have the width and the alignment of those in the slots.
template <class View, bool kWhole>
__global__ void __launch_bounds__(kBlock, INSERT_BLOCKS)
    insert_kernel(View view, KeyBatch keys, ValueBatch values, InsertTarget target, std::uint32_t chunk_length) {
  using Key = typename View::Key;
  using Value = typename View::Value;
  using SlotType = typename View::SlotType;
  __shared__ Workspace work;
  __shared__ InsertQueue<View> queues[kWarps];
  const Chunk chunk = Chunk::of_warp(keys.count, chunk_length);
  Counts counts;
  find_or_insert(
      view, chunk.count, queues[threadIdx.x / 32], target.assign, counts,
      [&](std::uint32_t at, Key& key, [[maybe_unused]] Value& value) {
        const std::int64_t i = chunk.first + at;
        key =
            kWhole ? load_streaming(static_cast<const Key*>(keys.data) + i) : load_bytes<Key>(keys.data, i, keys.bytes);
        if constexpr (View::kHasValue) {
          value = static_cast<Value>(target.initial);
          if (values.data != nullptr)
            value = kWhole ? load_streaming(static_cast<const Value*>(values.data) + i)
                           : load_bytes<Value>(values.data, values.broadcast ? 0 : i,
                                               static_cast<std::uint32_t>(values.bytes));
        }
        return true;
      },
      [&](bool finished, std::uint32_t at, SlotType* slot, bool is_new) {
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
        const std::int64_t i = chunk.first + at;
        if (target.inserted != nullptr) target.inserted[i] = is_new;
        if (target.locations != nullptr) target.locations[i] = slot == nullptr ? -1 : slot - view.slots;
      });
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
  __shared__ InsertQueue<View> queues[kWarps];
  Counts counts;
  find_or_insert(
      to, chunk.count, queues[threadIdx.x / 32], false, counts,
      [&](std::uint32_t at, Key& key, [[maybe_unused]] Value& value) {
        const std::int64_t i = chunk.first + at;
        const SlotType slot = from.slots[i];
        key = key_of_slot(slot.key, i >= slots - static_cast<std::int64_t>(View::kSlots));
        if constexpr (View::kHasValue) value = slot.value;
        return is_live(slot.key);
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
