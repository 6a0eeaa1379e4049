#pragma once

#include "executor.hpp"
#include "probe.cuh"

namespace gpuhash::cuda {

/// Erases keys [0, count) of a warp's chunk; key_at(position) gives a key. done(finished, position, erased, value) is
/// called by all lanes after each step, `finished` in those whose key is done; `erased` in the one lane that did it, of
/// all lanes of the grid with that key, and with what lay beside the key. A slot of a bucket that still has an empty
/// slot becomes empty, others keep a mark (layout.hpp says why).
template <class View, class KeyAt, class Done>
__device__ __forceinline__ void erase_each(const View& view, std::uint32_t count,
                                           Queue<typename View::Key, NoLoad>& queue, KeyAt key_at, Done done) {
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;
  walk_chunk<View, false, NoLoad>(
      view, count, queue,
      [&](std::uint32_t at, Key& key, NoLoad&) {
        key = key_at(at);
        return true;
      },
      [](const SlotType&, std::uint32_t) {},
      [&](bool on, std::uint32_t at, Probe<Key>& probe, NoLoad&, const Seen& seen) {
        bool erased = false;
        bool goes_on = false;
        typename View::Value value{};
        if (on && seen.hit != 0) {
          SlotType* const slot =
              view.slots + std::uint64_t{probe.bucket()} * View::kSlots + slot_of_bit<View>(__ffs(seen.hit) - 1);
          erased = release(slot, probe.stored(), seen.empty != 0 ? empty_key<Key>() : erased_key<Key>(), value);
        } else if (on && seen.empty == 0 && filter_has(view.filters, probe.bucket(), probe.filter_bit()) &&
                   !probe.exhausted(view.geometry)) {
          probe.next(view.geometry);
          goes_on = true;
        }
        done(on && !goes_on, at, erased, value);
        return goes_on;
      });
}

/// kWhole: keys have the width and the alignment of those in the slots.
template <class View, bool kWhole>
__global__ void __launch_bounds__(kBlock)
    erase_kernel(View view, KeyBatch keys, bool* erased_mask, std::uint32_t chunk_length) {
  using Key = typename View::Key;
  __shared__ Workspace work;
  __shared__ Queue<Key, NoLoad> queues[kWarps];
  const Chunk chunk = Chunk::of_warp(keys.count, chunk_length);
  int count = 0;
  erase_each(
      view, chunk.count, queues[threadIdx.x / 32],
      [&](std::uint32_t at) {
        return kWhole ? load_streaming(static_cast<const Key*>(keys.data) + chunk.first + at)
                      : load_bytes<Key>(keys.data, chunk.first + at, keys.bytes);
      },
      [&](bool finished, std::uint32_t at, bool erased, [[maybe_unused]] const typename View::Value& value) {
        if constexpr (View::kHasValue) {
          if (view.rows.bytes != 0) {
            const std::uint64_t place = take_ticket(&view.control->free_rows, erased);
            if (erased) view.rows.free[place] = static_cast<std::int64_t>(value);
          }
        }
        count += erased;
        if (finished && erased_mask != nullptr) erased_mask[chunk.first + at] = erased;
      });
  std::uint64_t* const counters[3] = {&view.control->size, &view.control->erased, nullptr};
  add_to_control(work, counters, {-count, count, 0});
}

}  // namespace gpuhash::cuda
