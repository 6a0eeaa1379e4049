#pragma once

#include <type_traits>

#include "executor.hpp"
#include "probe.cuh"
#include "rows.cuh"

#ifndef FIND_BLOCK
#define FIND_BLOCK 128
#endif
namespace gpuhash::cuda {

inline constexpr unsigned kFindBlock = FIND_BLOCK;

/// What to do with the keys that a search does not find.
template <class Key>
struct AbsentList {
  Key* keys;  // null: nothing
};

/// Searches 32 keys per warp and writes values, row numbers and masks, each where its pointer is not null.
///
/// RowWord: void for values that lie beside their keys; else the word by which the rows of storage are copied.
///
/// kWhole: keys, and values if they are wanted, have the width and the alignment of those in the slots.
///
/// 12 blocks to a multiprocessor, that is 42 registers per thread: more loads in flight. Without the bound the compiler
/// takes 48, and finds 28.1 and 18.7 G keys/s at loads 0.5 and 0.8; with it 30.6 and 21.1, and with 16 blocks, which
/// spill registers, 28.2 and 21.6 (H200, 2^27 pairs of 8 + 8 bytes).
template <class View, class RowWord, bool kWhole>
__global__ void __launch_bounds__(kFindBlock, (sizeof(typename View::Key) <= 8 ? 12 : 8) * kBlock / kFindBlock)
    find_kernel(View view, KeyBatch keys, FindOutput out, AbsentList<typename View::Key> absent, RowShape shape) {
  using Key = typename View::Key;
  constexpr bool kCopiesRows = !std::is_void_v<RowWord>;
  __shared__ Workspace work;
  __shared__ std::int64_t found_rows[kCopiesRows ? kFindBlock : 1];
  [[maybe_unused]] std::int64_t* const warp_rows = found_rows + (kCopiesRows ? threadIdx.x / 32 * 32 : 0);
  if constexpr (kCopiesRows) {
    warp_rows[threadIdx.x % 32] = -1;
    __syncwarp();
  }
  std::uint8_t* owners = work.owners[threadIdx.x / 32];
  const std::int64_t i = std::int64_t{blockIdx.x} * kFindBlock + threadIdx.x;
  const std::int64_t first = i - threadIdx.x % 32;
  const bool valid = i < keys.count;
  Key key{};
  if (valid) {
    key = kWhole ? load_streaming(static_cast<const Key*>(keys.data) + i) : load_bytes<Key>(keys.data, i, keys.bytes);
  }
  Probe<Key> probe(key, view.geometry);

  const auto store_value = [&]([[maybe_unused]] std::int64_t at, [[maybe_unused]] const typename View::Value& value) {
    if constexpr (kWhole && View::kHasValue)
      __stcs(static_cast<typename View::Value*>(out.values) + at, value);
    else if constexpr (View::kHasValue)
      store_bytes(out.values, at, static_cast<std::uint32_t>(out.bytes), value);
  };
  const auto on_hit = [&](const typename View::SlotType& slot, int lane) {
    const std::int64_t at = first + lane;
    if (at >= keys.count) return;
    if constexpr (kCopiesRows) warp_rows[lane] = static_cast<std::int64_t>(slot.value);
    if constexpr (View::kHasValue) {
      if (!kCopiesRows && out.values != nullptr) store_value(at, slot.value);
      if (out.rows != nullptr) out.rows[at] = static_cast<std::int64_t>(slot.value);
    }
  };

  Seen seen = look<View, true, false, true>(view, kAllLanes, probe.stored(), probe.bucket(), owners, on_hit);
  bool found = seen.hit != 0;
  // An empty slot ends the search without a look at the filter.
  bool open = valid && !found && seen.empty == 0 && filter_has<true>(view.filters, probe.bucket(), probe.filter_bit());
  unsigned active = __ballot_sync(kAllLanes, open);
  while (active != 0) {
    if (open) probe.next(view.geometry);
    seen = look<View, true, false, false>(view, active, probe.stored(), probe.bucket(), owners, on_hit);
    if (open) {
      found = seen.hit != 0;
      open = !found && seen.empty == 0 && filter_has<true>(view.filters, probe.bucket(), probe.filter_bit()) &&
             !probe.exhausted(view.geometry);
    }
    active = __ballot_sync(kAllLanes, open);
  }

  if (valid) {
    if (out.found != nullptr) out.found[i] = found;
    if constexpr (View::kHasValue) {
      if (!found) {
        if (!kCopiesRows && out.values != nullptr) {
          const auto bytes = static_cast<std::uint32_t>(out.bytes);
          using Value = typename View::Value;
          store_value(i, out.fallback != nullptr ? load_bytes<Value>(out.fallback, 0, bytes) : Value{});
        }
        if (out.rows != nullptr) out.rows[i] = -1;
      }
    }
  }
  if constexpr (kCopiesRows) {
    __syncwarp();
    copy_warp_rows<RowWord>(
        shape,
        [&](int k) {
          return warp_rows[k] >= 0 ? reinterpret_cast<const RowWord*>(view.rows.data) + warp_rows[k] * shape.words
                                   : static_cast<const RowWord*>(out.fallback);
        },
        [&](int k) {
          return first + k < keys.count ? static_cast<RowWord*>(out.values) + (first + k) * shape.words : nullptr;
        });
  }
  const bool missing = valid && !found;
  if (absent.keys != nullptr) {
    const std::uint64_t place = take_ticket(&view.control->absent, missing);
    if (missing) absent.keys[place] = key;
  }
  if (out.count_missing) {
    std::uint64_t* const counters[3] = {&view.control->missing, nullptr, nullptr};
    add_to_control(work, counters, {missing, 0, 0});
  }
}

}  // namespace gpuhash::cuda
