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

/// A key, and later what was found for it.
template <class View>
union FindCell {
  typename View::Key key;
  typename View::Value value;
};

/// A warp's chunk in shared memory: read and written in full lines of global memory, in whatever order its keys finish.
template <class View>
struct FindStage {
  FindCell<View> cells[kMaxChunk<FindCell<View>>];
  bool found[kMaxChunk<FindCell<View>>];
};

/// Copies the rows whose numbers are in the stage, 32 / shape.lanes of them side by side.
template <class Word, class View>
__device__ __forceinline__ void gather_chunk_rows(const FindOutput& out, const std::byte* storage, RowShape shape,
                                                  const FindStage<View>& stage, const Chunk& chunk) {
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t lanes = static_cast<std::uint32_t>(shape.lanes);
  for (std::uint32_t at = lane / lanes; at < chunk.count; at += 32 / lanes) {
    const Word* from = stage.found[at] ? reinterpret_cast<const Word*>(storage) +
                                             static_cast<std::int64_t>(stage.cells[at].value) * shape.words
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
  constexpr bool kCopiesRows = !std::is_void_v<RowWord>;
  __shared__ Workspace work;
  __shared__ FindStage<View> stages[kWarps];
  FindStage<View>& stage = stages[threadIdx.x / 32];
  const std::uint32_t lane = threadIdx.x % 32;
  const Chunk chunk = Chunk::of_warp(keys.count, chunk_length);
  const auto load_key = [&](std::uint32_t at) {
    const std::int64_t i = chunk.first + at;
    return kWhole ? load_streaming(static_cast<const Key*>(keys.data) + i) : load_bytes<Key>(keys.data, i, keys.bytes);
  };
#pragma unroll 4
  for (std::uint32_t at = lane; at < chunk.count; at += 32) stage.cells[at].key = load_key(at);
  __syncwarp();

  Feed feed{chunk.count};
  Probe<Key> probe;
  std::uint32_t mine = 0;
  bool open = false;
  while (true) {
    if (feed.take(!open, mine)) {
      probe = Probe<Key>(stage.cells[mine].key, view.geometry);
      open = true;
    }
    const unsigned active = __ballot_sync(kAllLanes, open);
    if (active == 0) break;
    const Seen seen =
        look<View, true>(view, active, probe.stored(), probe.bucket(), mine,
                         [&]([[maybe_unused]] const typename View::SlotType& slot, [[maybe_unused]] std::uint32_t at) {
                           if constexpr (View::kHasValue) stage.cells[at].value = slot.value;
                         });
    if (open) {
      // An empty slot ends the search without a look at the filter.
      if (seen.hit == 0 && seen.empty == 0 && filter_has<true>(view.filters, probe.bucket(), probe.filter_bit()) &&
          !probe.exhausted(view.geometry)) {
        probe.next(view.geometry);
      } else {
        stage.found[mine] = seen.hit != 0;
        open = false;
      }
    }
  }
  __syncwarp();

  if constexpr (View::kHasValue && !kCopiesRows) {
    if (out.values != nullptr) {
      const auto bytes = static_cast<std::uint32_t>(out.bytes);
      const Value fallback = out.fallback != nullptr ? load_bytes<Value>(out.fallback, 0, bytes) : Value{};
      for (std::uint32_t at = lane; at < chunk.count; at += 32) {
        const Value value = stage.found[at] ? stage.cells[at].value : fallback;
        if constexpr (kWhole)
          __stcs(static_cast<Value*>(out.values) + chunk.first + at, value);
        else
          store_bytes(out.values, chunk.first + at, bytes, value);
      }
    }
  }
  if constexpr (View::kHasValue)
    if (out.rows != nullptr)
      for (std::uint32_t at = lane; at < chunk.count; at += 32)
        out.rows[chunk.first + at] = stage.found[at] ? static_cast<std::int64_t>(stage.cells[at].value) : -1;
  if (out.found != nullptr)
    for (std::uint32_t at = lane; at < chunk.count; at += 32) out.found[chunk.first + at] = stage.found[at];
  if constexpr (kCopiesRows) gather_chunk_rows<RowWord>(out, view.rows.data, shape, stage, chunk);
  if (absent.keys != nullptr) {
    for (std::uint32_t at = lane; at - lane < chunk.count; at += 32) {
      const bool missing = at < chunk.count && !stage.found[at];
      const std::uint64_t place = take_ticket(&view.control->absent, missing);
      if (missing) absent.keys[place] = load_key(at);
    }
  }
  if (out.count_missing) {
    int missing = 0;
    for (std::uint32_t at = lane; at < chunk.count; at += 32) missing += !stage.found[at];
    std::uint64_t* const counters[3] = {&view.control->missing, nullptr, nullptr};
    add_to_control(work, counters, {missing, 0, 0});
  }
}

}  // namespace gpuhash::cuda
