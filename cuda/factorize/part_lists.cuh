#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/tuning.hpp"
#include "cuda/factorize/parts.cuh"
#include "cuda/partition/passes.cuh"

namespace gpuhash::cuda {

/// Batches that are partitioned have no more keys: so many parts of kMeanPartItems make two passes.
inline constexpr std::int64_t kMaxPartedKeys = std::int64_t{1} << 29;
static_assert(kMaxPartedKeys / kMeanPartItems <= std::int64_t{kMaxBins} * kMaxBins);

/// Does a table of so many distinct keys lie outside of L2? A batch table costs little more than a partition does as
/// long as it lies there.
template <class Key>
bool is_beyond_l2(std::int64_t distinct) {
  return batch_size::slots_for(distinct) * static_cast<std::int64_t>(sizeof(Entry<Key>)) > tuning().l2_bytes;
}

/// Is a batch of `count` keys, of which about `distinct` are distinct, factorized by part?
template <class Key>
bool is_factorized_by_part(std::int64_t count, std::int64_t distinct, bool with_links) {
  const std::int64_t repeats = with_links ? tuning().partitioned_linked_repeats : tuning().partitioned_repeats;
  return count <= kMaxPartedKeys && is_beyond_l2<Key>(distinct) && distinct >= count / repeats;
}

/// Are elements looked up among tests by part? A set that lies in L2 costs less than the passes do.
inline bool is_looked_up_by_part(std::int64_t elements, std::int64_t tests, bool set_is_beyond_l2) {
  const std::int64_t more = std::max(elements, tests);
  return more <= kMaxPartedKeys && set_is_beyond_l2 && tests >= elements / tuning().partitioned_elements_per_test;
}

/// How many parts a table of `count` keys has.
inline std::uint32_t parts_for(std::int64_t count) {
  return static_cast<std::uint32_t>((count + kMeanPartItems - 1) / kMeanPartItems);
}

/// The lists of a partitioned batch, and their memory.
template <class Key>
class PartLists {
 public:
  using Item = KeyItem<Key>;

  /// Throws OutOfMemoryError.
  PartLists(DeviceContext& context, std::int64_t count, const PartOf& part_of, bool with_positions, Stream stream)
      : part_of_(part_of), binning_(make_binning(part_of.parts)), with_positions_(with_positions) {
    const double mean = static_cast<double>(count) / part_of.parts;
    // Keys that come a few times each vary more than distinct ones do: with room for a quarter more they fit mostly.
    capacity_ = list_capacity(mean * 5 / 4);
    bin_capacity_ = list_capacity(mean * binning_.regions_per_bin * 9 / 8);
    const std::uint32_t lists = binning_.bins * binning_.regions_per_bin;
    allocate(items_, positions_, std::uint64_t{lists} * capacity_, context, stream);
    if (binning_.regions_per_bin > 1)
      allocate(bin_items_, bin_positions_, std::uint64_t{binning_.bins} * bin_capacity_, context, stream);
    counts_ = Allocation(context, (std::size_t{lists} + binning_.bins) * sizeof(std::uint32_t), stream);
    context.fill(counts_.get(), 0, counts_.bytes(), stream);
  }

  /// counters: where a list that is full is noted.
  template <bool kPositions, class First, class Second>
  void fill(const KeySource<Key>& keys, std::int64_t count, PartitionCounters* counters, const First& first,
            const Second& second, Stream stream) {
    const std::uint32_t lists = binning_.bins * binning_.regions_per_bin;
    const Lists<Item> bins{bin_items_.template as<Item>(), bin_positions_.template as<std::uint32_t>(),
                           counts_.template as<std::uint32_t>() + lists, bin_capacity_};
    const Rest<Item> none{nullptr, nullptr, counters, 0};
    partition_batch<kPositions>(CanonicalBatch<Key>{keys, count}, part_of_, binning_, bins, view(), none, first, second,
                                stream);
    bin_items_ = Allocation();
    bin_positions_ = Allocation();
  }

  Lists<Item> view() const {
    return {items_.template as<Item>(), positions_.template as<std::uint32_t>(), counts_.template as<std::uint32_t>(),
            capacity_};
  }
  std::uint32_t parts() const { return part_of_.parts; }

 private:
  void allocate(Allocation& items, Allocation& positions, std::uint64_t count, DeviceContext& context, Stream stream) {
    items = Allocation(context, count * sizeof(Item), stream);
    if (with_positions_) positions = Allocation(context, count * sizeof(std::uint32_t), stream);
  }

  PartOf part_of_;
  Binning binning_;
  bool with_positions_;
  std::uint32_t capacity_ = 0;
  std::uint32_t bin_capacity_ = 0;
  Allocation items_;
  Allocation positions_;
  Allocation bin_items_;  // while there are two passes
  Allocation bin_positions_;
  Allocation counts_;  // of lists, then of bins
};

}  // namespace gpuhash::cuda
