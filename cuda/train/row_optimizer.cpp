#include "table/row_optimizer.hpp"

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include <gpuhash/error.hpp>
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/stream.hpp"
#include "cuda/train/work.hpp"
#include "shared/optimizer_step.hpp"

namespace gpuhash::cuda {
namespace {

bool is_whole(const void* data, std::int64_t stride, std::int64_t elements, DType dtype) {
  const auto vector = static_cast<std::uintptr_t>(kVector * static_cast<std::int64_t>(itemsize(dtype)));
  return elements % kVector == 0 &&
         (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride)) % vector == 0;
}

class CudaRowOptimizer final : public RowOptimizer {
 public:
  void train(DeviceContext& context, const RowView& rows, const TrainOrder& order, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const std::int64_t n = order.count;
    const std::int64_t elements = order.weights.elements;
    constexpr std::int64_t kMost = BatchSorter::kMostRows;
    if (n > kMost || rows.capacity > kMost)
      throw ShapeError("a batch of " + std::to_string(n) + " rows, of " + std::to_string(rows.capacity) +
                       " that there may be, was to be trained; a GPU takes up to " + std::to_string(kMost) +
                       " of each");
    const GroupShape shape(elements);
    const std::int64_t chunks = (n + kChunk - 1) / kChunk;
    const std::int64_t spans = n / (kChunk * kSpan);

    const BatchSorter sorter(context, n, rows.capacity, stream);
    const Allocation sums = scratch<float>(context, (2 * chunks + spans) * shape.padded, stream);
    const PartialSums parts{sums.as<float>(), sums.as<float>() + chunks * shape.padded,
                            sums.as<float>() + 2 * chunks * shape.padded, shape.padded};
    const SortedBatch batch = sorter.sort(order.rows, 0, rows.capacity);

    const auto column = [&](const ColumnPlace& place) {
      std::byte* const first = rows.data + place.offset;
      return TrainedColumn{first, rows.bytes, is_whole(first, rows.bytes, elements, place.dtype), place.dtype};
    };
    const Trained trained{column(order.weights),
                          {column(order.states[0]), column(order.states[1])},
                          elements,
                          StepNumbers(order.step),
                          order.step};
    const Gradients& gradients = order.gradients;
    const TrainGradients given{
        gradients, is_whole(gradients.data, elements * static_cast<std::int64_t>(itemsize(gradients.dtype)), elements,
                            gradients.dtype)};
    const TrainWork work{batch, given, trained, parts, chunks, spans, shape.lanes, shape.tiles()};
    shape.with_vectors([&](auto vectors) { launch_training<vectors>(work, stream); });
  }

  void pool(DeviceContext& context, const RowView& rows, const PoolOrder& order, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const ColumnPlace& place = order.column.place;
    std::byte* const first = rows.data + place.offset;
    const TrainedColumn column{first, rows.bytes, is_whole(first, rows.bytes, place.elements, place.dtype),
                               place.dtype};
    const bool whole = is_whole(order.column.values, place.bytes(), place.elements, place.dtype) &&
                       is_whole(order.column.fallback, place.bytes(), place.elements, place.dtype);
    const GroupShape shape(place.elements);
    const PoolWork work{column, order, rows.capacity, whole, shape.lanes, shape.tiles()};
    shape.with_vectors([&](auto vectors) { launch_pooling<vectors>(work, stream); });
  }
};

}  // namespace

const RowOptimizer& CudaAlgorithms::row_optimizer() {
  static const auto& optimizer = *new CudaRowOptimizer;  // never destroyed: threads may work at exit
  return optimizer;
}

}  // namespace gpuhash::cuda
