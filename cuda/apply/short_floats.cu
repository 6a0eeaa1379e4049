#include "cuda/apply/short_floats.hpp"

#include <cuda_runtime.h>

#include "cuda/apply/cell.cuh"
#include "cuda/check.hpp"
#include "cuda/launch.cuh"
#include "shared/arithmetic.hpp"

namespace gpuhash::cuda {
namespace {

constexpr unsigned kBlock = 256;
constexpr std::int64_t kChunk = 32;  // positions

std::int64_t chunks_of(std::int64_t count) { return (count + kChunk - 1) / kChunk; }

/// What the kernels of one batch work on.
struct Work {
  Cells cells;
  std::int64_t first_cell;  // of which sorted.rows number the cells
  SortedBatch sorted;
  float* shared;  // [chunks, elements]
  Action op;
  int lanes;  // of a group: a power of two

  template <class Short>
  __device__ __forceinline__ void update(Row row, std::int64_t element, float value) const {
    auto* const cell = reinterpret_cast<Short*>(cells.base + (first_cell + row) * cells.stride) + element;
    *cell = Short::from_float(combine(op, cell->to_float(), value));
  }
  __device__ __forceinline__ bool is_left() const { return cells.left != nullptr && *cells.left != 0; }
  /// The first position in order that has the row; one before `end` has.
  __device__ __forceinline__ std::int64_t begin_of(Row row, std::int64_t end) const {
    std::int64_t low = 0;
    while (low < end) {
      const std::int64_t middle = low + (end - low) / 2;
      if (sorted.rows[middle] < row)
        low = middle + 1;
      else
        end = middle;
    }
    return low;
  }
};

__global__ void __launch_bounds__(kBlock) fill_kernel(float* to, std::int64_t count, float value) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < count) to[i] = value;
}

/// Calls run(chunk, lane) for the thread's chunk.
template <class Run>
__device__ __forceinline__ void in_chunk(const Work& work, Run run) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const std::int64_t chunk = thread / work.lanes;
  if (chunk * kChunk < work.sorted.count && !work.is_left()) run(chunk, thread % work.lanes);
}

template <class Short>
__global__ void __launch_bounds__(kBlock) combine_chunks_kernel(Work work, const Short* values, bool broadcast) {
  in_chunk(work, [&](std::int64_t chunk, std::int64_t lane) {
    const SortedBatch& sorted = work.sorted;
    const std::int64_t elements = work.cells.elements;
    const std::int64_t begin = chunk * kChunk;
    const std::int64_t end = min(begin + kChunk, sorted.count);
    const bool continued = sorted.continues_before(begin);
    const std::int64_t first_chunk = continued ? work.begin_of(sorted.rows[begin], begin) / kChunk : chunk;
    for (std::int64_t element = lane; element < elements; element += work.lanes) {
      const auto value_at = [&](std::int64_t i) {
        return values[(broadcast ? 0 : sorted.positions[i] * elements) + element].to_float();
      };
      for (std::int64_t i = begin; i < end;) {
        const Row row = sorted.rows[i];
        if (row >= sorted.none) return;
        const bool is_head = continued && i == begin;
        float combined = value_at(i);
        for (++i; i < end && sorted.rows[i] == row; ++i) combined = combine(work.op, combined, value_at(i));
        const bool goes_on = i == end && end < sorted.count && sorted.rows[end] == row;
        if (is_head || goes_on)
          cuda::update(work.shared + (is_head ? first_chunk : chunk) * elements + element, work.op, combined);
        else
          work.update<Short>(row, element, combined);
      }
    }
  });
}

/// For the row that begins in a chunk and goes on in the next one.
template <class Short>
__global__ void __launch_bounds__(kBlock) store_shared_kernel(Work work) {
  in_chunk(work, [&](std::int64_t chunk, std::int64_t lane) {
    const SortedBatch& sorted = work.sorted;
    const std::int64_t begin = chunk * kChunk;
    const std::int64_t end = begin + kChunk;
    if (end >= sorted.count || !sorted.continues_before(end)) return;
    const Row row = sorted.rows[end];
    if (row >= sorted.none || (sorted.rows[begin] == row && sorted.continues_before(begin))) return;
    const std::int64_t elements = work.cells.elements;
    for (std::int64_t element = lane; element < elements; element += work.lanes)
      work.update<Short>(row, element, work.shared[chunk * elements + element]);
  });
}

template <class Short>
void launch_chunks(const Work& work, const ValueBatch& values, Stream stream) {
  const std::int64_t chunks = chunks_of(work.sorted.count);
  launch("combining values", fill_kernel, chunks * work.cells.elements, kBlock, stream, work.shared,
         chunks * work.cells.elements, identity<float>(work.op));
  launch("combining values", combine_chunks_kernel<Short>, chunks * work.lanes, kBlock, stream, work,
         static_cast<const Short*>(values.data), values.broadcast);
  launch("applying values", store_shared_kernel<Short>, chunks * work.lanes, kBlock, stream, work);
}

}  // namespace

ShortFloatCells::ShortFloatCells(DeviceContext& context, std::int64_t count, std::int64_t cell_count,
                                 std::int64_t elements, Stream stream)
    : count_(count),
      cell_count_(cell_count),
      stream_(stream),
      sorter_(context, count, cell_count, stream),
      shared_(scratch<float>(context, chunks_of(count) * elements, stream)) {}

void ShortFloatCells::apply(const Cells& cells, const ValueBatch& values, Action op, DType dtype) const {
  int lanes = 1;
  while (lanes < 32 && lanes < cells.elements) lanes *= 2;
  for (std::int64_t first = 0; first < cell_count_; first += BatchSorter::kMostRows) {
    const SortedBatch sorted = sorter_.sort(cells.index, first, cell_count_ - first);
    const Work work{cells, first, sorted, shared_.as<float>(), op, lanes};
    if (dtype == DType::kFloat16)
      launch_chunks<Float16>(work, values, stream_);
    else
      launch_chunks<BFloat16>(work, values, stream_);
  }
}

}  // namespace gpuhash::cuda
