#pragma once

#include <cstdint>

#include "shared/first_occurrence.hpp"

/// Ranks of the first bits, in three kernels: count per tile, sum, write. Those of one tile need the last one alone.
namespace gpuhash::cuda {

inline constexpr unsigned kRankBlock = 256;
inline constexpr unsigned kRankWords = 8;  // per thread
inline constexpr std::int64_t kRankTile = kRankBlock * kRankWords;
inline constexpr unsigned kSumBlock = 1024;

/// The sum of `mine` over the threads before this one, and over all threads of the block. All threads call it.
template <class Number>
__device__ __forceinline__ Number sum_before(Number mine, Number& total) {
  __shared__ Number warp_sums[32];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  Number sum = mine;
  for (unsigned step = 1; step < 32; step *= 2) {
    const Number left = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += left;
  }
  __syncthreads();  // of the call before
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  Number before = 0;
  total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  return before + sum - mine;
}

/// The bits of this thread's words, and how many there are.
__device__ __forceinline__ unsigned load_tile(const std::uint32_t* firsts, std::int64_t words, std::int64_t from,
                                              std::uint32_t (&bits)[kRankWords]) {
  unsigned sum = 0;
#pragma unroll
  for (unsigned w = 0; w < kRankWords; ++w) {
    bits[w] = from + w < words ? firsts[from + w] : 0;
    sum += __popc(bits[w]);
  }
  return sum;
}

static __global__ void __launch_bounds__(kRankBlock)
    count_firsts_kernel(const std::uint32_t* firsts, std::int64_t words, unsigned long long* sums) {
  std::uint32_t bits[kRankWords];
  const std::int64_t from = blockIdx.x * kRankTile + threadIdx.x * std::int64_t{kRankWords};
  unsigned total = 0;
  (void)sum_before(load_tile(firsts, words, from, bits), total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

/// sums[t] becomes the sum of those before t; `all` that of all. One block of kSumBlock threads.
static __global__ void __launch_bounds__(kSumBlock)
    sum_tiles_kernel(unsigned long long* sums, std::int64_t tiles, unsigned long long* all) {
  unsigned long long carry = 0;
  for (std::int64_t base = 0; base < tiles; base += kSumBlock) {
    const std::int64_t t = base + threadIdx.x;
    const unsigned long long mine = t < tiles ? sums[t] : 0;
    unsigned long long total = 0;
    const unsigned long long before = sum_before(mine, total);
    if (t < tiles) sums[t] = carry + before;
    carry += total;
  }
  if (threadIdx.x == 0) *all = carry;
}

/// sums: as sum_tiles_kernel leaves them. Or null where there is one tile, whose sum goes to `all`.
template <class Position>
__global__ void __launch_bounds__(kRankBlock)
    rank_firsts_kernel(const std::uint32_t* firsts, std::int64_t words, const unsigned long long* sums,
                       Rank<Position>* ranks, unsigned long long* all) {
  std::uint32_t bits[kRankWords];
  const std::int64_t from = blockIdx.x * kRankTile + threadIdx.x * std::int64_t{kRankWords};
  unsigned total = 0;
  auto before = static_cast<Position>(sum_before(load_tile(firsts, words, from, bits), total));
  if (sums != nullptr)
    before += static_cast<Position>(sums[blockIdx.x]);
  else if (threadIdx.x == 0)
    *all = total;
#pragma unroll
  for (unsigned w = 0; w < kRankWords; ++w) {
    if (from + w < words) ranks[from + w] = {before, bits[w]};
    before += static_cast<Position>(__popc(bits[w]));
  }
}

}  // namespace gpuhash::cuda
