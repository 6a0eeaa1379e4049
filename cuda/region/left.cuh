#pragma once

#include <cstdint>

#include "cuda/partition/partition.cuh"
#include "cuda/region/chunk.cuh"
#include "cuda/walk/erase.cuh"
#include "cuda/walk/insert.cuh"
#include "cuda/walk/probe.cuh"

/// What the regions leave over: how it is kept, and how it is worked off the direct way.
namespace gpuhash::cuda {

/// The lists of a batch's regions, and what is left of them.
template <class Item>
struct PartitionedBatch {
  Lists<Item> regions;
  std::uint32_t* leavers;  // [regions]: items at the front of each list that are still to be done
  Rest<Item> rest;
};

/// Moves the chunk's leavers to the front of the region's list, behind the `all_left` that are there.
template <class Item>
__device__ __forceinline__ void keep_leavers(const PartitionedBatch<Item>& batch, const Backlog& backlog,
                                             std::uint64_t first_item, std::uint32_t base, std::uint32_t all_left,
                                             bool with_positions) {
  if (backlog.leavers == 0) return;
  // In their order, so that none is overwritten before it has moved.
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < kChunk; i += kRegionBlock) {
    const bool leaves = backlog.is_leaver(i);
    Item item{};
    std::uint32_t position = 0;
    if (leaves) {
      item = batch.regions.items[first_item + base + i];
      if (with_positions) position = batch.regions.positions[first_item + base + i];
    }
    __syncthreads();
    if (leaves) {
      const std::uint64_t to = first_item + all_left + backlog.leavers_before(i);
      batch.regions.items[to] = item;
      if (with_positions) batch.regions.positions[to] = position;
    }
  }
}

/// Calls body(valid, item, position) in all lanes of the warp for everything that the regions have not done: leavers
/// and the rest, or the whole batch. By a grid of any size.
template <class Item, class Body>
__device__ __forceinline__ void for_each_left(const PartitionedBatch<Item>& batch, const BatchItems<Item>& all,
                                              std::uint32_t region_count, Body body) {
  const std::int64_t lane = threadIdx.x % 32;
  const std::int64_t warp = (std::int64_t{blockIdx.x} * kBlock + threadIdx.x) / 32;
  const std::int64_t warps = std::int64_t{gridDim.x} * kWarps;
  // Of the list that the warp is at: the whole batch or the rest, of which others take their shares, then region by
  // region.
  const bool whole_batch = batch.rest.counters->overflow != 0;
  const Item* items = batch.rest.items;
  const std::uint32_t* positions = batch.rest.positions;
  std::int64_t first = warp * 32;
  std::int64_t step = warps * 32;
  std::int64_t count = whole_batch ? all.keys.count : batch.rest.counters->rest;
  const std::int64_t lists = whole_batch || batch.leavers == nullptr ? 0 : region_count;
  std::int64_t next_lists = first;  // 32 of them
  std::int64_t first_list = 0;
  std::uint32_t left = 0;  // in list first_list + lane
  unsigned some = 0;       // lists of these 32 that are still to be gone through
  while (true) {
    while (first >= count) {
      for (; some == 0; next_lists += step) {
        step = warps * 32;
        if (next_lists >= lists) return;
        first_list = next_lists;
        left = first_list + lane < lists ? batch.leavers[first_list + lane] : 0;
        some = __ballot_sync(kAllLanes, left != 0);
      }
      const int source = __ffs(some) - 1;
      some &= some - 1;
      const std::uint64_t offset = batch.regions.offset(static_cast<std::uint32_t>(first_list) + source, 0);
      items = batch.regions.items + offset;
      positions = batch.regions.positions == nullptr ? nullptr : batch.regions.positions + offset;
      count = __shfl_sync(kAllLanes, left, source);
      first = 0;
      step = 32;
    }
    const std::int64_t i = first + lane;
    const bool valid = i < count;
    Item item{};
    std::uint32_t position = whole_batch ? static_cast<std::uint32_t>(i) : 0;
    if (valid) item = whole_batch ? all.load(i) : items[i];
    if (valid && !whole_batch && positions != nullptr) position = positions[i];
    body(valid, item, position);
    first += step;
  }
}

/// Of a skewed batch, which ends here, most keys are duplicates of a few. Whose value stays is open, so each block
/// stores one for a key, remembers the slot for a while, and stores no other meanwhile: stores to one word stand in
/// line.
template <class View, class Item>
__global__ void __launch_bounds__(kBlock)
    insert_left_kernel(View view, PartitionedBatch<Item> batch, BatchItems<Item> all, bool assign, bool* mask) {
  using SlotType = typename View::SlotType;
  constexpr std::uint32_t kRemembered = 256;
  __shared__ Workspace work;
  __shared__ const SlotType* assigned[kRemembered];
  for (std::uint32_t i = threadIdx.x; i < kRemembered; i += kBlock) assigned[i] = nullptr;
  __syncthreads();
  Counts counts;
  for_each_left(batch, all, view.geometry.region_count, [&](bool valid, const Item& item, std::uint32_t position) {
    typename View::Value value{};
    if constexpr (View::kHasValue) value = item.value;
    bool is_new = false;
    find_or_insert<View, true>(
        view, work.owners[threadIdx.x / 32], item.key, value, valid, counts,
        [&](SlotType* slot) {
          if (!assign) return;
          const auto* volatile* const remembered = assigned + (slot - view.slots) % kRemembered;
          if (*remembered == slot) return;
          assign_value(slot, value);
          *remembered = slot;
        },
        [&](SlotType*) { is_new = true; });
    if (valid && mask != nullptr) mask[position] = is_new;
  });
  counts.add_to(view, work);
}

template <class View, class Item>
__global__ void __launch_bounds__(kBlock)
    erase_left_kernel(View view, PartitionedBatch<Item> batch, BatchItems<Item> all, bool* mask) {
  __shared__ Workspace work;
  int erased = 0;
  for_each_left(batch, all, view.geometry.region_count, [&](bool valid, const Item& item, std::uint32_t position) {
    const bool gone = erase_one(view, work.owners[threadIdx.x / 32], item.key, valid, [](const auto&) {});
    erased += gone;
    if (valid && mask != nullptr) mask[position] = gone;
  });
  std::uint64_t* const counters[3] = {&view.control->size, &view.control->erased, nullptr};
  add_to_control(work, counters, {-erased, erased, 0});
}

/// What is left over is undecided. One thread.
template <class View, class Item>
__global__ void count_left_kernel(View view, PartitionedBatch<Item> batch, std::int64_t keys) {
  const PartitionCounters& counters = *batch.rest.counters;
  if (counters.overflow != 0) view.control->absent = 0;
  view.control->undecided = counters.overflow != 0 ? keys : view.control->undecided + counters.rest;
}

}  // namespace gpuhash::cuda
