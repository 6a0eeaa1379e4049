#pragma once

#include <cstdint>

#include "cuda/region/chunk.cuh"
#include "cuda/region/shared_region.cuh"
#include "shared/layout.hpp"
#include "shared/probe_sequence.hpp"

namespace gpuhash::cuda {

enum class Erasure : std::uint8_t { kErased, kAbsent, kLeft };

/// As erase_kernel in cuda/walk/erase.cuh; kErased: by this thread.
template <class View>
__device__ __forceinline__ Erasure erase_in_region(SharedRegion<View>& region, std::uint32_t first_bucket,
                                                   Probe<typename View::Key> probe, const Geometry& geometry) {
  using Key = typename View::Key;
  while (true) {
    const std::uint32_t bucket = probe.bucket() - first_bucket;
    const SharedSeen seen = look_in_region(region, bucket, probe.stored());
    if (seen.hit != 0) {
      const Key mark = mark_of_erased<Key>(seen.empty != 0);
      if (region.swap_key(seen.hit - 1, probe.stored(), mark) != probe.stored()) return Erasure::kAbsent;
      if constexpr (View::kHasValue) region.values[seen.hit - 1] = empty_value<typename View::Value>();
      return Erasure::kErased;
    }
    const auto filter_has_key = [&] { return region.filter_has(bucket, probe.filter_bit()); };
    if (search_ends(seen.empty != 0, filter_has_key)) return Erasure::kAbsent;
    if (probe.at_last_hop_in_region()) return Erasure::kLeft;
    probe.next(geometry);
  }
}

/// Erases the keys of a chunk; done(i, erased). As insert_in_rounds() in all else, but each thread walks to the end:
/// few walks are long, for the filters stop those of absent keys.
template <class View, class Item, class Load, class Done>
__device__ __forceinline__ std::uint32_t erase_chunk(SharedRegion<View>& region, Backlog& backlog,
                                                     std::uint32_t first_bucket, const Geometry& geometry,
                                                     std::uint32_t count, Load load, Done done) {
  backlog.reset();
  __syncthreads();
  for_each_ahead<Item>(count, load, [&](std::uint32_t i, const Item& item) {
    const Probe<typename View::Key> probe(item.key, geometry);
    Erasure erasure = Erasure::kLeft;
    if (probe.bucket() != geometry.bucket_count) erasure = erase_in_region(region, first_bucket, probe, geometry);
    if (erasure == Erasure::kLeft)
      backlog.push_leaver(i);
    else
      done(i, erasure == Erasure::kErased);
  });
  __syncthreads();
  return backlog.leavers;
}

}  // namespace gpuhash::cuda
