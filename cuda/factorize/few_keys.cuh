#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/factorize/key_source.cuh"
#include "cuda/factorize/rank_firsts.cuh"
#include "shared/first_occurrence.hpp"
#include "shared/hash.hpp"

/// So few keys that one block numbers them: its table lies in shared memory, and a launch is what it costs, where a
/// table in global memory takes two, and three fills.
namespace gpuhash::cuda {

inline constexpr unsigned kFewBlock = 1024;
inline constexpr unsigned kFewPerThread = 4;
inline constexpr unsigned kFewKeys = kFewBlock * kFewPerThread;
static_assert(kFewKeys == 4096, "Tuning::one_block_keys may be no more");

/// Those of thread t are at t, t + kFewBlock and so on.
__device__ __forceinline__ unsigned few_position(unsigned k) { return k * kFewBlock + threadIdx.x; }

/// ranks [ceil(n / 32)]; links [n] or null: of what is no first occurrence, the first one. *distinct: how many there
/// are. One block of kFewBlock threads.
///
/// A slot of the table holds the least position of a key, with which other keys are compared: every key is legal. When
/// all are inserted, a position that is in its key's slot is a first occurrence.
template <class Key>
__global__ void __launch_bounds__(kFewBlock)
    number_few_kernel(KeySource<Key> batch, unsigned count, std::uint64_t seed, Rank<std::uint32_t>* ranks,
                      std::uint32_t* links, unsigned long long* distinct) {
  constexpr unsigned kSlots = 2 * kFewKeys;
  constexpr unsigned kWords = kFewKeys / 32;
  constexpr unsigned kVacant = ~0u;
  __shared__ unsigned slots[kSlots];
  __shared__ unsigned bits[kWords];
  for (unsigned s = threadIdx.x; s < kSlots; s += kFewBlock) slots[s] = kVacant;
  Key keys[kFewPerThread];
#pragma unroll
  for (unsigned k = 0; k < kFewPerThread; ++k)
    if (few_position(k) < count) keys[k] = batch[few_position(k)];
  __syncthreads();

  unsigned slot_of[kFewPerThread];
#pragma unroll
  for (unsigned k = 0; k < kFewPerThread; ++k) {
    const unsigned i = few_position(k);
    if (i >= count) continue;
    auto slot = static_cast<unsigned>(multiply_high(hash_key(keys[k], seed), std::uint64_t{kSlots}));
    for (;; slot = (slot + 1) % kSlots) {
      const unsigned seen = atomicCAS(slots + slot, kVacant, i);
      if (seen == kVacant) break;
      if (!(batch[seen] == keys[k])) continue;
      if (seen > i) atomicMin(slots + slot, i);
      break;
    }
    slot_of[k] = slot;
  }
  __syncthreads();

#pragma unroll
  for (unsigned k = 0; k < kFewPerThread; ++k) {
    const unsigned i = few_position(k);
    const unsigned first = i < count ? slots[slot_of[k]] : kVacant;
    const unsigned word = __ballot_sync(~0u, first == i);
    if (threadIdx.x % 32 == 0) bits[i / 32] = word;
    if (links != nullptr && i < count && first != i) links[i] = first;
  }
  __syncthreads();

  const unsigned w = threadIdx.x;
  const unsigned word = w < kWords ? bits[w] : 0;
  unsigned all = 0;
  const unsigned before = sum_before(static_cast<unsigned>(__popc(word)), all);
  if (w < (count + 31) / 32) ranks[w] = {before, word};
  if (w == 0) *distinct = all;
}

}  // namespace gpuhash::cuda
