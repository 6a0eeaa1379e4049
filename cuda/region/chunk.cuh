#pragma once

#include <cstdint>

#include "cuda/region/shared_region.cuh"
#include "shared/layout.hpp"

/// How a block takes its items: a chunk at a time, each thread's next item ahead, and a backlog of what is not done.
namespace gpuhash::cuda {

/// Items that a block works on at a time.
inline constexpr std::uint32_t kChunk = 8 * kRegionBlock;

/// The items of a chunk that are not done at once, by their index.
struct Backlog {
  static constexpr std::uint32_t kBucketWords = kRegionBytes / 64 / 32;

  std::uint16_t items[kChunk];
  std::uint32_t pending;
  std::uint32_t leavers;
  unsigned leaves[kChunk / 32];  // a bit per item
  unsigned taken[kBucketWords];  // a bit per bucket: an item of this round makes room there
  unsigned stuck[kBucketWords];  // a bit per bucket: no key of it can move any more

  /// All threads of the block call it, and wait for each other afterwards.
  __device__ __forceinline__ void reset() {
    if (threadIdx.x == 0) pending = leavers = 0;
    if (threadIdx.x < kChunk / 32) leaves[threadIdx.x] = 0;
    if (threadIdx.x < kBucketWords) taken[threadIdx.x] = stuck[threadIdx.x] = 0;
  }
  __device__ __forceinline__ void push(std::uint32_t index) {
    items[atomicAdd(&pending, 1u)] = static_cast<std::uint16_t>(index);
  }
  __device__ __forceinline__ void push_leaver(std::uint32_t index) {
    atomicOr(&leaves[index / 32], 1u << (index % 32));
    atomicAdd(&leavers, 1u);
  }
  __device__ __forceinline__ bool is_leaver(std::uint32_t index) const {
    return leaves[index / 32] >> (index % 32) & 1;
  }
  __device__ __forceinline__ std::uint32_t leavers_before(std::uint32_t index) const {
    std::uint32_t count = __popc(leaves[index / 32] & ((1u << (index % 32)) - 1));
    for (std::uint32_t word = 0; word < index / 32; ++word) count += __popc(leaves[word]);
    return count;
  }

  /// True for one item per bucket until end_round(), which all threads call.
  __device__ __forceinline__ bool take(std::uint32_t bucket) {
    const unsigned bit = 1u << (bucket % 32);
    return (atomicOr(&taken[bucket / 32], bit) & bit) == 0;
  }
  __device__ __forceinline__ void end_round() {
    if (threadIdx.x < kBucketWords) taken[threadIdx.x] = 0;
  }
  __device__ __forceinline__ void set_stuck(std::uint32_t bucket) {
    atomicOr(&stuck[bucket / 32], 1u << (bucket % 32));
  }
  __device__ __forceinline__ bool is_stuck(std::uint32_t bucket) const {
    return stuck[bucket / 32] >> (bucket % 32) & 1;
  }
};

/// Calls body(i, item) for those of the block's items [0, count) for which load(i, item) is true, and loads each
/// thread's next one ahead.
template <class Item, class Load, class Body>
__device__ __forceinline__ void for_each_ahead(std::uint32_t count, Load load, Body body) {
  Item item{};
  bool there = threadIdx.x < count && load(threadIdx.x, item);
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < count; i += kRegionBlock) {
    Item ahead{};
    const bool more = i + kRegionBlock < count && load(i + kRegionBlock, ahead);
    if (there) body(i, item);
    item = ahead;
    there = more;
  }
}

}  // namespace gpuhash::cuda
