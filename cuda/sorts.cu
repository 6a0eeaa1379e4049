#include "cuda/sorts.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <limits>

#include "cuda/check.hpp"
#include "cuda/factorize/order_keys.hpp"
#include "cuda/launch.cuh"
#include "cuda/sorted_batch.hpp"

/// What sorts and sums up (sorts.hpp).
namespace gpuhash::cuda {
namespace {

constexpr unsigned kSortBlock = 256;

__global__ void __launch_bounds__(kSortBlock)
    number_positions_kernel(const std::int64_t* numbers, std::int64_t count, std::int64_t first, Row none, Row* rows,
                            std::uint32_t* positions) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kSortBlock + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = numbers[i] - first;
  rows[i] = numbers[i] >= 0 && row >= 0 && row < static_cast<std::int64_t>(none) ? static_cast<Row>(row) : none;
  positions[i] = static_cast<std::uint32_t>(i);
}

int bits_of(std::int64_t row_count) { return std::bit_width(static_cast<std::uint64_t>(row_count)); }

template <class Id>
__global__ void __launch_bounds__(kSortBlock) number_kernel(Id* ids, std::int64_t count) {
  const std::int64_t j = std::int64_t{blockIdx.x} * kSortBlock + threadIdx.x;
  if (j < count) ids[j] = static_cast<Id>(j);
}

/// out[j] = words[ids[j]].
template <class Id>
__global__ void __launch_bounds__(kSortBlock)
    gather_words_kernel(const std::uint64_t* words, const Id* ids, std::int64_t count, std::uint64_t* out) {
  const std::int64_t j = std::int64_t{blockIdx.x} * kSortBlock + threadIdx.x;
  if (j < count) out[j] = words[ids[j]];
}

/// sorted_ids[ids[j]] = j.
template <class Id>
__global__ void __launch_bounds__(kSortBlock)
    invert_kernel(const Id* ids, std::int64_t count, std::int64_t* sorted_ids) {
  const std::int64_t j = std::int64_t{blockIdx.x} * kSortBlock + threadIdx.x;
  if (j < count) sorted_ids[ids[j]] = j;
}

/// Sorts by `bits` low bits, stable; moves words and ids to their second buffers and back as the sort likes.
template <class Word, class Id>
void sort_pairs(DeviceContext& context, cub::DoubleBuffer<Word>& words, cub::DoubleBuffer<Id>& ids, std::int64_t count,
                std::uint32_t bits, Stream stream) {
  std::size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, words, ids, count, 0, static_cast<int>(bits), handle(stream)),
        "planning a sort of keys");
  const Allocation workspace(context, std::max<std::size_t>(bytes, 1), stream);
  launch_may_fail("sorting keys");
  check(cub::DeviceRadixSort::SortPairs(workspace.get(), bytes, words, ids, count, 0, static_cast<int>(bits),
                                        handle(stream)),
        "sorting keys");
}

template <class Id>
void order_keys_as(DeviceContext& context, std::uint64_t* low, std::uint64_t* high, std::uint32_t bits,
                   std::int64_t count, std::int64_t* sorted_ids, Stream stream) {
  const Allocation spare = scratch<std::uint64_t>(context, count, stream);
  const Allocation numbers = scratch<Id>(context, 2 * count, stream);
  cub::DoubleBuffer<Id> ids(numbers.as<Id>(), numbers.as<Id>() + count);
  launch("numbering keys", number_kernel<Id>, count, kSortBlock, stream, ids.Current(), count);

  cub::DoubleBuffer<std::uint64_t> words(low, spare.as<std::uint64_t>());
  sort_pairs(context, words, ids, count, std::min(bits, 64u), stream);
  if (bits > 64) {
    // Least significant word first: the second sort keeps the order of the first among equals.
    std::uint64_t* const gathered = words.Current();
    launch("gathering keys", gather_words_kernel<Id>, count, kSortBlock, stream, high, ids.Current(), count, gathered);
    cub::DoubleBuffer<std::uint64_t> high_words(gathered, high);
    sort_pairs(context, high_words, ids, count, bits - 64, stream);
  }
  launch("ordering keys", invert_kernel<Id>, count, kSortBlock, stream, ids.Current(), count, sorted_ids);
}

/// Codes as they are sorted: those of no group after all others.
template <class Word>
__global__ void __launch_bounds__(kSortBlock)
    number_codes_kernel(const std::int64_t* codes, std::int64_t count, Word groups, Word* sorted, Word* positions) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kSortBlock + threadIdx.x;
  if (i >= count) return;
  sorted[i] = codes[i] < 0 ? groups : static_cast<Word>(codes[i]);
  positions[i] = static_cast<Word>(i);
}

template <class Word>
__global__ void __launch_bounds__(kSortBlock)
    widen_kernel(const Word* positions, std::int64_t count, std::int64_t* order) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kSortBlock + threadIdx.x;
  if (i < count) order[i] = static_cast<std::int64_t>(positions[i]);
}

/// offsets[g], g in [0, groups]: how many of the sorted codes are less than g.
template <class Word>
__global__ void __launch_bounds__(kSortBlock)
    find_groups_kernel(const Word* sorted, std::int64_t count, std::int64_t groups, std::int64_t* offsets) {
  const std::int64_t group = std::int64_t{blockIdx.x} * kSortBlock + threadIdx.x;
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
  launch("numbering positions", number_codes_kernel<Word>, count, kSortBlock, stream, codes, count,
         static_cast<Word>(groups), words.Current(), positions.Current());
  sort_pairs(context, words, positions, count, static_cast<std::uint32_t>(bits_of(groups)), stream);
  launch("writing positions", widen_kernel<Word>, count, kSortBlock, stream, positions.Current(), count, order);
  launch("finding groups", find_groups_kernel<Word>, groups + 1, kSortBlock, stream, words.Current(), count, groups,
         offsets);
}

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
  launch("numbering positions", number_positions_kernel, count_, kSortBlock, stream_, numbers, count_, first, none,
         rows.Current(), positions.Current());
  launch_may_fail("sorting rows");
  std::size_t bytes = workspace_bytes_;
  check(cub::DeviceRadixSort::SortPairs(workspace_.get(), bytes, rows, positions, count_, 0, bits_of(told_apart),
                                        handle(stream_)),
        "sorting rows");
  return {rows.Current(), positions.Current(), count_, none};
}

void order_keys(DeviceContext& context, std::uint64_t* low, std::uint64_t* high, std::uint32_t bits, std::int64_t count,
                std::int64_t* sorted_ids, Stream stream) {
  if (count == 0) return;
  if (count <= std::numeric_limits<std::uint32_t>::max())
    order_keys_as<std::uint32_t>(context, low, high, bits, count, sorted_ids, stream);
  else
    order_keys_as<std::uint64_t>(context, low, high, bits, count, sorted_ids, stream);
}

void sum_in_place(DeviceContext& context, std::int64_t* numbers, std::int64_t count, Stream stream) {
  if (count == 0) return;
  std::size_t bytes = 0;
  check(cub::DeviceScan::InclusiveSum(nullptr, bytes, numbers, numbers, count, handle(stream)), "planning a sum");
  const Allocation workspace(context, std::max<std::size_t>(bytes, 1), stream);
  launch_may_fail("summing up");
  check(cub::DeviceScan::InclusiveSum(workspace.get(), bytes, numbers, numbers, count, handle(stream)), "summing up");
  note_launched_kernel();
}

void sort_positions(DeviceContext& context, const std::int64_t* codes, std::int64_t count, std::int64_t groups,
                    std::int64_t* offsets, std::int64_t* order, Stream stream) {
  if (count == 0) return context.fill(offsets, 0, static_cast<std::size_t>(groups + 1) * sizeof(std::int64_t), stream);
  if (std::max(count, groups) <= std::numeric_limits<std::uint32_t>::max())
    return sort_positions_as<std::uint32_t>(context, codes, count, groups, offsets, order, stream);
  sort_positions_as<std::uint64_t>(context, codes, count, groups, offsets, order, stream);
}

}  // namespace gpuhash::cuda
