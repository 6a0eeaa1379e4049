#pragma once

#include <cstdint>

#include "cuda/partition/partition.cuh"
#include "cuda/region/chunk.cuh"
#include "cuda/region/insert.cuh"
#include "cuda/region/shared_region.cuh"
#include "cuda/walk/probe.cuh"

namespace gpuhash::cuda {

/// Builds one region of `to` per block from what `from` holds for it. The order of the buckets follows the order of the
/// hashes in both tables, so those keys lie in one region of `from`, or in a few neighbours.
///
/// Keys that lie outside of their region of `from`, or would in `to`, and stray keys go to the rest.
template <class View>
__global__ void __launch_bounds__(kRegionBlock, 3)
    rehash_region_kernel(View from, View to, Rest<typename View::SlotType> rest) {
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& region = *reinterpret_cast<SharedRegion<View>*>(memory);
  __shared__ Workspace work;
  __shared__ Backlog backlog;
  if (rest.overflown()) return;

  const std::uint32_t r = blockIdx.x;
  const std::uint32_t first_bucket = r * to.geometry.region_buckets;
  make_region_empty(region);
  __syncthreads();
  // Hashes [low, high] belong to region r of `to`.
  const std::uint64_t regions = to.geometry.region_count;
  const auto low = static_cast<std::uint32_t>(((std::uint64_t{r} << 32) + regions - 1) / regions);
  const auto high = static_cast<std::uint32_t>((((std::uint64_t{r} + 1) << 32) + regions - 1) / regions - 1);
  const std::uint32_t old_regions = from.geometry.region_count;
  int inserted = 0;
  int filter_bits = 0;

  for (std::uint32_t g = multiply_high(low, old_regions); g <= multiply_high(high, old_regions); ++g) {
    // Of the blocks that see this region of `from`, the first takes care of its guests.
    const auto old_low = static_cast<std::uint32_t>(((std::uint64_t{g} << 32) + old_regions - 1) / old_regions);
    const bool first_to_see = multiply_high(old_low, to.geometry.region_count) == r;
    const std::uint32_t slots = from.geometry.region_buckets * View::kSlots;
    for (std::uint32_t base = 0; base < slots; base += kChunk) {
      const SlotType* const items = from.slots + std::uint64_t{g} * slots + base;
      const auto load = [&](std::uint32_t i, SlotType& item) {
        item = items[i];
        if (!is_live(item.key)) return false;
        const Probe<Key> probe(item.key, to.geometry);
        if (probe.home_region(from.geometry) != g) {
          if (first_to_see) rest.push_one(item);
          return false;
        }
        return probe.home_region(to.geometry) == r;
      };
      const std::uint32_t length = min(slots - base, kChunk);
      const std::uint32_t left =
          insert_in_rounds<View, true>(region, backlog, first_bucket, to.geometry, length, filter_bits, load,
                                       [&](std::uint32_t, const SlotType& slot, Outcome outcome, std::uint32_t at) {
                                         if constexpr (View::kHasValue) region.values[at] = slot.value;
                                         inserted += outcome == Outcome::kNew;
                                       });
      if (left != 0) {
        for (std::uint32_t i = threadIdx.x; i < kChunk; i += kRegionBlock) {
          const bool leaves = backlog.is_leaver(i);
          rest.push(leaves, leaves ? items[i] : SlotType{}, 0);
        }
      }
      __syncthreads();
    }
  }
  if (r == 0) {
    SlotType slot{};
    slot.key = empty_key<Key>();
    if (threadIdx.x < View::kSlots)
      slot = from.slots[std::uint64_t{from.geometry.bucket_count} * View::kSlots + threadIdx.x];
    const bool live = is_live(slot.key);
    if (live) slot.key = key_of_slot(slot.key, true);
    rest.push(live, slot, 0);
  }
  __syncthreads();
  store_region(region, to, first_bucket);
  std::uint64_t* const counters[3] = {&to.control->size, &to.control->filter_bits, nullptr};
  add_to_control(work, counters, {inserted, filter_bits, 0});
}

}  // namespace gpuhash::cuda
