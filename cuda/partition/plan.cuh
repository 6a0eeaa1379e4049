#pragma once

#include <algorithm>
#include <memory>

#include "core/tuning.hpp"
#include "cuda/l2.hpp"
#include "cuda/launch.cuh"
#include "cuda/partition/passes.cuh"
#include "cuda/region/left.cuh"
#include "cuda/region/shared_region.cuh"

/// Making plans on the host.
namespace gpuhash::cuda {

/// Threads of the kernels that work off what the regions leave.
inline constexpr std::int64_t kLeftThreads = 132 * 16 * kBlock;

template <class... Parameters, class... Arguments>
void launch_regions(const char* action, void (*kernel)(Parameters...), std::uint32_t regions, std::size_t shared_bytes,
                    Stream stream, Arguments&&... arguments) {
  launch_with_shared(action, kernel, dim3(regions), kRegionBlock, shared_bytes, stream,
                     std::forward<Arguments>(arguments)...);
}

/// A partitioned batch and its memory.
template <class Item>
struct RegionPlan final : Plan {
  Allocation bin_items;
  Allocation bin_positions;
  Allocation region_items;
  Allocation region_positions;
  Allocation rest_items;
  Allocation rest_positions;
  Allocation counts;
  PartitionedBatch<Item> batch;
  BatchItems<Item> all;
};

/// Does the stream through the table and through the lists cost less than random accesses would? Tuning has the
/// reasons.
template <class View>
bool plan_pays(const Geometry& geometry, std::int64_t keys) {
  const std::int64_t table_bytes = std::int64_t{geometry.bucket_count} * View::kBucketBytes;
  if (lies_in_l2<View>(geometry)) {
    const std::int64_t slots = std::int64_t{geometry.bucket_count} * View::kSlots;
    return keys >= tuning().least_partitioned_in_l2_keys && keys >= slots / 8 * 5 &&
           keys <= slots;  // a larger batch makes the table grow first
  }
  return keys >= tuning().least_partitioned_keys && keys >= table_bytes / tuning().partition_table_bytes;
}

/// Is the batch partitioned?
template <class View>
bool is_planned(const Geometry& geometry, std::int64_t keys) {
  if (geometry.region_count > kMaxBins * kMaxBins || keys > std::int64_t{1} << 30) return false;
  return plan_pays<View>(geometry, keys);
}

template <class Item, class Merge = NoMerge>
std::unique_ptr<RegionPlan<Item>> make_plan(DeviceContext& context, const Geometry& geometry, const KeyBatch& keys,
                                            const ValueBatch& values, bool with_positions, Stream stream,
                                            const Merge& merge = {}) {
  auto plan = std::make_unique<RegionPlan<Item>>();
  const std::uint32_t regions = geometry.region_count;
  const double per_region = static_cast<double>(keys.count) / regions;
  const Binning binning = make_binning(regions);
  const bool two_passes = binning.regions_per_bin > 1;

  const auto items = [&](std::uint64_t count) { return Allocation(context, count * sizeof(Item), stream); };
  const auto positions = [&](std::uint64_t count) {
    return Allocation(context, with_positions ? count * sizeof(std::uint32_t) : 0, stream);
  };
  Lists<Item> bins{};
  Lists<Item> lists{};
  // The last bin may have fewer regions, and the last list none, but every list has the same capacity.
  const std::uint32_t list_count = binning.bins * binning.regions_per_bin;
  lists.capacity = list_capacity(per_region);
  plan->region_items = items(std::uint64_t{list_count} * lists.capacity);
  plan->region_positions = positions(std::uint64_t{list_count} * lists.capacity);
  if (two_passes) {
    bins.capacity = list_capacity(per_region * binning.regions_per_bin);
    plan->bin_items = items(std::uint64_t{binning.bins} * bins.capacity);
    plan->bin_positions = positions(std::uint64_t{binning.bins} * bins.capacity);
  }
  Rest<Item> rest{};
  rest.capacity = static_cast<std::uint32_t>(keys.count / 16 + 1024);
  plan->rest_items = items(rest.capacity);
  plan->rest_positions = positions(rest.capacity);
  plan->counts = Allocation(
      context, sizeof(PartitionCounters) + sizeof(std::uint32_t) * (2 * std::uint64_t{list_count} + binning.bins),
      stream);
  context.fill(plan->counts.get(), 0, plan->counts.bytes(), stream);

  rest.counters = plan->counts.template as<PartitionCounters>();
  lists.counts = reinterpret_cast<std::uint32_t*>(rest.counters + 1);
  std::uint32_t* const leavers = lists.counts + list_count;
  bins.counts = leavers + list_count;
  lists.items = plan->region_items.template as<Item>();
  lists.positions = plan->region_positions.template as<std::uint32_t>();
  bins.items = plan->bin_items.template as<Item>();
  bins.positions = plan->bin_positions.template as<std::uint32_t>();
  rest.items = plan->rest_items.template as<Item>();
  rest.positions = plan->rest_positions.template as<std::uint32_t>();
  plan->batch = {lists, leavers, rest};
  plan->all = {keys, values, has_whole_words<Item>(keys, values)};

  if (with_positions)
    partition_batch<true>(plan->all, RegionOf{geometry}, binning, bins, lists, rest, merge, merge, stream);
  else
    partition_batch<false>(plan->all, RegionOf{geometry}, binning, bins, lists, rest, merge, merge, stream);
  return plan;
}

}  // namespace gpuhash::cuda
