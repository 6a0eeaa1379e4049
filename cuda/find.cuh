#pragma once

#include <type_traits>

#include "executor.hpp"
#include "probe.cuh"
#include "rows.cuh"

namespace gpuhash::cuda {

/// What to do with the keys that a search does not find.
template <class Key>
struct AbsentList {
  Key* keys;  // null: nothing
};

/// Keys that a warp works off at most: more than that many rows' numbers do not fit its part of the shared memory.
inline constexpr std::uint32_t kMaxRowChunk = 256;

/// Copies the rows of a warp's keys, `rows` [count] in shared memory, -1 for absent keys; 32 / shape.lanes side by
/// side.
template <class Word>
__device__ __forceinline__ void gather_chunk_rows(const FindOutput& out, const std::byte* storage, RowShape shape,
                                                  const std::int64_t* rows, const Chunk& chunk) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t lanes = static_cast<std::uint32_t>(shape.lanes);
  for (std::uint32_t at = lane / lanes; at < chunk.count; at += 32 / lanes) {
    const Word* from = rows[at] >= 0 ? reinterpret_cast<const Word*>(storage) + rows[at] * shape.words
                                     : static_cast<const Word*>(out.fallback);
    Word* const to = static_cast<Word*>(out.values) + (chunk.first + at) * shape.words;
    for (std::int64_t w = lane % lanes; w < shape.words; w += lanes) to[w] = from != nullptr ? from[w] : Word{};
  }
}

/// Searches a chunk of keys per warp and writes values, row numbers and masks, each where its pointer is not null.
///
/// RowWord: void for values that lie beside their keys; else the word by which the rows of storage are copied.
///
/// kWhole: keys, and values if they are wanted, have the width and the alignment of those in the slots.
///
/// 12 blocks to a multiprocessor, that is 40 registers per thread: more loads in flight.
template <class View, class RowWord, bool kWhole>
__global__ void __launch_bounds__(kBlock, sizeof(typename View::Key) <= 8 ? FIND_BLOCKS : 8)
    find_kernel(View view, KeyBatch keys, FindOutput out, AbsentList<typename View::Key> absent, RowShape shape,
                std::uint32_t chunk_length) {
  using Key = typename View::Key;
  using Value = typename View::Value;
  using SlotType = typename View::SlotType;
  constexpr bool kCopiesRows = !std::is_void_v<RowWord>;
  __shared__ Workspace work;
  __shared__ Queue<Key, NoLoad> queues[kWarps];
  __shared__ std::int64_t found_rows[kCopiesRows ? kWarps * kMaxRowChunk : 1];
  [[maybe_unused]] std::int64_t* const rows = found_rows + (kCopiesRows ? threadIdx.x / 32 * kMaxRowChunk : 0);
  const Chunk chunk = Chunk::of_warp(keys.count, chunk_length);
  if constexpr (kCopiesRows)
    for (std::uint32_t at = threadIdx.x % 32; at < chunk.count; at += 32) rows[at] = -1;

  const auto store_value = [&]([[maybe_unused]] std::int64_t i, [[maybe_unused]] const Value& value) {
    if constexpr (kWhole && View::kHasValue)
      __stcs(static_cast<Value*>(out.values) + i, value);
    else if constexpr (View::kHasValue)
      store_bytes(out.values, i, static_cast<std::uint32_t>(out.bytes), value);
  };
  int missing_keys = 0;
  walk_chunk<View, true, NoLoad>(
      view, chunk.count, queues[threadIdx.x / 32],
      [&](std::uint32_t at, Key& key, NoLoad&) {
        key = kWhole ? load_streaming(static_cast<const Key*>(keys.data) + chunk.first + at)
                     : load_bytes<Key>(keys.data, chunk.first + at, keys.bytes);
        return true;
      },
      [&]([[maybe_unused]] const SlotType& slot, [[maybe_unused]] std::uint32_t at) {
        if constexpr (View::kHasValue) {
          if constexpr (kCopiesRows)
            rows[at] = static_cast<std::int64_t>(slot.value);
          else if (out.values != nullptr)
            store_value(chunk.first + at, slot.value);
          if (out.rows != nullptr) out.rows[chunk.first + at] = static_cast<std::int64_t>(slot.value);
        }
      },
      [&](bool on, std::uint32_t at, Probe<Key>& probe, NoLoad&, const Seen& seen) {
        // An empty slot ends the search without a look at the filter.
        const bool goes_on = on && seen.hit == 0 && seen.empty == 0 &&
                             filter_has<true>(view.filters, probe.bucket(), probe.filter_bit()) &&
                             !probe.exhausted(view.geometry);
        const bool missing = on && seen.hit == 0 && !goes_on;
        if (absent.keys != nullptr) {
          const std::uint64_t place = take_ticket(&view.control->absent, missing);
          if (missing) absent.keys[place] = key_of_slot(probe.stored(), probe.bucket() == view.geometry.bucket_count);
        }
        if (goes_on) probe.next(view.geometry);
        if (!on || goes_on) return goes_on;
        const std::int64_t i = chunk.first + at;
        if (out.found != nullptr) out.found[i] = !missing;
        missing_keys += missing;
        if constexpr (View::kHasValue) {
          if (missing) {
            if (!kCopiesRows && out.values != nullptr)
              store_value(i, out.fallback != nullptr
                                 ? load_bytes<Value>(out.fallback, 0, static_cast<std::uint32_t>(out.bytes))
                                 : Value{});
            if (out.rows != nullptr) out.rows[i] = -1;
          }
        }
        return false;
      });

  if constexpr (kCopiesRows) {
    __syncwarp();
    gather_chunk_rows<RowWord>(out, view.rows.data, shape, rows, chunk);
  }
  if (out.count_missing) {
    std::uint64_t* const counters[3] = {&view.control->missing, nullptr, nullptr};
    add_to_control(work, counters, {missing_keys, 0, 0});
  }
}

}  // namespace gpuhash::cuda
