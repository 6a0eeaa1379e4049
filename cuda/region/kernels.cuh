#pragma once

#include <cstdint>

#include "cuda/partition/partition.cuh"
#include "cuda/probe.cuh"
#include "cuda/region/chunk.cuh"
#include "cuda/region/erase.cuh"
#include "cuda/region/insert.cuh"
#include "cuda/region/left.cuh"
#include "cuda/region/shared_region.cuh"
#include "table/orders.hpp"

/// One block of threads per region: the region's slots come into shared memory in one stream, the region's part of a
/// partitioned batch is worked off there, and the slots go back in one stream.
///
/// One thread walks one key's probe sequence. Keys whose walk would leave the region, which are few, and stray keys are
/// *leavers*: they are written back to the front of the region's list, and a kernel that goes the direct way takes them
/// from there afterwards. A walk that leaves its region does so for all duplicates of its key (inserting frees no slot,
/// erasing leaves full buckets looking full), so both ways never store one key twice.
namespace gpuhash::cuda {

enum class RegionWork : std::uint8_t {
  kInsert,
  kErase,
  kCount,  // how many keys would be new: changes nothing but control->absent and control->undecided
};

/// A mask that says what was new, or erased. It is filled with what is expected of most keys before, so that few of its
/// bytes have to be written at random.
struct ExpectedMask {
  bool* data;  // [n] or null
  bool expected;

  __device__ __forceinline__ void set(std::uint32_t position, bool value) const {
    if (value != expected) data[position] = value;
  }
};

template <class View, class Item, RegionWork kWork>
__global__ void __launch_bounds__(kRegionBlock, 3)
    region_kernel(View view, PartitionedBatch<Item> batch, Slots slots, bool assign, ExpectedMask mask) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& region = *reinterpret_cast<SharedRegion<View>*>(memory);
  __shared__ Workspace work;
  __shared__ Backlog backlog;

  const std::uint32_t r = blockIdx.x;
  const std::uint32_t count = batch.rest.overflown() ? 0 : batch.regions.count(r);
  if (count == 0) {
    if (slots == Slots::kBlank) store_empty_region(region, view, r);
    return;
  }
  const Geometry& geometry = view.geometry;
  const std::uint32_t first_bucket = r * geometry.region_buckets;
  const std::uint64_t first_item = batch.regions.offset(r, 0);
  if (slots != Slots::kFilled)
    make_region_empty(region);
  else
    load_region(region, view, first_bucket);

  int changed = 0;
  int filter_bits = 0;
  [[maybe_unused]] int undecided = 0;
  std::uint32_t all_left = 0;
  for (std::uint32_t base = 0; base < count; base += kChunk) {
    Item* const items = batch.regions.items + first_item + base;
    std::uint32_t* const positions = batch.regions.positions + first_item + base;
    const std::uint32_t length = min(count - base, kChunk);
    const auto load = [&](std::uint32_t i, Item& item) {
      item = items[i];
      return true;
    };
    std::uint32_t left;
    if constexpr (kWork == RegionWork::kErase) {
      left = erase_chunk<View, Item>(region, backlog, first_bucket, geometry, length, load,
                                     [&](std::uint32_t i, bool erased) {
                                       changed -= erased;
                                       if (mask.data != nullptr) mask.set(positions[i], erased);
                                     });
    } else {
      left = insert_in_rounds<View>(region, backlog, first_bucket, geometry, length, filter_bits, load,
                                    [&](std::uint32_t i, const Item& item, Outcome outcome, std::uint32_t at) {
                                      if constexpr (View::kHasValue)
                                        if (assign || outcome == Outcome::kNew) region.values[at] = item.value;
                                      changed += outcome == Outcome::kNew;
                                      if (mask.data != nullptr) mask.set(positions[i], outcome == Outcome::kNew);
                                    });
    }
    if constexpr (kWork == RegionWork::kCount) {
      if (threadIdx.x == 0) undecided += static_cast<int>(left);
    } else {
      keep_leavers(batch, backlog, first_item, base, all_left, mask.data != nullptr);
      all_left += left;
    }
    __syncthreads();
  }
  if constexpr (kWork == RegionWork::kCount) {
    std::uint64_t* const counters[3] = {&view.control->absent, &view.control->undecided, nullptr};
    add_to_control(work, counters, {changed, undecided, 0});
  } else {
    if (threadIdx.x == 0) batch.leavers[r] = all_left;
    store_region(region, view, first_bucket);
    std::uint64_t* const counters[3] = {
        &view.control->size, kWork == RegionWork::kErase ? &view.control->erased : &view.control->filter_bits, nullptr};
    add_to_control(work, counters, {changed, kWork == RegionWork::kErase ? -changed : filter_bits, 0});
  }
}

}  // namespace gpuhash::cuda
