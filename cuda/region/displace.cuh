#pragma once

#include <cstdint>

#include "cuda/region/shared_region.cuh"
#include "shared/layout.hpp"
#include "shared/probe_sequence.hpp"

namespace gpuhash::cuda {

template <class View>
__device__ __forceinline__ std::uint32_t count_empty(const SharedRegion<View>& region, std::uint32_t bucket) {
  std::uint32_t count = 0;
#pragma unroll
  for (std::uint32_t s = 0; s < View::kSlots; ++s)
    count += region.key(SharedRegion<View>::index_of(bucket, s)) == empty_key<typename View::Key>();
  return count;
}

/// Puts a key into an empty slot of the bucket; its place + 1, or 0 where other threads have filled the bucket.
template <class View>
__device__ __forceinline__ std::uint32_t claim_in_region(SharedRegion<View>& region, std::uint32_t bucket,
                                                         const typename View::Key& key) {
  constexpr auto kEmpty = empty_key<typename View::Key>();
#pragma unroll
  for (std::uint32_t s = 0; s < View::kSlots; ++s) {
    const std::uint32_t at = SharedRegion<View>::index_of(bucket, s);
    if (region.key(at) == kEmpty && region.swap_key(at, kEmpty, key) == kEmpty) return at + 1;
  }
  return 0;
}

/// Puts a new key into its full bucket, where one of the keys there can move on to that key's next bucket; its place
/// + 1, or 0 where none can. For a key whose filter bit is not set, so that it lies nowhere behind; by the one thread
/// that has taken the bucket.
template <class View>
__device__ __forceinline__ std::uint32_t displace_in_region(SharedRegion<View>& region, std::uint32_t first_bucket,
                                                            std::uint32_t bucket, const typename View::Key& key,
                                                            const Geometry& geometry, int& filter_bits) {
  using Key = typename View::Key;
  using Region = SharedRegion<View>;
  constexpr std::uint32_t kMovableHops = 4;  // a key further from home stays
  constexpr std::uint32_t kEnough = 2;       // empty slots: no need to look for a bucket with more
  while (true) {
    std::uint32_t most_empty = 0;
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    std::uint8_t bit = 0;
#pragma unroll 1
    for (std::uint32_t s = 0; s < View::kSlots && most_empty < kEnough; ++s) {
      const std::uint32_t at = Region::index_of(bucket, s);
      Probe<Key> resident(region.key(at), geometry);
      if (resident.bucket() - first_bucket >= geometry.region_buckets) continue;
      while (resident.bucket() - first_bucket != bucket && resident.hop() < kMovableHops) resident.next(geometry);
      if (resident.bucket() - first_bucket != bucket) continue;
      resident.next(geometry);
      const std::uint32_t empty = count_empty(region, resident.bucket() - first_bucket);
      if (empty <= most_empty) continue;
      most_empty = empty;
      from = at;
      to = resident.bucket() - first_bucket;
      bit = resident.filter_bit();
    }
    if (most_empty == 0) return 0;
    const std::uint32_t claimed = claim_in_region(region, to, region.key(from));
    if (claimed == 0) continue;
    filter_bits += region.set_filter(bucket, bit);
    if constexpr (View::kHasValue) {
      // An exchange, for a caller may rely on what empty slots hold.
      const auto value = region.values[from];
      region.values[from] = region.values[claimed - 1];
      region.values[claimed - 1] = value;
    }
    region.exchange_key(from, key);
    return from + 1;
  }
}

}  // namespace gpuhash::cuda
