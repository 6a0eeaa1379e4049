#pragma once

#include <cstdint>

#include "shared/layout.hpp"

/// A region in the shared memory of a block: looking into it, and moving it there and back.
namespace gpuhash::cuda {

inline constexpr unsigned kRegionBlock = 512;

/// A region in shared memory, keys and values apart so that lanes that read keys use all banks.
template <class View>
struct SharedRegion {
  using Key = typename View::Key;
  using Value = typename View::Value;
  static constexpr std::uint32_t kSlots = kRegionBytes / sizeof(typename View::SlotType);
  static constexpr std::uint32_t kBucketsPerRow =
      128 / (View::kSlots * sizeof(Key)) > 0 ? 128 / (View::kSlots * sizeof(Key)) : 1;

  Key keys[kSlots];
  Value values[View::kHasValue ? kSlots : 1];
  unsigned filters[View::kMaxRegionBuckets / 4 + 1];

  /// Where a slot's key and value lie: rotated within the bucket, since lanes that look at the same slot of different
  /// buckets would otherwise meet in a few banks.
  __device__ __forceinline__ static std::uint32_t index_of(std::uint32_t bucket, std::uint32_t slot) {
    return bucket * View::kSlots + ((slot ^ (bucket / kBucketsPerRow)) & (View::kSlots - 1));
  }
  __device__ __forceinline__ Key key(std::uint32_t at) const { return static_cast<const volatile Key*>(keys)[at]; }
  __device__ __forceinline__ bool filter_has(std::uint32_t bucket, std::uint8_t bit) const {
    return static_cast<const volatile std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(filters))[bucket] & bit;
  }
  /// True if the bit was not set before.
  __device__ __forceinline__ bool set_filter(std::uint32_t bucket, std::uint8_t bit) {
    const unsigned mask = static_cast<unsigned>(bit) << (8 * (bucket & 3));
    return (atomicOr(&filters[bucket / 4], mask) & mask) == 0;
  }
  __device__ __forceinline__ void exchange_key(std::uint32_t at, Key key) {
    if constexpr (sizeof(Key) == 4)
      atomicExch(&keys[at], key);
    else
      atomicExch(reinterpret_cast<unsigned long long*>(&keys[at]), static_cast<unsigned long long>(key));
  }
  __device__ __forceinline__ Key swap_key(std::uint32_t at, Key expected, Key desired) {
    if constexpr (sizeof(Key) == 4)
      return atomicCAS(&keys[at], expected, desired);
    else
      return atomicCAS(reinterpret_cast<unsigned long long*>(&keys[at]), static_cast<unsigned long long>(expected),
                       static_cast<unsigned long long>(desired));
  }
};

/// What a thread sees in one bucket.
struct SharedSeen {
  std::uint32_t hit;     // index + 1, 0: none
  std::uint32_t empty;   // bit per slot
  std::uint32_t erased;  // bit per slot
};

template <class View>
__device__ __forceinline__ SharedSeen look_in_region(const SharedRegion<View>& region, std::uint32_t bucket,
                                                     const typename View::Key& wanted) {
  using Key = typename View::Key;
  SharedSeen seen{0, 0, 0};
#pragma unroll
  for (std::uint32_t s = 0; s < View::kSlots; ++s) {
    const std::uint32_t at = SharedRegion<View>::index_of(bucket, s);
    const Key key = region.key(at);
    if (key == wanted) seen.hit = at + 1;
    if (key == empty_key<Key>()) seen.empty |= 1u << s;
    if (key == erased_key<Key>()) seen.erased |= 1u << s;
  }
  return seen;
}

/// Slots as they are moved, 16 bytes at a time.
template <class View>
struct alignas(16) SlotWord {
  static constexpr std::uint32_t kSlots = 16 / sizeof(typename View::SlotType);
  typename View::SlotType slots[kSlots];
};

/// Calls body(word index, bucket, first slot) for the block's share of a region's words.
template <class View, class Body>
__device__ __forceinline__ void for_each_word(std::uint32_t buckets, Body body) {
  constexpr std::uint32_t kWordsPerBucket = View::kBucketBytes / 16;
  for (std::uint32_t w = threadIdx.x; w < buckets * kWordsPerBucket; w += kRegionBlock)
    body(w, w / kWordsPerBucket, w % kWordsPerBucket * SlotWord<View>::kSlots);
}

/// `vacant`: the value of slots without a key, while they are in shared memory.
template <class View>
__device__ __forceinline__ void make_region_empty(SharedRegion<View>& region,
                                                  [[maybe_unused]] const typename View::Value& vacant) {
  for (std::uint32_t i = threadIdx.x; i < SharedRegion<View>::kSlots; i += kRegionBlock) {
    region.keys[i] = empty_key<typename View::Key>();
    if constexpr (View::kHasValue) region.values[i] = vacant;
  }
  for (std::uint32_t i = threadIdx.x; i < View::kMaxRegionBuckets / 4 + 1; i += kRegionBlock) region.filters[i] = 0;
}

template <class View>
__device__ __forceinline__ void make_region_empty(SharedRegion<View>& region) {
  if constexpr (View::kHasValue)
    make_region_empty(region, empty_value<typename View::Value>());
  else
    make_region_empty(region, {});
}

/// kVacant: slots without a key get the value `vacant`.
template <bool kVacant = false, class View>
__device__ __forceinline__ void load_region(SharedRegion<View>& region, const View& view, std::uint32_t first_bucket,
                                            [[maybe_unused]] const typename View::Value& vacant = {}) {
  const auto* words = reinterpret_cast<const SlotWord<View>*>(view.slots + std::uint64_t{first_bucket} * View::kSlots);
  for_each_word<View>(view.geometry.region_buckets, [&](std::uint32_t w, std::uint32_t bucket, std::uint32_t slot) {
    const SlotWord<View> word = words[w];
#pragma unroll
    for (std::uint32_t s = 0; s < SlotWord<View>::kSlots; ++s) {
      const std::uint32_t at = SharedRegion<View>::index_of(bucket, slot + s);
      region.keys[at] = word.slots[s].key;
      if constexpr (View::kHasValue)
        region.values[at] = !kVacant || is_live(word.slots[s].key) ? word.slots[s].value : vacant;
    }
  });
  auto* const filters = reinterpret_cast<std::uint8_t*>(region.filters);
  for (std::uint32_t b = threadIdx.x; b < view.geometry.region_buckets; b += kRegionBlock)
    filters[b] = view.filters[first_bucket + b];
}

/// kVacant: slots without a key get the value of empty ones back.
template <bool kVacant = false, class View>
__device__ __forceinline__ void store_region(const SharedRegion<View>& region, const View& view,
                                             std::uint32_t first_bucket) {
  auto* words = reinterpret_cast<SlotWord<View>*>(view.slots + std::uint64_t{first_bucket} * View::kSlots);
  for_each_word<View>(view.geometry.region_buckets, [&](std::uint32_t w, std::uint32_t bucket, std::uint32_t slot) {
    SlotWord<View> word;
#pragma unroll
    for (std::uint32_t s = 0; s < SlotWord<View>::kSlots; ++s) {
      const std::uint32_t at = SharedRegion<View>::index_of(bucket, slot + s);
      word.slots[s].key = region.keys[at];
      if constexpr (View::kHasValue) {
        const bool vacant = kVacant && !is_live(word.slots[s].key);
        word.slots[s].value = vacant ? empty_value<typename View::Value>() : region.values[at];
      }
    }
    words[w] = word;
  });
  const auto* const filters = reinterpret_cast<const std::uint8_t*>(region.filters);
  for (std::uint32_t b = threadIdx.x; b < view.geometry.region_buckets; b += kRegionBlock)
    view.filters[first_bucket + b] = filters[b];
}

/// Makes region `r` of the table an empty one, whatever it held.
template <class View>
__device__ __forceinline__ void store_empty_region(SharedRegion<View>& region, const View& view, std::uint32_t r) {
  make_region_empty(region);
  __syncthreads();
  store_region(region, view, r * view.geometry.region_buckets);
}

}  // namespace gpuhash::cuda
