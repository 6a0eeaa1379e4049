#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/check.hpp"
#include "cuda/launch.cuh"
#include "cuda/train/work.hpp"
#include "cuda/walk/probe.cuh"
#include "shared/optimizer_step.hpp"

/// The kernels behind work.hpp.
namespace gpuhash::cuda {

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

/// A row in bfloat16: what is stored in it is rounded.
struct RoundedRow {
  BFloat16* data;
  std::int64_t elements;
  bool whole;
  bool stochastic;
  StochasticRounding rounding;

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

/// The columns of one row that is trained, of which a thread loads and stores vectors.
struct TrainedRow {
  const Trained& trained;
  std::int64_t row;

  __device__ __forceinline__ void load_weights(std::int64_t element, float (&to)[kVector]) const {
    const TrainedColumn& column = trained.weights;
    const std::int64_t left = trained.elements - element;
    if (column.dtype == DType::kFloat32)
      load_vector(column.of<float>(row) + element, left, column.whole, to);
    else
      load_vector(column.of<BFloat16>(row) + element, left, column.whole, to);
  }
  __device__ __forceinline__ void store_weights(std::int64_t element, const float (&from)[kVector]) const {
    const TrainedColumn& column = trained.weights;
    if (column.dtype == DType::kFloat32)
      store_vector(column.of<float>(row) + element, trained.elements - element, column.whole, from);
    else
      RoundedRow{column.of<BFloat16>(row), trained.elements, column.whole, trained.step.stochastic_rounding,
                 StochasticRounding(trained.step)}
          .store(element, from);
  }
  __device__ __forceinline__ void load_state(int i, std::int64_t element, float (&to)[kVector]) const {
    const TrainedColumn& column = trained.states[i];
    load_vector(column.of<float>(row) + element, trained.elements - element, column.whole, to);
  }
  __device__ __forceinline__ void store_state(int i, std::int64_t element, const float (&from)[kVector]) const {
    const TrainedColumn& column = trained.states[i];
    store_vector(column.of<float>(row) + element, trained.elements - element, column.whole, from);
  }
};

/// The mean of the squared gradient over the row.
template <int kVectors>
__device__ __forceinline__ float mean_square(const TrainedRow& row, const Group& group,
                                             const Elements<kVectors>& gradient) {
  const StepNumbers& numbers = row.trained.numbers;
  float square = 0;
  for_each_vector<kVectors>(group, row.trained.elements, [&](int v, std::int64_t element) {
    float weight[kVector] = {};
    if (numbers.weight_decay != 0) row.load_weights(element, weight);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const float g = with_decay(numbers, gradient.values[v][k], weight[k]);
      square += g * g;
    }
  });
  return group.sum(square) / static_cast<float>(row.trained.elements);
}

/// Of kLamb: adds the gradient to the means, and puts the direction in its place. Returns the rate.
template <int kVectors>
__device__ __forceinline__ float make_direction(const TrainedRow& row, const Group& group,
                                                Elements<kVectors>& gradient) {
  const StepNumbers& numbers = row.trained.numbers;
  float weight_square = 0;
  float direction_square = 0;
  for_each_vector<kVectors>(group, row.trained.elements, [&](int v, std::int64_t element) {
    float weight[kVector];
    float mean[kVector];
    float square[kVector];
    row.load_state(0, element, mean);
    row.load_state(1, element, square);
    row.load_weights(element, weight);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      add_to_means(numbers, mean[k], square[k], gradient.values[v][k]);
      const bool is_there = k < row.trained.elements - element;
      const float d = is_there ? lamb_direction(numbers, mean[k], square[k], weight[k]) : 0;
      gradient.values[v][k] = d;
      weight_square += weight[k] * weight[k];
      direction_square += d * d;
    }
    row.store_state(0, element, mean);
    row.store_state(1, element, square);
  });
  return lamb_rate(numbers, group.sum(weight_square), group.sum(direction_square));
}

/// The optimizer of a kernel: one that is known when it is compiled, or any.
///
/// Steps of rows of up to 256 elements have a kernel for each optimizer, which has registers for what that one reads
/// alone. Without, a backward pass of 2^20 ids and rows of 128 took 1.3 (SGD) to 1.5 times as long on an H200. Wider
/// rows share one kernel, as the unrolled loops of each take a compiler five times as long.
template <Optimizer kOptimizer>
struct One {
  __device__ __forceinline__ static constexpr Optimizer of(const StepNumbers&) { return kOptimizer; }
};
struct Any {
  __device__ __forceinline__ static Optimizer of(const StepNumbers& numbers) { return numbers.optimizer; }
};

/// State columns with a number for each weight, which a step changes beside it.
__device__ __forceinline__ constexpr std::size_t states_beside(Optimizer optimizer) {
  return optimizer == Optimizer::kRowWiseAdagrad ? 0 : state_columns(optimizer);
}

/// The optimizer's step on one row, whose gradient the group has summed up; it is used up.
template <class Chosen, int kVectors>
__device__ __forceinline__ void train_row(const Trained& trained, const Group& group, std::int64_t number,
                                          Elements<kVectors>& gradient) {
  const StepNumbers& numbers = trained.numbers;
  const Optimizer optimizer = Chosen::of(numbers);
  const TrainedRow row{trained, number};
  float of_row = 0;  // the sum of kRowWiseAdagrad, or the rate of kLamb
  if (optimizer == Optimizer::kRowWiseAdagrad)
    of_row = *trained.states[0].of<float>(number) + mean_square(row, group, gradient);
  else if (optimizer == Optimizer::kLamb)
    of_row = make_direction(row, group, gradient);
  const std::size_t states = optimizer == Optimizer::kLamb ? 0 : states_beside(optimizer);
  for_each_vector<kVectors>(group, trained.elements, [&](int v, std::int64_t element) {
    float weight[kVector];
    float first[kVector] = {};
    float second[kVector] = {};
    if (states > 0) row.load_state(0, element, first);
    if (states > 1) row.load_state(1, element, second);
    row.load_weights(element, weight);
    const auto& g = gradient.values[v];
    switch (optimizer) {
      case Optimizer::kSgd:
#pragma unroll
        for (int k = 0; k < kVector; ++k) weight[k] -= numbers.learning_rate * with_decay(numbers, g[k], weight[k]);
        break;
      case Optimizer::kAdagrad:
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          const float decayed = with_decay(numbers, g[k], weight[k]);
          first[k] += decayed * decayed;
          weight[k] -= adagrad_step(numbers, first[k], decayed);
        }
        break;
      case Optimizer::kRowWiseAdagrad:
#pragma unroll
        for (int k = 0; k < kVector; ++k)
          weight[k] -= adagrad_step(numbers, of_row, with_decay(numbers, g[k], weight[k]));
        break;
      case Optimizer::kAdam:
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          add_to_means(numbers, first[k], second[k], with_decay(numbers, g[k], weight[k]));
          weight[k] -= adam_step(numbers, first[k], second[k]);
        }
        break;
      case Optimizer::kLamb:
#pragma unroll
        for (int k = 0; k < kVector; ++k) weight[k] -= of_row * g[k];
        break;
    }
    row.store_weights(element, weight);
    if (states > 0) row.store_state(0, element, first);
    if (states > 1) row.store_state(1, element, second);
  });
  if (optimizer == Optimizer::kRowWiseAdagrad) {
    __syncwarp(group.mask);  // all have read it
    if (group.lane == 0) *trained.states[0].of<float>(number) = of_row;
  }
}

/// Asks for what a step on the row will read, which is to be there when its gradients have been summed up.
template <class Chosen, int kVectors>
__device__ __forceinline__ void ask_for_row(const Trained& trained, const Group& group, std::int64_t row) {
  const auto ask = [](const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); };
  const Optimizer optimizer = Chosen::of(trained.numbers);
  const std::size_t states = states_beside(optimizer);
  if (optimizer == Optimizer::kRowWiseAdagrad && group.lane == 0) ask(trained.states[0].of<float>(row));
  for_each_vector<kVectors>(group, trained.elements, [&](int, std::int64_t element) {
    const TrainedColumn& weights = trained.weights;
    ask(weights.of<std::byte>(row) + element * (weights.dtype == DType::kFloat32 ? 4 : 2));
    if (states > 0) ask(trained.states[0].of<float>(row) + element);
    if (states > 1) ask(trained.states[1].of<float>(row) + element);
  });
}

template <int kVectors>
__device__ __forceinline__ void store_part(const PartialSums& parts, float* to, std::int64_t number, const Group& group,
                                           const Elements<kVectors>& sum) {
  for_each_vector<kVectors>(group, parts.padded, [&](int v, std::int64_t element) {
    store_vector(to + number * parts.padded + element, kVector, true, sum.values[v]);
  });
}

template <int kVectors>
__device__ __forceinline__ void add_part(const PartialSums& parts, const float* from, std::int64_t number,
                                         const Group& group, Elements<kVectors>& sum) {
  Elements<kVectors> part;
  for_each_vector<kVectors>(group, parts.padded, [&](int v, std::int64_t element) {
    load_vector(from + number * parts.padded + element, kVector, true, part.values[v]);
  });
  sum.add(part);
}

/// One chunk for each group.
template <class Chosen, int kVectors>
__global__ void __launch_bounds__(kTrainBlock, kVectors == 1 ? 4 : 1)
    train_kernel(SortedBatch batch, TrainGradients given, Trained trained, PartialSums parts, int lanes) {
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
        ask_for_row<Chosen, kVectors>(trained, group, static_cast<std::int64_t>(next));
      const std::int64_t position = batch.positions[first + r];
      const std::int64_t item = gradients.item_of == nullptr ? position : gradients.item_of[position];
      if (gradients.factors != nullptr) factors[r] = gradients.factors[position];
      const auto load = [&](const auto* from) {
        for_each_vector<kVectors>(group, trained.elements, [&](int v, std::int64_t element) {
          load_vector(from + item * trained.elements + element, trained.elements - element, given.whole,
                      gradient[r].values[v]);
        });
      };
      if (gradients.dtype == DType::kFloat32)
        load(static_cast<const float*>(gradients.data));
      else
        load(static_cast<const BFloat16*>(gradients.data));
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
          train_row<Chosen>(trained, group, static_cast<std::int64_t>(row), sum);
        else
          store_part(parts, opens ? parts.tails : parts.heads, group.number, group, sum);
      }
      sum = {};
      opens = true;
      if (i + 1 < end) row = batch.rows[i + 1];
    }
  }
}

/// One span for each group.
template <int kVectors>
__global__ void __launch_bounds__(kTrainBlock) add_spans_kernel(SortedBatch batch, PartialSums parts, int lanes) {
  const Group group(lanes);
  const std::int64_t begin = group.number * kSpan * kChunk;
  const std::int64_t end = begin + kSpan * kChunk;
  if (end > batch.count) return;
  const Row row = batch.rows[begin];
  if (row >= batch.none || !batch.continues_before(begin) || batch.rows[end - 1] != row) return;
  Elements<kVectors> sum;
#pragma unroll 4
  for (std::int64_t chunk = group.number * kSpan; chunk < (group.number + 1) * kSpan; ++chunk)
    add_part(parts, parts.heads, chunk, group, sum);
  store_part(parts, parts.spans, group.number, group, sum);
}

/// One chunk for each group: the row that begins in it and goes on in others.
template <class Chosen, int kVectors>
__global__ void __launch_bounds__(kTrainBlock)
    train_parted_kernel(SortedBatch batch, Trained trained, PartialSums parts, int lanes) {
  const Group group(lanes);
  const std::int64_t begin = group.number * kChunk;
  const std::int64_t end = begin + kChunk;
  if (end >= batch.count) return;
  const Row row = batch.rows[end - 1];
  if (row >= batch.none || batch.rows[end] != row || (begin != 0 && batch.rows[begin - 1] == row)) return;
  Elements<kVectors> sum;
  add_part(parts, parts.tails, group.number, group, sum);
  std::int64_t chunk = group.number + 1;
  do {
    const std::int64_t span_end = (chunk + kSpan) * kChunk;
    if (chunk % kSpan == 0 && span_end <= batch.count && batch.rows[span_end - 1] == row) {
      add_part(parts, parts.spans, chunk / kSpan, group, sum);
      chunk += kSpan;
    } else {
      add_part(parts, parts.heads, chunk, group, sum);
      ++chunk;
    }
  } while (chunk * kChunk < batch.count && batch.rows[chunk * kChunk] == row);
  train_row<Chosen>(trained, group, static_cast<std::int64_t>(row), sum);
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
      RoundedRow{out, elements, whole, false, StochasticRounding(OptimizerStep{})}.store(element, sum.values[v]);
  });
}

/// One thread per item, for each tile.
template <class... Parameters, class... Arguments>
void launch_tiles(const char* action, void (*kernel)(Parameters...), std::int64_t threads, unsigned tiles,
                  Stream stream, const Arguments&... arguments) {
  if (threads == 0) return;
  launch_may_fail(action);
  kernel<<<dim3(blocks(threads, kTrainBlock), tiles), kTrainBlock, 0, handle(stream)>>>(arguments...);
  check_launch(action);
}

template <class Chosen, int kVectors>
void launch_training_by(const TrainWork& work, Stream stream) {
  const auto run = [&](const char* action, auto kernel, std::int64_t groups, const auto&... arguments) {
    launch_tiles(action, kernel, groups * work.lanes, work.tiles, stream, work.batch, arguments..., work.parts,
                 work.lanes);
  };
  run("training rows", train_kernel<Chosen, kVectors>, work.chunks, work.given, work.trained);
  run("adding up gradients", add_spans_kernel<kVectors>, work.spans);
  run("training rows", train_parted_kernel<Chosen, kVectors>, work.chunks, work.trained);
}

template <int kVectors>
void launch_training(const TrainWork& work, Stream stream) {
  if constexpr (kVectors >= kMostVectors) {
    launch_training_by<Any, kVectors>(work, stream);
  } else {
    switch (work.trained.numbers.optimizer) {
      case Optimizer::kSgd:
        return launch_training_by<One<Optimizer::kSgd>, kVectors>(work, stream);
      case Optimizer::kAdagrad:
        return launch_training_by<One<Optimizer::kAdagrad>, kVectors>(work, stream);
      case Optimizer::kRowWiseAdagrad:
        return launch_training_by<One<Optimizer::kRowWiseAdagrad>, kVectors>(work, stream);
      case Optimizer::kAdam:
        return launch_training_by<One<Optimizer::kAdam>, kVectors>(work, stream);
      case Optimizer::kLamb:
        return launch_training_by<One<Optimizer::kLamb>, kVectors>(work, stream);
    }
  }
}

template <int kVectors>
void launch_pooling(const PoolWork& work, Stream stream) {
  const PoolOrder& order = work.order;
  launch_tiles(
      "summing up bags",
      order.column.place.dtype == DType::kFloat32 ? pool_kernel<float, kVectors> : pool_kernel<BFloat16, kVectors>,
      order.bags.count * work.lanes, work.tiles, stream, work.column, order, work.capacity, work.whole, work.lanes);
}

}  // namespace gpuhash::cuda
