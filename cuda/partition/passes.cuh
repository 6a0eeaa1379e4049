#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cuda/launch.cuh"
#include "cuda/partition/partition.cuh"

/// The passes of a partition, from the host: how many bins, how long the lists.
namespace gpuhash::cuda {

inline Binning make_binning(std::uint32_t lists) {
  Binning binning{lists, 1, 0};
  if (lists > kMaxBins) {
    binning.regions_per_bin = static_cast<std::uint32_t>(std::ceil(std::sqrt(lists)));
    binning.bins = (lists + binning.regions_per_bin - 1) / binning.regions_per_bin;
    binning.reciprocal =
        static_cast<std::uint32_t>(((std::uint64_t{1} << 32) + binning.regions_per_bin - 1) / binning.regions_per_bin);
  }
  return binning;
}

/// Room for a list of `mean` items on average: batches of distinct keys stay below, and those whose keys come a few
/// times each mostly do.
inline std::uint32_t list_capacity(double mean) { return static_cast<std::uint32_t>(mean + 8 * std::sqrt(mean)) + 64; }

/// Moves the batch to the lists, by way of `bins` where there are too many lists for one pass; then with second_merge.
template <bool kPositions, class Batch, class ListOf, class First, class Second>
void partition_batch(const Batch& batch, const ListOf& list_of, const Binning& binning,
                     const Lists<typename Batch::Item>& bins, const Lists<typename Batch::Item>& lists,
                     const Rest<typename Batch::Item>& rest, const First& first_merge, const Second& second_merge,
                     Stream stream) {
  using Item = typename Batch::Item;
  const bool two_passes = binning.regions_per_bin > 1;
  const auto tiles = static_cast<unsigned>((batch.count() + kTile - 1) / kTile);
  launch_with_shared("partitioning keys", partition_batch_kernel<Batch, ListOf, kPositions, First>, dim3(tiles),
                     kPartitionBlock, sizeof(TileOf<Item, kPositions, First>), stream, batch, list_of, binning,
                     two_passes ? bins : lists, rest, first_merge);
  if (!two_passes) return;
  launch_with_shared("partitioning keys", partition_bin_kernel<Item, ListOf, kPositions, Second>,
                     dim3((bins.capacity + kTile - 1) / kTile, binning.bins), kPartitionBlock,
                     sizeof(TileOf<Item, kPositions, Second>), stream, bins, list_of, binning, lists, rest,
                     second_merge);
}

}  // namespace gpuhash::cuda
