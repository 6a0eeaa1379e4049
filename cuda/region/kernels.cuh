#pragma once

#include <cstdint>

#include "cuda/partition/partition.cuh"
#include "cuda/region/chunk.cuh"
#include "cuda/region/erase.cuh"
#include "cuda/region/insert.cuh"
#include "cuda/region/left.cuh"
#include "cuda/region/shared_region.cuh"
#include "cuda/walk/probe.cuh"
#include "table/orders.hpp"

/// One block of threads per region: the region's slots come into shared memory in one stream, the region's part of a
/// partitioned batch is worked off there, and the slots go back in one stream.
///
/// One thread walks one key's probe sequence. Keys whose walk would leave the region, which are few, and stray keys are
/// *leavers*: they are written back to the front of the region's list, and a kernel that goes the direct way takes them
/// from there afterwards. A walk that leaves its region does so for all duplicates of its key (inserting frees no slot,
/// erasing leaves full buckets looking full), so both ways never store one key twice.
namespace gpuhash::cuda {

/// Of keys that are there: keeps their values, or assigns them the batch's. kCount: how many keys would be new; changes
/// nothing but control->absent and control->undecided.
enum class InsertWork : std::uint8_t { kKeep, kAssign, kCount };

/// A mask that says what was new, or erased. It is filled with what is expected of most keys before, so that few of its
/// bytes have to be written at random.
struct ExpectedMask {
  bool* data;  // [n] or null
  bool expected;

  __device__ __forceinline__ void set(std::uint32_t position, bool value) const {
    if (value != expected) data[position] = value;
  }
};

template <class View>
__global__ void __launch_bounds__(kRegionBlock, 3)
    insert_region_kernel(View view, PartitionedBatch<typename View::SlotType> batch, Slots slots, InsertWork kind,
                         ExpectedMask mask) {
  using Item = typename View::SlotType;
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
  const std::uint32_t first_bucket = r * view.geometry.region_buckets;
  const std::uint64_t first_item = batch.regions.offset(r, 0);
  if (slots != Slots::kFilled)
    make_region_empty(region);
  else
    load_region(region, view, first_bucket);

  int inserted = 0;
  int filter_bits = 0;
  std::uint32_t all_left = 0;
  for (std::uint32_t base = 0; base < count; base += kChunk) {
    const Item* const items = batch.regions.items + first_item + base;
    const std::uint32_t* const positions = batch.regions.positions + first_item + base;
    const std::uint32_t left = insert_in_rounds<View>(
        region, backlog, first_bucket, view.geometry, min(count - base, kChunk), filter_bits,
        [&](std::uint32_t i, Item& item) {
          item = items[i];
          return true;
        },
        [&](std::uint32_t i, const Item& item, Outcome outcome, std::uint32_t at) {
          if constexpr (View::kHasValue)
            if (kind == InsertWork::kAssign || outcome == Outcome::kNew) region.values[at] = item.value;
          inserted += outcome == Outcome::kNew;
          if (mask.data != nullptr) mask.set(positions[i], outcome == Outcome::kNew);
        });
    if (kind != InsertWork::kCount) keep_leavers(batch, backlog, first_item, base, all_left, mask.data != nullptr);
    all_left += left;
    __syncthreads();
  }
  if (kind == InsertWork::kCount) {
    std::uint64_t* const counters[3] = {&view.control->absent, &view.control->undecided, nullptr};
    add_to_control(work, counters, {inserted, threadIdx.x == 0 ? static_cast<int>(all_left) : 0, 0});
    return;
  }
  if (threadIdx.x == 0) batch.leavers[r] = all_left;
  store_region(region, view, first_bucket);
  std::uint64_t* const counters[3] = {&view.control->size, &view.control->filter_bits, nullptr};
  add_to_control(work, counters, {inserted, filter_bits, 0});
}

template <class View>
__global__ void __launch_bounds__(kRegionBlock, 3)
    erase_region_kernel(View view, PartitionedBatch<Slot<typename View::Key, NoValue>> batch, ExpectedMask mask) {
  using Item = Slot<typename View::Key, NoValue>;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& region = *reinterpret_cast<SharedRegion<View>*>(memory);
  __shared__ Workspace work;
  __shared__ Backlog backlog;

  const std::uint32_t r = blockIdx.x;
  const std::uint32_t count = batch.rest.overflown() ? 0 : batch.regions.count(r);
  if (count == 0) return;
  const std::uint32_t first_bucket = r * view.geometry.region_buckets;
  const std::uint64_t first_item = batch.regions.offset(r, 0);
  load_region(region, view, first_bucket);

  int gone = 0;
  std::uint32_t all_left = 0;
  for (std::uint32_t base = 0; base < count; base += kChunk) {
    const Item* const items = batch.regions.items + first_item + base;
    const std::uint32_t* const positions = batch.regions.positions + first_item + base;
    const std::uint32_t left = erase_chunk<View, Item>(
        region, backlog, first_bucket, view.geometry, min(count - base, kChunk),
        [&](std::uint32_t i, Item& item) {
          item = items[i];
          return true;
        },
        [&](std::uint32_t i, bool erased) {
          gone += erased;
          if (mask.data != nullptr) mask.set(positions[i], erased);
        });
    keep_leavers(batch, backlog, first_item, base, all_left, mask.data != nullptr);
    all_left += left;
    __syncthreads();
  }
  if (threadIdx.x == 0) batch.leavers[r] = all_left;
  store_region(region, view, first_bucket);
  std::uint64_t* const counters[3] = {&view.control->size, &view.control->erased, nullptr};
  add_to_control(work, counters, {-gone, gone, 0});
}

}  // namespace gpuhash::cuda
