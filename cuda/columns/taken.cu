#include "cuda/columns/taken.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cub/device/device_scan.cuh>

#include "cuda/check.hpp"
#include "cuda/columns/entries.cuh"
#include "cuda/launch.cuh"
#include "cuda/stream.hpp"
#include "table/taken_rows.hpp"

namespace gpuhash::cuda {
namespace {

/// Wider entries are copied by several threads each.
constexpr std::int64_t kMostOfThread = 32;
constexpr int kLanes = 8;
/// Threads that look through the indices.
constexpr std::int64_t kCheckThreads = std::int64_t{1} << 18;

struct Taken {
  const std::byte* from;
  const std::byte* fill;
  std::byte* to;
  std::int64_t bytes;
  int word;  // bytes that are moved at a time
  bool is_bool;

  static Taken of(const TakenColumn& column) {
    const std::uint64_t bits = address_bits(column.data) | address_bits(column.fill) | address_bits(column.out) |
                               static_cast<std::uint64_t>(column.bytes);
    return {static_cast<const std::byte*>(column.data),  static_cast<const std::byte*>(column.fill),
            static_cast<std::byte*>(column.out),         column.bytes,
            column.is_bool ? 1 : alignment_of(bits, 16), column.is_bool};
  }

  template <class Word>
  __device__ __forceinline__ void copy(std::byte* target, const std::byte* source, std::int64_t first,
                                       std::int64_t stride) const {
    for (std::int64_t at = first * static_cast<std::int64_t>(sizeof(Word)); at < bytes;
         at += stride * static_cast<std::int64_t>(sizeof(Word))) {
      Word word{};
      if (source != nullptr) word = __ldg(reinterpret_cast<const Word*>(source + at));
      if constexpr (sizeof(Word) == 1)
        if (is_bool) word = word != 0 ? 1 : 0;
      *reinterpret_cast<Word*>(target + at) = word;
    }
  }

  /// Word `first` of entry j, and every stride-th after it.
  __device__ __forceinline__ void take(std::int64_t j, std::int64_t row, std::int64_t first,
                                       std::int64_t stride) const {
    std::byte* const target = to + j * bytes;
    const std::byte* const source = row >= 0 ? from + row * bytes : fill;
    if (word == 16)
      copy<uint4>(target, source, first, stride);
    else if (word == 8)
      copy<uint2>(target, source, first, stride);
    else if (word == 4)
      copy<unsigned>(target, source, first, stride);
    else if (word == 2)
      copy<unsigned short>(target, source, first, stride);
    else
      copy<unsigned char>(target, source, first, stride);
  }
};

__global__ void __launch_bounds__(kColumnBlock)
    take_kernel(Several<Taken> columns, const std::int64_t* index, std::int64_t count) {
  const std::int64_t j = row_of_thread();
  if (j >= count) return;
  const std::int64_t row = index[j];
  for (int c = 0; c < columns.count; ++c) columns.items[c].take(j, row, 0, 1);
}

__global__ void __launch_bounds__(kColumnBlock)
    take_wide_kernel(Taken column, const std::int64_t* index, std::int64_t count) {
  const std::int64_t t = row_of_thread();
  const std::int64_t j = t / kLanes;
  if (j < count) column.take(j, index[j], t % kLanes, kLanes);
}

__global__ void __launch_bounds__(kColumnBlock)
    find_greatest_kernel(const std::int64_t* index, std::int64_t count, long long* greatest) {
  long long most = -1;
  const std::int64_t stride = std::int64_t{gridDim.x} * kColumnBlock;
  for (std::int64_t j = row_of_thread(); j < count; j += stride) most = max(most, static_cast<long long>(index[j]));
  for (int lanes = 16; lanes > 0; lanes /= 2) most = max(most, __shfl_xor_sync(~0u, most, lanes));
  if (threadIdx.x % 32 == 0 && most >= 0) atomicMax(greatest, most);
}

/// out [count + 1]: lengths, and 0 at the end.
__global__ void __launch_bounds__(kColumnBlock)
    write_lengths_kernel(const std::int64_t* offsets, const std::int64_t* index, std::int64_t count,
                         std::int64_t* out) {
  const std::int64_t j = row_of_thread();
  if (j > count) return;
  const std::int64_t row = j < count ? index[j] : -1;
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

void take_columns(DeviceContext& context, Span<const TakenColumn> columns, std::int64_t rows, const std::int64_t* index,
                  std::int64_t count, Stream stream) {
  const DeviceGuard guard(context.device().index);
  check_index(context, index, count, rows, stream);
  Several<Taken> several{};
  const auto take_several = [&] {
    if (several.count != 0) launch("taking entries", take_kernel, count, kColumnBlock, stream, several, index, count);
    several.count = 0;
  };
  for (const TakenColumn& column : columns) {
    const Taken taken = Taken::of(column);
    if (column.bytes > kMostOfThread) {
      launch("taking entries", take_wide_kernel, count * kLanes, kColumnBlock, stream, taken, index, count);
      continue;
    }
    several.items[several.count++] = taken;
    if (several.count == kColumns) take_several();
  }
  take_several();
}

std::int64_t take_string_offsets(DeviceContext& context, const std::int64_t* offsets, std::int64_t rows,
                                 const std::int64_t* index, std::int64_t count, std::int64_t* out, Stream stream) {
  const DeviceGuard guard(context.device().index);
  check_index(context, index, count, rows, stream);
  launch("taking strings", write_lengths_kernel, count + 1, kColumnBlock, stream, offsets, index, count, out);
  std::size_t bytes = 0;
  check(cub::DeviceScan::ExclusiveSum(nullptr, bytes, out, out, count + 1, handle(stream)), "planning a sum");
  const Allocation workspace(context, std::max<std::size_t>(bytes, 1), stream);
  launch_may_fail("summing lengths");
  check(cub::DeviceScan::ExclusiveSum(workspace.get(), bytes, out, out, count + 1, handle(stream)), "summing lengths");
  note_launched_kernel();
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
