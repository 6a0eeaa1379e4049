#include "table/row_optimizer.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cub/device/device_radix_sort.cuh>
#include <limits>
#include <string>
#include <type_traits>

#include <gpuhash/error.hpp>
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/probe.cuh"
#include "shared/optimizer_step.hpp"

/// Training rows. The batch's positions are sorted by row. A *group* of threads, as many as a row has vectors of four
/// elements for, up to a warp, takes a *chunk* of them, sums up the gradients of each row, and trains the row as soon
/// as it has the last one: so gradients are read once, in whole rows, and nothing is stored between sum and step. Only
/// a row whose positions lie in several chunks has its parts stored, and added up by a second kernel. A hot row has
/// many chunks: where one row has all of a *span* of them, their parts become one before.
///
/// No sum depends on timing.
namespace gpuhash::cuda {
namespace {

constexpr unsigned kTrainBlock = 256;
constexpr int kVector = 4;                                           // elements
constexpr std::int64_t kChunk = 64;                                  // positions
constexpr std::int64_t kSpan = 32;                                   // chunks
constexpr int kMostVectors = 8;                                      // of a thread
constexpr std::int64_t kMostElements = 32 * kVector * kMostVectors;  // that a group has at a time
static_assert(kMostElements == kMostOfRow);

using Row = std::uint32_t;

/// Positions of a batch in the order of their rows, those of one row in the order of the batch.
struct SortedBatch {
  const Row* rows;                 // [n]; `none` and above: no row's
  const std::uint32_t* positions;  // [n]
  std::int64_t count;
  Row none;

  __device__ __forceinline__ bool continues_before(std::int64_t i) const { return i != 0 && rows[i - 1] == rows[i]; }
};

/// A column in the rows of storage.
struct TrainedColumn {
  std::byte* first;
  std::int64_t stride;  // bytes
  bool whole;           // vectors of four elements can be loaded
  DType dtype;

  template <class T>
  __device__ __forceinline__ T* of(std::int64_t row) const {
    return reinterpret_cast<T*>(first + row * stride);
  }
};

struct Trained {
  TrainedColumn weights;
  TrainedColumn states[2];
  std::int64_t elements;
  StepNumbers numbers;
  OptimizerStep step;
};

struct TrainGradients {
  Gradients gradients;
  bool whole;
};

/// How the elements of a row are dealt out to a group.
struct GroupShape {
  int lanes = 1;        // a power of two
  std::int64_t padded;  // elements of a part: those of a row, and what makes the last vectors whole

  explicit GroupShape(std::int64_t elements) : padded((elements + kVector - 1) / kVector * kVector) {
    while (lanes < 32 && lanes * kVector < elements) lanes *= 2;
  }
  /// Calls run(vectors of a thread).
  template <class Run>
  void with_vectors(Run run) const {
    const std::int64_t of_thread = (padded + lanes * kVector - 1) / (lanes * kVector);
    if (of_thread <= 1)
      run(std::integral_constant<int, 1>());
    else if (of_thread <= 2)
      run(std::integral_constant<int, 2>());
    else
      run(std::integral_constant<int, kMostVectors>());
  }
};

/// This thread's place in its group.
struct Group {
  int lane;
  int lanes;
  unsigned mask;  // of the group in its warp
  std::int64_t number;

  __device__ __forceinline__ explicit Group(int group_lanes) : lanes(group_lanes) {
    const unsigned thread = threadIdx.x % 32;
    lane = static_cast<int>(thread) % lanes;
    const unsigned all = lanes == 32 ? kAllLanes : (1u << lanes) - 1;
    mask = all << (thread / static_cast<unsigned>(lanes) * static_cast<unsigned>(lanes));
    number = (std::int64_t{blockIdx.x} * kTrainBlock + threadIdx.x) / lanes;
  }
  __device__ __forceinline__ float sum(float value) const {
    for (int offset = lanes / 2; offset != 0; offset /= 2) value += __shfl_xor_sync(mask, value, offset);
    return value;
  }
};

/// Of a row, the elements of one thread.
template <int kVectors>
struct Elements {
  float values[kVectors][kVector] = {};

  __device__ __forceinline__ void add(const Elements& other, float factor = 1) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int k = 0; k < kVector; ++k) values[v][k] += factor * other.values[v][k];
  }
};

/// Calls body(v, the first element of a thread's v-th vector) for vectors that the row has.
template <int kVectors, class Body>
__device__ __forceinline__ void for_each_vector(const Group& group, std::int64_t elements, Body body) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t element = blockIdx.y * kMostElements + (std::int64_t{v} * group.lanes + group.lane) * kVector;
    if (element < elements) body(v, element);
  }
}

__device__ __forceinline__ void load_vector(const float* from, std::int64_t elements, bool whole,
                                            float (&to)[kVector]) {
  if (whole) {
    const float4 vector = *reinterpret_cast<const float4*>(from);
    to[0] = vector.x, to[1] = vector.y, to[2] = vector.z, to[3] = vector.w;
    return;
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) to[k] = k < elements ? from[k] : 0;
}

__device__ __forceinline__ void load_vector(const BFloat16* from, std::int64_t elements, bool whole,
                                            float (&to)[kVector]) {
  if (whole) {
    const uint2 vector = *reinterpret_cast<const uint2*>(from);
    to[0] = cast_bits<float>(vector.x << 16), to[1] = cast_bits<float>(vector.x & 0xffff0000u);
    to[2] = cast_bits<float>(vector.y << 16), to[3] = cast_bits<float>(vector.y & 0xffff0000u);
    return;
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) to[k] = k < elements ? from[k].to_float() : 0;
}

__device__ __forceinline__ void store_vector(float* to, std::int64_t elements, bool whole,
                                             const float (&from)[kVector]) {
  if (whole) {
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
    return;
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k)
    if (k < elements) to[k] = from[k];
}

/// One row's column, of which a thread loads and stores vectors.
template <class T>
struct RowPart {
  T* data;
  std::int64_t elements;
  bool whole;

  __device__ __forceinline__ void load(std::int64_t element, float (&to)[kVector]) const {
    load_vector(data + element, elements - element, whole, to);
  }
  __device__ __forceinline__ void store(std::int64_t element, const float (&from)[kVector]) const {
    store_vector(data + element, elements - element, whole, from);
  }
};

/// Of weights in bfloat16 a step is rounded as it is stored.
struct RoundedPart {
  BFloat16* data;
  std::int64_t elements;
  bool whole;
  bool stochastic;
  StochasticRounding rounding;

  __device__ __forceinline__ void load(std::int64_t element, float (&to)[kVector]) const {
    load_vector(data + element, elements - element, whole, to);
  }
  __device__ __forceinline__ void store(std::int64_t element, const float (&from)[kVector]) const {
    PhiloxBlock random{};
    if (stochastic) {
      float weights[kVector];
#pragma unroll
      for (int k = 0; k < kVector; ++k) weights[k] = k < elements - element ? from[k] : 0;
      random = rounding.block(static_cast<std::uint64_t>(element / kVector), weights);
    }
    std::uint32_t bits[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k)
      bits[k] = (stochastic ? StochasticRounding::round(from[k], random.words[k]) : BFloat16::from_float(from[k])).bits;
    if (whole) {
      *reinterpret_cast<uint2*>(data + element) = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
      return;
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k)
      if (k < elements - element) data[element + k].bits = static_cast<std::uint16_t>(bits[k]);
  }
};

/// The optimizer's step on one row, whose gradient the group has summed up.
template <int kVectors, class Weights>
__device__ __forceinline__ void train_weights(const Trained& trained, const Group& group, std::int64_t row,
                                              const Weights& weights, const Elements<kVectors>& gradient) {
  const StepNumbers& numbers = trained.numbers;
  const std::int64_t elements = trained.elements;
  const auto state = [&](int i) {
    const TrainedColumn& column = trained.states[i];
    return RowPart<float>{column.of<float>(row), elements, column.whole};
  };
  switch (numbers.optimizer) {
    case Optimizer::kSgd:
      for_each_vector<kVectors>(group, elements, [&](int v, std::int64_t element) {
        float weight[kVector];
        weights.load(element, weight);
#pragma unroll
        for (int k = 0; k < kVector; ++k) weight[k] -= numbers.learning_rate * gradient.values[v][k];
        weights.store(element, weight);
      });
      return;
    case Optimizer::kAdagrad:
      for_each_vector<kVectors>(group, elements, [&](int v, std::int64_t element) {
        float weight[kVector];
        float sum[kVector];
        weights.load(element, weight);
        state(0).load(element, sum);
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          const float g = gradient.values[v][k];
          sum[k] += g * g;
          weight[k] -= adagrad_step(numbers, sum[k], g);
        }
        weights.store(element, weight);
        state(0).store(element, sum);
      });
      return;
    case Optimizer::kRowWiseAdagrad: {
      float square = 0;
      for_each_vector<kVectors>(group, elements, [&](int v, std::int64_t) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) square += gradient.values[v][k] * gradient.values[v][k];
      });
      float* const kept = trained.states[0].of<float>(row);
      const float sum = *kept + group.sum(square) / static_cast<float>(elements);
      for_each_vector<kVectors>(group, elements, [&](int v, std::int64_t element) {
        float weight[kVector];
        weights.load(element, weight);
#pragma unroll
        for (int k = 0; k < kVector; ++k) weight[k] -= adagrad_step(numbers, sum, gradient.values[v][k]);
        weights.store(element, weight);
      });
      __syncwarp(group.mask);  // all have read it
      if (group.lane == 0) *kept = sum;
      return;
    }
    case Optimizer::kAdam:
      for_each_vector<kVectors>(group, elements, [&](int v, std::int64_t element) {
        float weight[kVector];
        float mean[kVector];
        float square[kVector];
        weights.load(element, weight);
        state(0).load(element, mean);
        state(1).load(element, square);
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          add_to_means(numbers, mean[k], square[k], gradient.values[v][k]);
          weight[k] -= adam_step(numbers, mean[k], square[k]);
        }
        weights.store(element, weight);
        state(0).store(element, mean);
        state(1).store(element, square);
      });
      return;
    case Optimizer::kLamb: {
      Elements<kVectors> weight;
      Elements<kVectors> direction;
      float weight_square = 0;
      float direction_square = 0;
      for_each_vector<kVectors>(group, elements, [&](int v, std::int64_t element) {
        float mean[kVector];
        float square[kVector];
        weights.load(element, weight.values[v]);
        state(0).load(element, mean);
        state(1).load(element, square);
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          const float w = weight.values[v][k];
          add_to_means(numbers, mean[k], square[k], gradient.values[v][k]);
          const float d = k < elements - element ? lamb_direction(numbers, mean[k], square[k], w) : 0;
          direction.values[v][k] = d;
          weight_square += w * w;
          direction_square += d * d;
        }
        state(0).store(element, mean);
        state(1).store(element, square);
      });
      const float rate = lamb_rate(numbers, group.sum(weight_square), group.sum(direction_square));
      weight.add(direction, -rate);
      for_each_vector<kVectors>(group, elements,
                                [&](int v, std::int64_t element) { weights.store(element, weight.values[v]); });
      return;
    }
  }
}

template <int kVectors>
__device__ __forceinline__ void train_row(const Trained& trained, const Group& group, std::int64_t row,
                                          const Elements<kVectors>& gradient) {
  const TrainedColumn& column = trained.weights;
  if (column.dtype == DType::kFloat32)
    train_weights(trained, group, row, RowPart<float>{column.of<float>(row), trained.elements, column.whole}, gradient);
  else
    train_weights(trained, group, row,
                  RoundedPart{column.of<BFloat16>(row), trained.elements, column.whole,
                              trained.step.stochastic_rounding, StochasticRounding(trained.step)},
                  gradient);
}

/// Asks for what a step on the row will read, which is to be there when its gradients have been summed up.
template <int kVectors>
__device__ __forceinline__ void ask_for_row(const Trained& trained, const Group& group, std::int64_t row) {
  const auto ask = [](const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); };
  const bool by_row = trained.numbers.optimizer == Optimizer::kRowWiseAdagrad;
  const std::size_t states = by_row ? 0 : state_columns(trained.numbers.optimizer);  // of each weight
  if (by_row && group.lane == 0) ask(trained.states[0].of<float>(row));
  for_each_vector<kVectors>(group, trained.elements, [&](int, std::int64_t element) {
    const TrainedColumn& weights = trained.weights;
    ask(weights.of<std::byte>(row) + element * (weights.dtype == DType::kFloat32 ? 4 : 2));
    if (states > 0) ask(trained.states[0].of<float>(row) + element);
    if (states > 1) ask(trained.states[1].of<float>(row) + element);
  });
}

/// Sums over a chunk's positions of rows that have positions in other chunks as well.
struct Parts {
  float* heads;  // [chunks, padded]: of the row that has positions in the chunk before, too
  float* tails;  // [chunks, padded]: of the row that begins in this chunk and goes on in the next one
  float* spans;  // [spans, padded]: of a row that has all of a span's chunks, and positions before
  std::int64_t padded;

  template <int kVectors>
  __device__ __forceinline__ void store(float* parts, std::int64_t number, const Group& group,
                                        const Elements<kVectors>& sum) const {
    for_each_vector<kVectors>(group, padded, [&](int v, std::int64_t element) {
      store_vector(parts + number * padded + element, kVector, true, sum.values[v]);
    });
  }
  template <int kVectors>
  __device__ __forceinline__ void add(const float* parts, std::int64_t number, const Group& group,
                                      Elements<kVectors>& sum) const {
    Elements<kVectors> part;
    for_each_vector<kVectors>(group, padded, [&](int v, std::int64_t element) {
      load_vector(parts + number * padded + element, kVector, true, part.values[v]);
    });
    sum.add(part);
  }
};

/// One chunk for each group.
template <class Gradient, int kVectors>
__global__ void __launch_bounds__(kTrainBlock, kVectors == 1 ? 4 : 1)
    train_kernel(SortedBatch batch, TrainGradients given, Trained trained, Parts parts, int lanes) {
  constexpr int kAhead =
      kVectors >= kMostVectors ? 1 : kMostVectors / kVectors / 2;  // gradients that are loaded at a time
  const Group group(lanes);
  const std::int64_t begin = group.number * kChunk;
  if (begin >= batch.count) return;
  const std::int64_t end = min(begin + kChunk, batch.count);
  const Gradients& gradients = given.gradients;

  Elements<kVectors> sum;
  Row row = batch.rows[begin];
  bool opens = !batch.continues_before(begin);  // the row has no positions before this chunk
  for (std::int64_t first = begin; first < end; first += kAhead) {
    Elements<kVectors> gradient[kAhead];
    float factors[kAhead];
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      factors[r] = 1;
      if (first + r >= end) continue;
      if (const Row next = batch.rows[first + r];
          next < batch.none && (first + r == begin || batch.rows[first + r - 1] != next))
        ask_for_row<kVectors>(trained, group, static_cast<std::int64_t>(next));
      const std::int64_t position = batch.positions[first + r];
      const std::int64_t item = gradients.item_of == nullptr ? position : gradients.item_of[position];
      if (gradients.factors != nullptr) factors[r] = gradients.factors[position];
      const auto* const from = static_cast<const Gradient*>(gradients.data) + item * trained.elements;
      for_each_vector<kVectors>(group, trained.elements, [&](int v, std::int64_t element) {
        load_vector(from + element, trained.elements - element, given.whole, gradient[r].values[v]);
      });
    }
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      const std::int64_t i = first + r;
      if (i >= end) break;
      sum.add(gradient[r], factors[r]);
      const bool is_last = i + 1 == batch.count || batch.rows[i + 1] != row;
      if (!is_last && i + 1 != end) continue;
      if (row < batch.none) {
        if (opens && is_last)
          train_row(trained, group, static_cast<std::int64_t>(row), sum);
        else
          parts.store(opens ? parts.tails : parts.heads, group.number, group, sum);
      }
      sum = {};
      opens = true;
      if (i + 1 < end) row = batch.rows[i + 1];
    }
  }
}

/// One span for each group.
template <int kVectors>
__global__ void __launch_bounds__(kTrainBlock) add_spans_kernel(SortedBatch batch, Parts parts, int lanes) {
  const Group group(lanes);
  const std::int64_t begin = group.number * kSpan * kChunk;
  const std::int64_t end = begin + kSpan * kChunk;
  if (end > batch.count) return;
  const Row row = batch.rows[begin];
  if (row >= batch.none || !batch.continues_before(begin) || batch.rows[end - 1] != row) return;
  Elements<kVectors> sum;
#pragma unroll 4
  for (std::int64_t chunk = group.number * kSpan; chunk < (group.number + 1) * kSpan; ++chunk)
    parts.add(parts.heads, chunk, group, sum);
  parts.store(parts.spans, group.number, group, sum);
}

/// One chunk for each group: the row that begins in it and goes on in others.
template <int kVectors>
__global__ void __launch_bounds__(kTrainBlock)
    train_parted_kernel(SortedBatch batch, Trained trained, Parts parts, int lanes) {
  const Group group(lanes);
  const std::int64_t begin = group.number * kChunk;
  const std::int64_t end = begin + kChunk;
  if (end >= batch.count) return;
  const Row row = batch.rows[end - 1];
  if (row >= batch.none || batch.rows[end] != row || (begin != 0 && batch.rows[begin - 1] == row)) return;
  Elements<kVectors> sum;
  parts.add(parts.tails, group.number, group, sum);
  std::int64_t chunk = group.number + 1;
  do {
    const std::int64_t span_end = (chunk + kSpan) * kChunk;
    if (chunk % kSpan == 0 && span_end <= batch.count && batch.rows[span_end - 1] == row) {
      parts.add(parts.spans, chunk / kSpan, group, sum);
      chunk += kSpan;
    } else {
      parts.add(parts.heads, chunk, group, sum);
      ++chunk;
    }
  } while (chunk * kChunk < batch.count && batch.rows[chunk * kChunk] == row);
  train_row(trained, group, static_cast<std::int64_t>(row), sum);
}

__global__ void __launch_bounds__(kTrainBlock) number_positions_kernel(const std::int64_t* numbers, std::int64_t count,
                                                                       Row none, Row* rows, std::uint32_t* positions) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kTrainBlock + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = numbers[i];
  rows[i] = row >= 0 && row < static_cast<std::int64_t>(none) ? static_cast<Row>(row) : none;
  positions[i] = static_cast<std::uint32_t>(i);
}

bool is_whole(const void* data, std::int64_t stride, std::int64_t elements, DType dtype) {
  const auto vector = static_cast<std::uintptr_t>(kVector * static_cast<std::int64_t>(itemsize(dtype)));
  return elements % kVector == 0 &&
         (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride)) % vector == 0;
}

/// One bag for each group.
template <class Weight, int kVectors>
__global__ void __launch_bounds__(kTrainBlock)
    pool_kernel(TrainedColumn column, PoolOrder order, std::int64_t capacity, bool whole, int lanes) {
  constexpr int kAhead = kVectors >= kMostVectors ? 1 : kMostVectors / kVectors / 2;  // rows that are loaded at a time
  const Group group(lanes);
  if (group.number >= order.bags.count) return;
  const std::int64_t elements = order.column.place.elements;
  const std::int64_t begin = max(order.bags.offsets[group.number], std::int64_t{0});
  const std::int64_t end = min(order.bags.offsets[group.number + 1], order.count);
  Elements<kVectors> sum;
  for (std::int64_t first = begin; first < end; first += kAhead) {
    Elements<kVectors> loaded[kAhead];
    float factors[kAhead];
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
      factors[r] = 0;
      const std::int64_t i = first + r;
      if (i >= end) continue;
      const std::int64_t row = order.rows[i];
      const bool is_row = row >= 0 && row < capacity;
      const auto* const from =
          is_row ? column.of<const Weight>(row) : static_cast<const Weight*>(order.column.fallback);
      if (from == nullptr) continue;
      factors[r] = order.bags.factors == nullptr ? 1 : order.bags.factors[i];
      for_each_vector<kVectors>(group, elements, [&](int v, std::int64_t element) {
        load_vector(from + element, elements - element, is_row ? column.whole : whole, loaded[r].values[v]);
      });
    }
#pragma unroll
    for (int r = 0; r < kAhead; ++r) sum.add(loaded[r], factors[r]);
  }
  for_each_vector<kVectors>(group, elements, [&](int v, std::int64_t element) {
    auto* const out = static_cast<Weight*>(order.column.values) + group.number * elements;
    if constexpr (std::is_same_v<Weight, float>)
      store_vector(out + element, elements - element, whole, sum.values[v]);
    else
      RoundedPart{out, elements, whole, false, StochasticRounding(OptimizerStep{})}.store(element, sum.values[v]);
  });
}

class CudaRowOptimizer final : public RowOptimizer {
 public:
  void train(DeviceContext& context, const RowView& rows, const TrainOrder& order, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const std::int64_t n = order.count;
    const std::int64_t elements = order.weights.elements;
    constexpr std::int64_t kMost = std::numeric_limits<Row>::max();
    if (n > kMost || rows.capacity > kMost)
      throw ShapeError("a batch of " + std::to_string(n) + " rows, of " + std::to_string(rows.capacity) +
                       " that there may be, was to be trained; a GPU takes up to " + std::to_string(kMost) +
                       " of each");
    const GroupShape shape(elements);
    const std::int64_t chunks = (n + kChunk - 1) / kChunk;
    const std::int64_t spans = n / (kChunk * kSpan);

    const Allocation sorted_rows = scratch<Row>(context, 2 * n, stream);
    const Allocation positions = scratch<std::uint32_t>(context, 2 * n, stream);
    const Allocation sums = scratch<float>(context, (2 * chunks + spans) * shape.padded, stream);
    const Parts parts{sums.as<float>(), sums.as<float>() + chunks * shape.padded,
                      sums.as<float>() + 2 * chunks * shape.padded, shape.padded};
    const auto none = static_cast<Row>(rows.capacity);
    cub::DoubleBuffer<Row> row_buffers(sorted_rows.as<Row>(), sorted_rows.as<Row>() + n);
    cub::DoubleBuffer<std::uint32_t> position_buffers(positions.as<std::uint32_t>(), positions.as<std::uint32_t>() + n);
    const int bits = std::bit_width(static_cast<std::uint64_t>(none));
    std::size_t bytes = 0;
    check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, row_buffers, position_buffers, n, 0, bits, handle(stream)),
          "planning a sort of rows");
    const Allocation workspace(context, std::max<std::size_t>(bytes, 1), stream);

    launch("numbering positions", number_positions_kernel, n, kTrainBlock, stream, order.rows, n, none,
           row_buffers.Current(), position_buffers.Current());
    launch_may_fail("sorting rows");
    check(cub::DeviceRadixSort::SortPairs(workspace.get(), bytes, row_buffers, position_buffers, n, 0, bits,
                                          handle(stream)),
          "sorting rows");
    const SortedBatch batch{row_buffers.Current(), position_buffers.Current(), n, none};

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
    shape.with_vectors([&](auto vectors) {
      if (gradients.dtype == DType::kFloat32)
        train_sorted<float, vectors>(batch, given, trained, parts, chunks, spans, shape, stream);
      else
        train_sorted<BFloat16, vectors>(batch, given, trained, parts, chunks, spans, shape, stream);
    });
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
    const auto tiles = static_cast<unsigned>((shape.padded + kMostElements - 1) / kMostElements);
    shape.with_vectors([&](auto vectors) {
      launch_tiles("summing up bags",
                   place.dtype == DType::kFloat32 ? pool_kernel<float, vectors> : pool_kernel<BFloat16, vectors>,
                   order.bags.count * shape.lanes, tiles, stream, column, order, rows.capacity, whole, shape.lanes);
    });
  }

 private:
  template <class Gradient, int kVectors>
  static void train_sorted(const SortedBatch& batch, const TrainGradients& given, const Trained& trained,
                           const Parts& parts, std::int64_t chunks, std::int64_t spans, const GroupShape& shape,
                           Stream stream) {
    const auto tiles = static_cast<unsigned>((shape.padded + kMostElements - 1) / kMostElements);
    launch_tiles("training rows", train_kernel<Gradient, kVectors>, chunks * shape.lanes, tiles, stream, batch, given,
                 trained, parts, shape.lanes);
    launch_tiles("adding up gradients", add_spans_kernel<kVectors>, spans * shape.lanes, tiles, stream, batch, parts,
                 shape.lanes);
    launch_tiles("training rows", train_parted_kernel<kVectors>, chunks * shape.lanes, tiles, stream, batch, trained,
                 parts, shape.lanes);
  }

  /// One thread per item, for each tile of kMostElements elements.
  template <class... Parameters, class... Arguments>
  static void launch_tiles(const char* action, void (*kernel)(Parameters...), std::int64_t threads, unsigned tiles,
                           Stream stream, const Arguments&... arguments) {
    if (threads == 0) return;
    launch_may_fail(action);
    kernel<<<dim3(blocks(threads, kTrainBlock), tiles), kTrainBlock, 0, handle(stream)>>>(arguments...);
    check_launch(action);
  }
};

}  // namespace

const RowOptimizer& CudaAlgorithms::row_optimizer() {
  static const CudaRowOptimizer optimizer;
  return optimizer;
}

}  // namespace gpuhash::cuda
