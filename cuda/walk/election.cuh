#pragma once

#include <cstdint>

#include "cuda/batch.cuh"
#include "cuda/launch.cuh"
#include "cuda/rows/columns.hpp"
#include "cuda/rows/rows.cuh"
#include "cuda/walk/find.cuh"
#include "cuda/walk/insert.cuh"
#include "table/executor.hpp"

/// Insertion in the order of the batch: the choice of one writer where it has several values for a key.
namespace gpuhash::cuda {

/// One 32-bit tag per slot or row, in which the positions of a batch that want to write it elect one.
struct Tags {
  std::byte* base;
  std::int64_t stride;  // bytes

  __device__ __forceinline__ std::uint32_t* at(std::int64_t target) const {
    return reinterpret_cast<std::uint32_t*>(base + target * stride);
  }
};

enum class Elect : std::uint8_t { kFirst, kLast };

/// Stage 1: what is in the tag must lose.
static __global__ void __launch_bounds__(kRowBlock)
    reset_tags_kernel(Tags tags, const std::int64_t* targets, std::int64_t count, Elect elect) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i < count && targets[i] >= 0) *tags.at(targets[i]) = elect == Elect::kFirst ? ~0u : 0u;
}

/// Stage 2: positions + 1 compete.
static __global__ void __launch_bounds__(kRowBlock)
    vote_kernel(Tags tags, const std::int64_t* targets, std::int64_t count, Elect elect) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count || targets[i] < 0) return;
  const auto ballot = static_cast<std::uint32_t>(i + 1);
  std::uint32_t* tag = tags.at(targets[i]);
  if (elect == Elect::kFirst)
    atomicMin(tag, ballot);
  else
    atomicMax(tag, ballot);
}

/// Stage 3: losers forget their target; `won` (null: not wanted) says who did not.
static __global__ void __launch_bounds__(kRowBlock)
    count_votes_kernel(Tags tags, std::int64_t* targets, std::int64_t count, bool* won) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count) return;
  const bool winner = targets[i] >= 0 && *tags.at(targets[i]) == static_cast<std::uint32_t>(i + 1);
  if (won != nullptr) won[i] = winner;
  if (!winner) targets[i] = -1;
}

/// targets[i] = locations[i] where absent[i]; else -1. `found` is the complement of absent.
static __global__ void __launch_bounds__(kRowBlock)
    targets_of_absent_kernel(const std::int64_t* locations, const bool* found, std::int64_t* targets,
                             std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i < count) targets[i] = found[i] ? -1 : locations[i];
}

/// Winners' values go beside their keys.
template <class View>
__global__ void __launch_bounds__(kRowBlock)
    store_values_kernel(View view, const std::int64_t* targets, ValueBatch values, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count || targets[i] < 0) return;
  view.slots[targets[i]].value = load_value<typename View::Value>(values, i, false);
}

static inline void elect(const Tags& tags, std::int64_t* targets, std::int64_t count, Elect elect, bool* won,
                         Stream stream) {
  launch("electing writers", reset_tags_kernel, count, kRowBlock, stream, tags, targets, count, elect);
  launch("electing writers", vote_kernel, count, kRowBlock, stream, tags, targets, count, elect);
  launch("electing writers", count_votes_kernel, count, kRowBlock, stream, tags, targets, count, won);
}

template <class View>
std::byte* value_bytes(const View& view) {
  if constexpr (View::kHasValue)
    return reinterpret_cast<std::byte*>(&view.slots->value);
  else
    return nullptr;
}

template <class View>
Tags row_tags(const View& view) {
  return {reinterpret_cast<std::byte*>(view.rows.tags), sizeof(std::uint32_t)};
}

template <class View>
void store_values(const View& view, const std::int64_t* targets, std::int64_t count, const ValueBatch& values,
                  Stream stream) {
  if constexpr (View::kHasValue) {
    if (view.rows.bytes != 0)
      write_rows(view.rows, targets, count, values, stream);
    else
      launch("storing values", store_values_kernel<View>, count, kRowBlock, stream, view, targets, values, count);
  }
}

/// As a loop over the batch would: the first of a new key's duplicates is the one that inserts, the last assigns.
template <class View>
void insert_in_order(DeviceContext& context, const View& view, const InsertOrder& batch, Stream stream) {
  const std::int64_t n = batch.keys.count;
  const bool rows = view.rows.bytes != 0;
  const bool keep = batch.action == Action::kKeep;
  const bool first_wanted = keep || batch.inserted != nullptr;
  const Allocation memory = scratch<std::int64_t>(context, batch.rows != nullptr ? 0 : n, stream);
  std::int64_t* const locations = batch.rows != nullptr ? batch.rows : memory.as<std::int64_t>();  // rows in the end
  const Allocation firsts = scratch<std::int64_t>(context, first_wanted ? n : 0, stream);
  const Allocation found = scratch<bool>(context, first_wanted ? n : 0, stream);
  // A set has no value in which to vote.
  const Allocation set_tags =
      scratch<std::uint32_t>(context, View::kHasValue ? 0 : static_cast<std::int64_t>(view.slot_count()), stream);

  if (first_wanted) {
    FindOrder out{};
    out.found = found.as<bool>();
    launch_find(view, batch.keys, out, AbsentKeys<typename View::Key>{}, stream);
  }
  insert_keys(view, batch.keys, nullptr, locations, stream);
  if constexpr (View::kHasValue) {
    if (rows) launch("reading row numbers", rows_of_locations_kernel<View>, n, kRowBlock, stream, view, locations, n);
  }
  const Tags tags = rows              ? row_tags(view)
                    : View::kHasValue ? Tags{value_bytes(view), sizeof(typename View::SlotType)}
                                      : Tags{set_tags.as<std::byte>(), sizeof(std::uint32_t)};
  if (first_wanted) {
    launch("electing writers", targets_of_absent_kernel, n, kRowBlock, stream,
           static_cast<const std::int64_t*>(locations), static_cast<const bool*>(found.as<bool>()),
           firsts.as<std::int64_t>(), n);
    elect(tags, firsts.as<std::int64_t>(), n, Elect::kFirst, batch.inserted, stream);
  }
  if (!keep) elect(tags, locations, n, Elect::kLast, nullptr, stream);
  if (batch.values.data != nullptr)
    store_values(view, keep ? firsts.as<std::int64_t>() : locations, n, batch.values, stream);
}

}  // namespace gpuhash::cuda
