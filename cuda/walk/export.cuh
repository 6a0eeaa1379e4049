#pragma once

#include "cuda/walk/probe.cuh"
#include "table/executor.hpp"

/// Live slots in their order, in three kernels: count per range of slots, sum, write. An atomic counter
/// would do it in one, but keys() and values() would then come in different orders.
namespace gpuhash::cuda {

inline constexpr unsigned kExportBlocks = 1024;
inline constexpr unsigned kExportThreads = 256;

struct Range {
  std::int64_t begin, end;
};

/// The slots of one block: a multiple of the block's threads, but for the end.
__device__ __forceinline__ Range export_range(std::int64_t slots) {
  const std::int64_t rounds = (slots + kExportBlocks * kExportThreads - 1) / (kExportBlocks * kExportThreads);
  const std::int64_t begin = min(slots, rounds * kExportThreads * blockIdx.x);
  return {begin, min(slots, begin + rounds * kExportThreads)};
}

/// Calls visit(slot index, live, lives before it in the round, lives of the round) round by round.
template <class View, class Visit>
__device__ __forceinline__ void for_each_round(const View& view, Visit visit) {
  __shared__ int warp_lives[kExportThreads / 32];
  const Range range = export_range(static_cast<std::int64_t>(view.slot_count()));
  for (std::int64_t base = range.begin; base < range.end; base += kExportThreads) {
    const std::int64_t at = base + threadIdx.x;
    const bool live = at < range.end && is_live(view.slots[at].key);
    const unsigned lives = __ballot_sync(kAllLanes, live);
    if (threadIdx.x % 32 == 0) warp_lives[threadIdx.x / 32] = __popc(lives);
    __syncthreads();
    int before = __popc(lives & ((1u << threadIdx.x % 32) - 1));
    int total = 0;
    for (unsigned warp = 0; warp < kExportThreads / 32; ++warp) {
      if (warp < threadIdx.x / 32) before += warp_lives[warp];
      total += warp_lives[warp];
    }
    visit(at, live, before, total);
    __syncthreads();
  }
}

template <class View>
__global__ void __launch_bounds__(kExportThreads) count_live_kernel(View view, std::int64_t* counts) {
  std::int64_t sum = 0;
  for_each_round(view, [&](std::int64_t, bool, int, int total) { sum += total; });
  if (threadIdx.x == 0) counts[blockIdx.x] = sum;
}

/// counts[b] becomes the sum of those before b. One block of kExportBlocks threads.
static __global__ void sum_counts_kernel(std::int64_t* counts) {
  __shared__ std::int64_t sums[kExportBlocks];
  const unsigned t = threadIdx.x;
  const std::int64_t mine = counts[t];
  sums[t] = mine;
  __syncthreads();
  for (unsigned step = 1; step < kExportBlocks; step *= 2) {
    const std::int64_t left = t >= step ? sums[t - step] : 0;
    __syncthreads();
    sums[t] += left;
    __syncthreads();
  }
  counts[t] = sums[t] - mine;
}

struct ExportTarget {
  void* keys;
  std::uint32_t key_bytes;
  void* values;  // scalars
  std::uint32_t value_bytes;
  std::int64_t* rows;
};

template <class View>
__global__ void __launch_bounds__(kExportThreads)
    export_kernel(View view, const std::int64_t* offsets, ExportTarget target) {
  std::int64_t offset = offsets[blockIdx.x];
  const auto stray = static_cast<std::int64_t>(view.slot_count() - View::kSlots);
  for_each_round(view, [&](std::int64_t at, bool live, int before, int total) {
    if (live) {
      const auto slot = view.slots[at];
      const std::int64_t to = offset + before;
      if (target.keys != nullptr) store_bytes(target.keys, to, target.key_bytes, key_of_slot(slot.key, at >= stray));
      if constexpr (View::kHasValue) {
        if (target.values != nullptr) store_bytes(target.values, to, target.value_bytes, slot.value);
        if (target.rows != nullptr) target.rows[to] = static_cast<std::int64_t>(slot.value);
      }
    }
    offset += total;
  });
}

}  // namespace gpuhash::cuda
