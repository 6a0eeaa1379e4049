#include "cuda/columns/taken.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "cuda/check.hpp"
#include "cuda/columns/entries.cuh"
#include "cuda/launch.cuh"
#include "cuda/sorts.hpp"
#include "table/taken_rows.hpp"

namespace gpuhash::cuda {
namespace {

/// Wider entries are copied by several threads each.
constexpr std::int64_t kMostOfThread = 32;
constexpr int kLanes = 8;
/// Entries of a thread, whose loads are on their way at once.
constexpr int kEntries = 4;
/// Threads that look through the indices.
constexpr std::int64_t kCheckThreads = std::int64_t{1} << 18;

/// A column in words of which its addresses and its entries' length are multiples.
template <class Word>
struct Taken {
  const Word* from;
  const Word* fill;
  Word* to;
  std::int64_t words;  // of an entry
  bool is_bool;

  explicit Taken(const TakenColumn& column)
      : from(static_cast<const Word*>(column.data)),
        fill(static_cast<const Word*>(column.fill)),
        to(static_cast<Word*>(column.out)),
        words(column.bytes / static_cast<std::int64_t>(sizeof(Word))),
        is_bool(column.is_bool) {}

  __device__ __forceinline__ Word word(std::int64_t row, std::int64_t w) const {
    const Word* const source = row >= 0 ? from + row * words : fill;
    Word found{};
    if (source != nullptr) found = __ldg(source + w);
    if constexpr (sizeof(Word) == 1)
      if (is_bool) found = found != 0 ? 1 : 0;
    return found;
  }
};

/// A column at a time: what all indices read of one stays in the cache sooner than what they read of several.
template <class Word>
__global__ void __launch_bounds__(kColumnBlock)
    take_kernel(Taken<Word> column, const std::int64_t* index, std::int64_t count) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kColumnBlock * kEntries + threadIdx.x;
  std::int64_t rows[kEntries];
#pragma unroll
  for (int e = 0; e < kEntries; ++e) {
    const std::int64_t j = first + e * std::int64_t{kColumnBlock};
    rows[e] = j < count ? index[j] : -1;
  }
  for (std::int64_t w = 0; w < column.words; ++w) {
    Word words[kEntries];
#pragma unroll
    for (int e = 0; e < kEntries; ++e) words[e] = column.word(rows[e], w);
#pragma unroll
    for (int e = 0; e < kEntries; ++e) {
      const std::int64_t j = first + e * std::int64_t{kColumnBlock};
      if (j < count) column.to[j * column.words + w] = words[e];
    }
  }
}

template <class Word>
__global__ void __launch_bounds__(kColumnBlock)
    take_wide_kernel(Taken<Word> column, const std::int64_t* index, std::int64_t count) {
  const std::int64_t t = row_of_thread();
  const std::int64_t j = t / kLanes;
  if (j >= count) return;
  const std::int64_t row = index[j];
  for (std::int64_t w = t % kLanes; w < column.words; w += kLanes)
    column.to[j * column.words + w] = column.word(row, w);
}

__global__ void __launch_bounds__(kColumnBlock)
    find_greatest_kernel(const std::int64_t* index, std::int64_t count, long long* greatest) {
  long long most = -1;
  const std::int64_t stride = std::int64_t{gridDim.x} * kColumnBlock;
  for (std::int64_t j = row_of_thread(); j < count; j += stride) most = max(most, static_cast<long long>(index[j]));
  for (int lanes = 16; lanes > 0; lanes /= 2) most = max(most, __shfl_xor_sync(~0u, most, lanes));
  if (threadIdx.x % 32 == 0 && most >= 0) atomicMax(greatest, most);
}

/// out [count + 1]: 0, and lengths.
__global__ void __launch_bounds__(kColumnBlock)
    write_lengths_kernel(const std::int64_t* offsets, const std::int64_t* index, std::int64_t count,
                         std::int64_t* out) {
  const std::int64_t j = row_of_thread();
  if (j > count) return;
  const std::int64_t row = j > 0 ? index[j - 1] : -1;
  out[j] = row < 0 ? 0 : offsets[row + 1] - offsets[row];
}

__global__ void __launch_bounds__(kColumnBlock)
    take_bytes_kernel(const std::byte* data, const std::int64_t* offsets, const std::int64_t* index, std::int64_t count,
                      const std::int64_t* out_offsets, std::byte* out) {
  const std::int64_t t = row_of_thread();
  const std::int64_t j = t / kLanes;
  if (j >= count || index[j] < 0) return;
  const std::byte* const from = data + offsets[index[j]];
  const std::int64_t begin = out_offsets[j];
  const std::int64_t bytes = out_offsets[j + 1] - begin;
  for (std::int64_t b = t % kLanes; b < bytes; b += kLanes) out[begin + b] = from[b];
}

/// std::out_of_range where an index is `rows` or more. Waits.
void check_index(DeviceContext& context, const std::int64_t* index, std::int64_t count, std::int64_t rows,
                 Stream stream) {
  const Allocation memory = scratch<long long>(context, 1, stream);
  long long most = -1;
  context.fill(memory.get(), 0xff, memory.bytes(), stream);
  launch("checking indices", find_greatest_kernel, std::min(count, kCheckThreads), kColumnBlock, stream, index, count,
         memory.as<long long>());
  context.copy_to_host(&most, memory.get(), sizeof most, stream);
  throw_if_outside(most, rows);
}

}  // namespace

void take_columns(DeviceContext& context, Span<const TakenColumn> columns, std::optional<std::int64_t> rows,
                  const std::int64_t* index, std::int64_t count, Stream stream) {
  const DeviceGuard guard(context.device().index);
  if (rows) check_index(context, index, count, *rows, stream);
  for (const TakenColumn& column : columns) {
    const std::uint64_t bits = address_bits(column.data) | address_bits(column.fill) | address_bits(column.out) |
                               static_cast<std::uint64_t>(column.bytes) | (column.is_bool ? 1 : 0);
    with_unit<uint4, uint2, std::uint32_t, std::uint16_t, std::uint8_t>(bits, [&]<class Word>(Word) {
      const Taken<Word> taken(column);
      if (column.bytes > kMostOfThread)
        launch("taking entries", take_wide_kernel<Word>, count * kLanes, kColumnBlock, stream, taken, index, count);
      else
        launch("taking entries", take_kernel<Word>, (count + kEntries - 1) / kEntries, kColumnBlock, stream, taken,
               index, count);
    });
  }
}

std::int64_t take_string_offsets(DeviceContext& context, const std::int64_t* offsets, std::int64_t rows,
                                 const std::int64_t* index, std::int64_t count, std::int64_t* out, Stream stream) {
  const DeviceGuard guard(context.device().index);
  check_index(context, index, count, rows, stream);
  launch("taking strings", write_lengths_kernel, count + 1, kColumnBlock, stream, offsets, index, count, out);
  sum_in_place(context, out, count + 1, stream);
  std::int64_t total = 0;
  context.copy_to_host(&total, out + count, sizeof total, stream);
  return total;
}

void take_string_bytes(DeviceContext& context, const void* data, const std::int64_t* offsets, const std::int64_t* index,
                       std::int64_t count, const std::int64_t* out_offsets, void* out, Stream stream) {
  const DeviceGuard guard(context.device().index);
  launch("taking strings", take_bytes_kernel, count * kLanes, kColumnBlock, stream, static_cast<const std::byte*>(data),
         offsets, index, count, out_offsets, static_cast<std::byte*>(out));
}

}  // namespace gpuhash::cuda
