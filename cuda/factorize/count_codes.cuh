#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

/// How often each of few codes comes: each block counts in shared memory, and adds its sums to those of all.
namespace gpuhash::cuda {

inline constexpr unsigned kCountBlock = 1024;

/// Of so many codes of `distinct` kinds; 0 where every code had better be added to its sum by itself: there are more
/// kinds than a block has counters for, or so few codes of each that adding up the blocks' sums would not be less work.
/// Few codes of any kinds are counted by one block: it is one launch, and that is what they cost.
inline unsigned count_blocks(std::int64_t codes, std::int64_t distinct) {
  constexpr std::int64_t kMostCounters = (48 << 10) / sizeof(std::uint32_t);  // what any kernel may have
  constexpr std::int64_t kFewCodes = 4096;
  static_assert(kFewCodes <= kMostCounters);
  constexpr std::int64_t kCodesPerCounter = 8;
  constexpr std::int64_t kLeast = 66;  // half of the multiprocessors of an H100 or H200
  constexpr std::int64_t kMost = 4 * kLeast;
  if (codes <= kFewCodes) return 1;
  if (distinct > kMostCounters) return 0;
  const std::int64_t blocks = std::min(codes / (kCodesPerCounter * std::max<std::int64_t>(distinct, 1)), kMost);
  return blocks < kLeast ? 0 : static_cast<unsigned>(blocks);
}

/// sums[c] grows by the number of codes that are c, for c below `distinct`; codes of -1 are passed over. With
/// `distinct` counters in shared memory.
static __global__ void __launch_bounds__(kCountBlock)
    count_codes_kernel(const std::int64_t* codes, std::int64_t count, unsigned distinct, unsigned long long* sums) {
  extern __shared__ std::uint32_t counters[];
  for (unsigned c = threadIdx.x; c < distinct; c += kCountBlock) counters[c] = 0;
  __syncthreads();
  const std::int64_t step = std::int64_t{gridDim.x} * kCountBlock;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kCountBlock + threadIdx.x; i < count; i += step) {
    const long long code = __ldcs(reinterpret_cast<const long long*>(codes) + i);
    if (code >= 0) atomicAdd(counters + code, 1u);
  }
  __syncthreads();
  for (unsigned c = threadIdx.x; c < distinct; c += kCountBlock)
    if (counters[c] != 0) atomicAdd(sums + c, static_cast<unsigned long long>(counters[c]));
}

}  // namespace gpuhash::cuda
