#pragma once

#include <cstdint>

#include "executor.hpp"
#include "probe.cuh"

/// Row storage: whole rows in and out, and the choice of one writer where a batch has several values for a key.
namespace gpuhash::cuda {

inline constexpr unsigned kRowBlock = 256;

/// How a row is copied: `lanes` neighbouring threads (a power of two) move it in words as wide as its alignment allows.
struct RowShape {
  std::int64_t words;
  int lanes;
};

/// out[i] = storage[rows[i]], or the fallback (null: zeros) where rows[i] < 0.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    gather_rows_kernel(Word* out, const Word* storage, const std::int64_t* rows, const Word* fallback,
                       std::int64_t count, RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = rows[i];
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes) {
    const Word word = row >= 0 ? storage[row * shape.words + w] : fallback != nullptr ? fallback[w] : Word{};
    out[i * shape.words + w] = word;
  }
}

/// storage[rows[i]] = values[i] for the writers, which are the i with rows[i] >= 0.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    scatter_rows_kernel(Word* storage, const std::int64_t* rows, const Word* values, bool broadcast, std::int64_t count,
                        RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = rows[i];
  if (row < 0) return;
  const Word* from = broadcast ? values : values + i * shape.words;
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes) storage[row * shape.words + w] = from[w];
}

/// storage[rows[i]] = `element` over and over, for rows[i] >= 0.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    fill_rows_kernel(Word* storage, const std::int64_t* rows, Word element, std::int64_t count, RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = rows[i];
  if (row < 0) return;
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes) storage[row * shape.words + w] = element;
}

/// rows[i] = the row number in slot locations[i], in place; -1 where `only` says false.
template <class View>
__global__ void __launch_bounds__(kRowBlock)
    rows_of_locations_kernel(View view, std::int64_t* locations, const bool* only, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count) return;
  const bool wanted = locations[i] >= 0 && (only == nullptr || only[i]);
  locations[i] = wanted ? static_cast<std::int64_t>(view.slots[locations[i]].value) : -1;
}

/// One 32-bit tag per place, in which the positions of a batch that want the place elect one.
struct Tags {
  std::byte* base;
  std::int64_t stride;  // bytes

  __device__ __forceinline__ std::uint32_t* at(std::int64_t place) const {
    return reinterpret_cast<std::uint32_t*>(base + place * stride);
  }
};

enum class Elect : std::uint8_t { kAny, kFirst, kLast };

/// Stage 1, needed for kFirst and kLast: what is in the tag must lose.
static __global__ void __launch_bounds__(kRowBlock)
    reset_tags_kernel(Tags tags, const std::int64_t* places, std::int64_t count, Elect elect) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i < count && places[i] >= 0) *tags.at(places[i]) = elect == Elect::kFirst ? ~0u : 0u;
}

/// Stage 2: positions + 1 compete.
static __global__ void __launch_bounds__(kRowBlock)
    vote_kernel(Tags tags, const std::int64_t* places, std::int64_t count, Elect elect) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count || places[i] < 0) return;
  const auto ballot = static_cast<std::uint32_t>(i + 1);
  std::uint32_t* tag = tags.at(places[i]);
  if (elect == Elect::kAny)
    *tag = ballot;
  else if (elect == Elect::kFirst)
    atomicMin(tag, ballot);
  else
    atomicMax(tag, ballot);
}

/// Stage 3: losers forget their place; `won` (null: not wanted) says who did not.
static __global__ void __launch_bounds__(kRowBlock)
    count_votes_kernel(Tags tags, std::int64_t* places, std::int64_t count, bool* won) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count) return;
  const bool winner = places[i] >= 0 && *tags.at(places[i]) == static_cast<std::uint32_t>(i + 1);
  if (won != nullptr) won[i] = winner;
  if (!winner) places[i] = -1;
}

/// Winners' values go beside their keys.
template <class View>
__global__ void __launch_bounds__(kRowBlock)
    store_values_kernel(View view, const std::int64_t* places, ValueBatch values, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count || places[i] < 0) return;
  view.slots[places[i]].value =
      load_bytes<typename View::Value>(values.data, values.broadcast ? 0 : i, static_cast<std::uint32_t>(values.bytes));
}

/// places[i] = locations[i] where absent[i]; else -1. `found` is the complement of absent.
static __global__ void __launch_bounds__(kRowBlock)
    places_of_absent_kernel(const std::int64_t* locations, const bool* found, std::int64_t* places,
                            std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i < count) places[i] = found[i] ? -1 : locations[i];
}

}  // namespace gpuhash::cuda
