#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/batch.cuh"
#include "cuda/split/letter.cuh"
#include "shared/hot_keys.hpp"
#include "shared/sample_slots.hpp"
#include "table/splitter.hpp"

namespace gpuhash::cuda {

inline constexpr unsigned kSampleBlock = 1024;

/// In one block: tells the host how many of a sample's keys repeat others, and how often one key comes, and lists those
/// that are hot.
template <class Key>
__global__ void __launch_bounds__(kSampleBlock)
    sample_kernel(KeyBatch keys, bool whole, std::uint64_t seed, HotKeys<Key>* hot, CountsMailbox::Letter* letter,
                  std::uint64_t number) {
  using Hot = HotKeys<Key>;
  constexpr int kPositionBits = 12;
  static_assert(Sample::kKeys == 1 << kPositionBits);
  __shared__ std::uint32_t slots[SampleSlots::kSlots];
  __shared__ std::uint32_t hottest[kHotSlots];  // how often it comes << kPositionBits | one of its positions
  __shared__ std::int64_t told[2];
  __shared__ int distinct;
  __shared__ int most;
  for (unsigned at = threadIdx.x; at < SampleSlots::kSlots; at += kSampleBlock) slots[at] = 0;
  if (threadIdx.x < kHotSlots) hottest[threadIdx.x] = 0;
  if (threadIdx.x == 0) distinct = most = 0;
  __syncthreads();
  constexpr int kEach = static_cast<int>(Sample::kKeys / kSampleBlock);
  const std::int64_t step = keys.count / Sample::kKeys;
  const auto key_at = [&](std::int64_t i) { return load_key<Key>(keys, i * step, whole); };
  std::uint64_t hashes[kEach];
  std::uint32_t found[kEach];  // slots
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    hashes[r] = hash_key(key_at(threadIdx.x + std::int64_t{r} * kSampleBlock), seed);
    const SampleSlots::Place place(hashes[r]);
    for (found[r] = place.home;; found[r] = SampleSlots::next(found[r])) {
      const std::uint32_t there = atomicCAS(&slots[found[r]], 0, place.empty() + 1);
      if (there == 0) break;
      if (!place.is_mine(there)) continue;
      atomicAdd(&slots[found[r]], 1);
      break;
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const auto count = static_cast<std::uint32_t>(SampleSlots::count(slots[found[r]]));
    if (count >= Hot::kLeastInSample)
      atomicMax(&hottest[Hot::slot_of(hashes[r])], count << kPositionBits | (threadIdx.x + r * kSampleBlock));
  }
  int mine = 0;
  int often = 0;
  for (unsigned at = threadIdx.x; at < SampleSlots::kSlots; at += kSampleBlock) {
    mine += slots[at] != 0;
    often = max(often, static_cast<int>(SampleSlots::count(slots[at])));
  }
  atomicAdd(&distinct, mine);
  atomicMax(&most, often);
  __syncthreads();
  if (threadIdx.x < kHotSlots) {
    const std::uint32_t entry = hottest[threadIdx.x];
    hot->keys[threadIdx.x] = key_at(entry & ((1u << kPositionBits) - 1));  // any key, where there is none
    hot->used[threadIdx.x] = entry != 0;
  }
  if (threadIdx.x >= 32) return;
  if (threadIdx.x == 0) {
    told[0] = Sample::kKeys - distinct;
    told[1] = most;
  }
  __syncwarp();
  send_letter(letter, number, 2, told);
}

}  // namespace gpuhash::cuda
