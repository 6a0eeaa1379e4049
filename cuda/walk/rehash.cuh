#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/batch.cuh"
#include "cuda/walk/insert.cuh"
#include "cuda/walk/probe.cuh"

/// Moving a table's slots into another table, key by key, and its rows. Rehashing region by region:
/// cuda/region/rehash.cuh.
namespace gpuhash::cuda {

/// Inserts the slots of `from` into `to`. The order of the buckets follows the order of the hashes in both, so that
/// neighbours stay neighbours and memory is nearly streamed.
template <class View>
__global__ void __launch_bounds__(kBlock) rehash_kernel(View from, View to) {
  using Key = typename View::Key;
  using Value = typename View::Value;
  __shared__ Workspace work;
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const auto slots = static_cast<std::int64_t>(from.slot_count());
  typename View::SlotType slot{};
  slot.key = empty_key<Key>();
  if (i < slots) slot = from.slots[i];
  const bool live = is_live(slot.key);
  Value value{};
  if constexpr (View::kHasValue) value = slot.value;
  const Key key = key_of_slot(slot.key, i >= slots - static_cast<std::int64_t>(View::kSlots));
  Counts counts;
  const auto ignore = [](typename View::SlotType*) {};
  find_or_insert<View, false>(to, work.owners[threadIdx.x / 32], key, value, live, counts, ignore, ignore);
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
