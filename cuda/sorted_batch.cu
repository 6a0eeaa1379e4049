#include "cuda/sorted_batch.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/check.hpp"
#include "cuda/launch.cuh"

namespace gpuhash::cuda {
namespace {

constexpr unsigned kBlock = 256;

__global__ void __launch_bounds__(kBlock)
    number_positions_kernel(const std::int64_t* numbers, std::int64_t count, std::int64_t first, Row none, Row* rows,
                            std::uint32_t* positions) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = numbers[i] - first;
  rows[i] = numbers[i] >= 0 && row >= 0 && row < static_cast<std::int64_t>(none) ? static_cast<Row>(row) : none;
  positions[i] = static_cast<std::uint32_t>(i);
}

int bits_of(std::int64_t row_count) { return std::bit_width(static_cast<std::uint64_t>(row_count)); }

}  // namespace

BatchSorter::BatchSorter(DeviceContext& context, std::int64_t count, std::int64_t row_count, Stream stream)
    : count_(count),
      stream_(stream),
      rows_(scratch<Row>(context, 2 * count, stream)),
      positions_(scratch<std::uint32_t>(context, 2 * count, stream)) {
  cub::DoubleBuffer<Row> rows;
  cub::DoubleBuffer<std::uint32_t> positions;
  check(cub::DeviceRadixSort::SortPairs(nullptr, workspace_bytes_, rows, positions, count, 0,
                                        bits_of(std::min(row_count, kMostRows)), handle(stream)),
        "planning a sort of rows");
  workspace_ = Allocation(context, std::max<std::size_t>(workspace_bytes_, 1), stream);
}

SortedBatch BatchSorter::sort(const std::int64_t* numbers, std::int64_t first, std::int64_t row_count) const {
  const std::int64_t told_apart = std::min(row_count, kMostRows);
  const auto none = static_cast<Row>(told_apart);
  cub::DoubleBuffer<Row> rows(rows_.as<Row>(), rows_.as<Row>() + count_);
  cub::DoubleBuffer<std::uint32_t> positions(positions_.as<std::uint32_t>(), positions_.as<std::uint32_t>() + count_);
  launch("numbering positions", number_positions_kernel, count_, kBlock, stream_, numbers, count_, first, none,
         rows.Current(), positions.Current());
  launch_may_fail("sorting rows");
  std::size_t bytes = workspace_bytes_;
  check(cub::DeviceRadixSort::SortPairs(workspace_.get(), bytes, rows, positions, count_, 0, bits_of(told_apart),
                                        handle(stream_)),
        "sorting rows");
  return {rows.Current(), positions.Current(), count_, none};
}

}  // namespace gpuhash::cuda
