#include "cuda/pair/pair_scans.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <limits>

#include "cuda/check.hpp"
#include "cuda/launch.cuh"

namespace gpuhash::cuda {
namespace {

constexpr unsigned kScanBlock = 256;

/// Codes as they are sorted: those of no group after all others.
template <class Word>
__global__ void __launch_bounds__(kScanBlock)
    number_positions_kernel(const std::int64_t* codes, std::int64_t count, Word groups, Word* sorted, Word* positions) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kScanBlock + threadIdx.x;
  if (i >= count) return;
  sorted[i] = codes[i] < 0 ? groups : static_cast<Word>(codes[i]);
  positions[i] = static_cast<Word>(i);
}

template <class Word>
__global__ void __launch_bounds__(kScanBlock)
    widen_kernel(const Word* positions, std::int64_t count, std::int64_t* order) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kScanBlock + threadIdx.x;
  if (i < count) order[i] = static_cast<std::int64_t>(positions[i]);
}

/// offsets[g], g in [0, groups]: how many of the sorted codes are less than g.
template <class Word>
__global__ void __launch_bounds__(kScanBlock)
    find_groups_kernel(const Word* sorted, std::int64_t count, std::int64_t groups, std::int64_t* offsets) {
  const std::int64_t group = std::int64_t{blockIdx.x} * kScanBlock + threadIdx.x;
  if (group > groups) return;
  std::int64_t begin = 0;
  std::int64_t end = count;
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (static_cast<std::int64_t>(sorted[middle]) < group)
      begin = middle + 1;
    else
      end = middle;
  }
  offsets[group] = begin;
}

template <class Word>
void sort_positions_as(DeviceContext& context, const std::int64_t* codes, std::int64_t count, std::int64_t groups,
                       std::int64_t* offsets, std::int64_t* order, Stream stream) {
  const Allocation code_memory = scratch<Word>(context, 2 * count, stream);
  const Allocation position_memory = scratch<Word>(context, 2 * count, stream);
  cub::DoubleBuffer<Word> words(code_memory.as<Word>(), code_memory.as<Word>() + count);
  cub::DoubleBuffer<Word> positions(position_memory.as<Word>(), position_memory.as<Word>() + count);
  launch("numbering positions", number_positions_kernel<Word>, count, kScanBlock, stream, codes, count,
         static_cast<Word>(groups), words.Current(), positions.Current());
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(groups)));
  std::size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, words, positions, count, 0, bits, handle(stream)),
        "planning a sort of positions");
  const Allocation workspace(context, std::max<std::size_t>(bytes, 1), stream);
  launch_may_fail("sorting positions");
  check(cub::DeviceRadixSort::SortPairs(workspace.get(), bytes, words, positions, count, 0, bits, handle(stream)),
        "sorting positions");
  launch("writing positions", widen_kernel<Word>, count, kScanBlock, stream, positions.Current(), count, order);
  launch("finding groups", find_groups_kernel<Word>, groups + 1, kScanBlock, stream, words.Current(), count, groups,
         offsets);
}

}  // namespace

void sum_in_place(DeviceContext& context, std::int64_t* numbers, std::int64_t count, Stream stream) {
  if (count == 0) return;
  std::size_t bytes = 0;
  check(cub::DeviceScan::InclusiveSum(nullptr, bytes, numbers, numbers, count, handle(stream)), "planning a sum");
  const Allocation workspace(context, std::max<std::size_t>(bytes, 1), stream);
  launch_may_fail("summing up");
  check(cub::DeviceScan::InclusiveSum(workspace.get(), bytes, numbers, numbers, count, handle(stream)), "summing up");
}

void sort_positions(DeviceContext& context, const std::int64_t* codes, std::int64_t count, std::int64_t groups,
                    std::int64_t* offsets, std::int64_t* order, Stream stream) {
  if (count == 0) return context.fill(offsets, 0, static_cast<std::size_t>(groups + 1) * sizeof(std::int64_t), stream);
  if (std::max(count, groups) <= std::numeric_limits<std::uint32_t>::max())
    return sort_positions_as<std::uint32_t>(context, codes, count, groups, offsets, order, stream);
  sort_positions_as<std::uint64_t>(context, codes, count, groups, offsets, order, stream);
}

}  // namespace gpuhash::cuda
