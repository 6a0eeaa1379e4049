#pragma once

#include "executor.hpp"
#include "probe.cuh"

namespace gpuhash::cuda {

/// What to do with the keys that a search does not find.
template <class Key>
struct AbsentList {
  Key* keys;  // null: nothing
};

/// Searches 32 keys per warp and writes values, row numbers and masks, each where its pointer is not null.
template <class View>
__global__ void __launch_bounds__(kBlock)
    find_kernel(View view, KeyBatch keys, FindOutput out, AbsentList<typename View::Key> absent) {
  using Key = typename View::Key;
  __shared__ Workspace work;
  std::uint8_t* owners = work.owners[threadIdx.x / 32];
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const std::int64_t first = i - threadIdx.x % 32;
  const bool valid = i < keys.count;
  const Key key = valid ? load_bytes<Key>(keys.data, i, keys.bytes) : Key{};
  Probe<Key> probe(key, view.geometry);

  const auto on_hit = [&](const typename View::SlotType& slot, int lane) {
    const std::int64_t at = first + lane;
    if (at >= keys.count) return;
    if constexpr (View::kHasValue) {
      if (out.values != nullptr) store_bytes(out.values, at, static_cast<std::uint32_t>(out.bytes), slot.value);
      if (out.rows != nullptr) out.rows[at] = static_cast<std::int64_t>(slot.value);
    }
  };

  Seen seen = look<View, true, true>(view, kAllLanes, probe.stored(), probe.bucket(), owners, on_hit);
  bool found = seen.hit != 0;
  // An empty slot ends the search without a look at the filter.
  bool open = valid && !found && seen.empty == 0 && filter_has(view.filters, probe.bucket(), probe.filter_bit());
  unsigned active = __ballot_sync(kAllLanes, open);
  while (active != 0) {
    if (open) probe.next(view.geometry);
    seen = look<View, true, false>(view, active, probe.stored(), probe.bucket(), owners, on_hit);
    if (open) {
      found = seen.hit != 0;
      open = !found && seen.empty == 0 && filter_has(view.filters, probe.bucket(), probe.filter_bit()) &&
             !probe.exhausted(view.geometry);
    }
    active = __ballot_sync(kAllLanes, open);
  }

  if (valid) {
    if (out.found != nullptr) out.found[i] = found;
    if constexpr (View::kHasValue) {
      if (!found) {
        if (out.values != nullptr) {
          const auto bytes = static_cast<std::uint32_t>(out.bytes);
          using Value = typename View::Value;
          store_bytes(out.values, i, bytes,
                      out.fallback != nullptr ? load_bytes<Value>(out.fallback, 0, bytes) : Value{});
        }
        if (out.rows != nullptr) out.rows[i] = -1;
      }
    }
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
