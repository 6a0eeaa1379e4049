#pragma once

#include "executor.hpp"
#include "probe.cuh"

namespace gpuhash::cuda {

/// Erases keys [0, count) of a warp's chunk; key_at(position) gives a key. done(finished, position, erased, value) is
/// called by all lanes after each step, `finished` in those whose key is done; `erased` in the one lane that did it, of
/// all lanes of the grid with that key, and with what lay beside the key. A slot of a bucket that still has an empty
/// slot becomes empty, others keep a mark (layout.hpp says why).
template <class View, class KeyAt, class Done>
__device__ __forceinline__ void erase_each(const View& view, std::uint32_t count, KeyAt key_at, Done done) {
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;
  Feed feed{count};
  Probe<Key> probe;
  std::uint32_t mine = 0;
  bool open = false;
  while (true) {
    if (feed.take(!open, mine)) {
      probe = Probe<Key>(key_at(mine), view.geometry);
      open = true;
    }
    const unsigned active = __ballot_sync(kAllLanes, open);
    if (active == 0) break;
    const Seen seen =
        look<View, false>(view, active, probe.stored(), probe.bucket(), 0, [](const SlotType&, std::uint32_t) {});
    bool finished = false;
    bool erased = false;
    typename View::Value value{};
    if (open) {
      if (seen.hit != 0) {
        SlotType* const slot =
            view.slots + std::uint64_t{probe.bucket()} * View::kSlots + slot_of_bit<View>(__ffs(seen.hit) - 1);
        erased = release(slot, probe.stored(), seen.empty != 0 ? empty_key<Key>() : erased_key<Key>(), value);
        finished = true;
      } else if (seen.empty == 0 && filter_has(view.filters, probe.bucket(), probe.filter_bit()) &&
                 !probe.exhausted(view.geometry)) {
        probe.next(view.geometry);
      } else {
        finished = true;
      }
      open = !finished;
    }
    done(finished, mine, erased, value);
  }
}

template <class View>
struct EraseStage {
  typename View::Key keys[kMaxChunk<typename View::Key>];
  bool erased[kMaxChunk<typename View::Key>];
};

/// kWhole: keys have the width and the alignment of those in the slots.
template <class View, bool kWhole>
__global__ void __launch_bounds__(kBlock)
    erase_kernel(View view, KeyBatch keys, bool* erased_mask, std::uint32_t chunk_length) {
  using Key = typename View::Key;
  __shared__ Workspace work;
  __shared__ EraseStage<View> stages[kWarps];
  EraseStage<View>& stage = stages[threadIdx.x / 32];
  const std::uint32_t lane = threadIdx.x % 32;
  const Chunk chunk = Chunk::of_warp(keys.count, chunk_length);
#pragma unroll 4
  for (std::uint32_t at = lane; at < chunk.count; at += 32) {
    const std::int64_t i = chunk.first + at;
    stage.keys[at] =
        kWhole ? load_streaming(static_cast<const Key*>(keys.data) + i) : load_bytes<Key>(keys.data, i, keys.bytes);
  }
  __syncwarp();
  int count = 0;
  erase_each(
      view, chunk.count, [&](std::uint32_t at) { return stage.keys[at]; },
      [&](bool finished, std::uint32_t at, bool erased, [[maybe_unused]] const typename View::Value& value) {
        if constexpr (View::kHasValue) {
          if (view.rows.bytes != 0) {
            const std::uint64_t place = take_ticket(&view.control->free_rows, erased);
            if (erased) view.rows.free[place] = static_cast<std::int64_t>(value);
          }
        }
        count += erased;
        if (finished) stage.erased[at] = erased;
      });
  __syncwarp();
  if (erased_mask != nullptr)
    for (std::uint32_t at = lane; at < chunk.count; at += 32) erased_mask[chunk.first + at] = stage.erased[at];
  std::uint64_t* const counters[3] = {&view.control->size, &view.control->erased, nullptr};
  add_to_control(work, counters, {-count, count, 0});
}

}  // namespace gpuhash::cuda
