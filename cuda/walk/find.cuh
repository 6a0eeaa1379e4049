#pragma once

#include <cstddef>
#include <type_traits>

#include "cuda/batch.cuh"
#include "cuda/l2.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows/rows.cuh"
#include "cuda/walk/probe.cuh"
#include "shared/advance_chain.hpp"
#include "table/executor.hpp"

namespace gpuhash::cuda {

inline constexpr unsigned kFindBlock = 64;  // threads; in small blocks few warps wait for the one that searches longest

/// What becomes of the keys that a search does not find: their keys are listed, in any order.
template <class Key>
struct AbsentKeys {
  Key* keys;  // null: none are

  __device__ __forceinline__ void note(Control& control, const Key& key, std::int64_t, bool, bool missing) const {
    if (keys == nullptr) return;
    const std::uint64_t ticket = take_ticket(&control.absent, missing);
    if (missing) keys[ticket] = key;
  }
};

/// Or their positions in the batch, with a mask that is cleared for all keys.
struct AbsentPositions {
  std::uint32_t* positions;
  bool* mask;

  template <class Key>
  __device__ __forceinline__ void note(Control& control, const Key&, std::int64_t i, bool valid, bool missing) const {
    if (valid) mask[i] = false;
    const std::uint64_t ticket = take_ticket(&control.listed, missing);
    if (missing) positions[ticket] = static_cast<std::uint32_t>(i);
  }
};

/// When a warp has gone through so many buckets, and so few of its keys are still searched for, all lanes look into the
/// next buckets of each, and at their filters, at once: in a nearly full table a batch waits for the last of its keys,
/// whose buckets may be a hundred. Sooner, or for more keys, that costs more than it saves.
inline constexpr int kPatience = 5;
inline constexpr int kFewSearches = 4;

/// Ends the searches that are `open`, in at most kFewSearches lanes; true where it finds the key, whose value it puts
/// into values[lane]. The whole warp calls it.
///
/// Not inlined: it comes seldom, and inlined it took a twentieth of the speed of what comes always.
template <class View>
__device__ __noinline__ bool search_ahead(const View& view, Probe<typename View::Key> probe, bool open,
                                          std::uint8_t* owners, [[maybe_unused]] typename View::Value* values) {
  using Key = typename View::Key;
  using L = Lanes<View>;
  const int lane = threadIdx.x % 32;
  const int group = lane / L::kPerBucket;
  bool found = false;
  unsigned active = __ballot_sync(kAllLanes, open);
  while (active != 0) {
    const int count = __popc(active);
    const int width = static_cast<int>(L::kKeysPerStep) / count;  // buckets for each key
    const int rank = __popc(active & ((1u << lane) - 1));
    __syncwarp();
    if (open) owners[rank] = static_cast<std::uint8_t>(lane);
    __syncwarp();
    const bool on = group / width < count;
    const int source = on ? owners[group / width] : 0;
    Probe<Key> ahead = shuffle_words(probe, source);
    for (int hop = group % width; hop >= 0; --hop) ahead.next(view.geometry);

    bool hit = false;
    bool ends = false;
    if (on) {
      LaneSlots<View, Reads::kOnce> loaded;
      loaded.load(view.slots + std::uint64_t{ahead.bucket()} * View::kSlots + lane % L::kPerBucket * L::kSlots);
      ends = !filter_has<true>(view.filters, ahead.bucket(), ahead.filter_bit()) || ahead.exhausted(view.geometry);
#pragma unroll
      for (int s = 0; s < static_cast<int>(L::kSlots); ++s) {
        ends = ends || loaded.slots[s].key == empty_key<Key>();
        if (!(loaded.slots[s].key == ahead.stored())) continue;
        hit = true;
        if constexpr (View::kHasValue) values[source] = loaded.slots[s].value;
      }
    }
    const unsigned hits = __ballot_sync(kAllLanes, hit);
    const unsigned ended = __ballot_sync(kAllLanes, ends);
    if (open) {
      const int bits = width * static_cast<int>(L::kPerBucket);
      const unsigned mask = (bits == 32 ? kAllLanes : (1u << bits) - 1) << (rank * bits);
      found = (hits & mask) != 0;
      open = !found && (ended & mask) == 0;
      for (int hop = 0; hop < width; ++hop) probe.next(view.geometry);
    }
    active = __ballot_sync(kAllLanes, open);
  }
  return found;
}

/// Searches 32 keys per warp and writes values, row numbers and masks, each where its pointer is not null.
///
/// kRows: values are rows of storage, of that shape, and do not lie beside their keys.
///
/// whole: keys, and values that lie beside them if they are wanted, have the width and the alignment of those in the
/// slots. kWhole: that is so.
///
/// kAhead: what lasts long is ended by search_ahead(). Not in tables that lie in L2, where that it might be costs 5 %.
///
/// 24 blocks to a multiprocessor, that is 42 registers per thread: more loads in flight (docs/dead-ends.md).
template <class View, bool kRows, bool kWhole, bool kAhead, class Absent>
__global__ void __launch_bounds__(kFindBlock, sizeof(typename View::Key) <= 8 ? 24 : 16)
    find_kernel(const __grid_constant__ View view, KeyBatch keys, bool whole, FindOrder out, Absent absent,
                RowShape shape) {
  using Key = typename View::Key;
  constexpr Reads kReads = kAhead ? Reads::kOnce : Reads::kCached;
  __shared__ Workspace work;
  // What a lane has found for another one: handed over here, it leaves in whole sectors, in the order of the keys.
  using Value = typename View::Value;
  __shared__ Value found_values[View::kHasValue ? kFindBlock : 1];
  [[maybe_unused]] Value* const warp_values = found_values + (View::kHasValue ? threadIdx.x / 32 * 32 : 0);
  std::uint8_t* owners = work.owners[threadIdx.x / 32];
  const std::int64_t i = std::int64_t{blockIdx.x} * kFindBlock + threadIdx.x;
  if (i == 0 && out.step.taken != nullptr) advance_chain(out.step);
  const std::int64_t first = i - threadIdx.x % 32;
  const bool valid = i < keys.count;
  Key key{};
  if (valid) key = load_key<Key>(keys, i, kWhole || whole);
  Probe<Key> probe(key, view.geometry);

  const auto on_hit = [&]([[maybe_unused]] const typename View::SlotType& slot, [[maybe_unused]] int lane) {
    if constexpr (View::kHasValue) warp_values[lane] = slot.value;
  };

  Seen seen = look<View, kReads, false, true>(view, kAllLanes, probe.stored(), probe.bucket(), owners, on_hit);
  bool found = seen.hit != 0;
  const auto filter_has_key = [&] { return filter_has<true>(view.filters, probe.bucket(), probe.filter_bit()); };
  bool open = valid && !found && !search_ends(seen.empty != 0, filter_has_key);
  unsigned active = __ballot_sync(kAllLanes, open);
  for (int round = 0; active != 0 && (!kAhead || round < kPatience || __popc(active) > kFewSearches); ++round) {
    if (open) probe.next(view.geometry);
    seen = look<View, kReads, false, false>(view, active, probe.stored(), probe.bucket(), owners, on_hit);
    if (open) {
      found = seen.hit != 0;
      open = !found && !search_ends(seen.empty != 0, filter_has_key) && !probe.exhausted(view.geometry);
    }
    active = __ballot_sync(kAllLanes, open);
  }
  if constexpr (kAhead) {
    if (active != 0) {
      const bool found_ahead = search_ahead(view, probe, open, owners, warp_values);
      found = found || found_ahead;
    }
  }

  __syncwarp();  // all values are there
  [[maybe_unused]] const unsigned found_lanes = __ballot_sync(kAllLanes, found);
  if (valid && out.found != nullptr) out.found[i] = found;
  if constexpr (View::kHasValue) {
    const Value value = found ? warp_values[threadIdx.x % 32] : Value{};
    if (valid && out.rows != nullptr) out.rows[i] = found ? static_cast<std::int64_t>(value) : -1;
    if constexpr (kRows) {
      const std::int64_t bytes = view.rows.bytes;
      const auto* const fallback = static_cast<const std::byte*>(out.fallback);
      auto* const values = static_cast<std::byte*>(out.values);
      copy_warp_rows(
          shape,
          [&](int k) {
            return static_cast<const void*>((found_lanes >> k & 1) != 0 ? view.rows.data + warp_values[k] * bytes
                                            : out.fallback_per_key      ? fallback + (first + k) * bytes
                                                                        : fallback);
          },
          [&](int k) { return static_cast<void*>(first + k < keys.count ? values + (first + k) * bytes : nullptr); });
    } else if (valid && out.values != nullptr) {
      const auto bytes = static_cast<std::uint32_t>(out.bytes);
      const Value stored = found || out.fallback == nullptr
                               ? value
                               : load_bytes<Value>(out.fallback, out.fallback_per_key ? i : 0, bytes);
      if (kWhole || whole)
        __stcs(static_cast<Value*>(out.values) + i, stored);
      else
        store_bytes(out.values, i, bytes, stored);
    }
  }
  const bool missing = valid && !found;
  absent.note(*view.control, key, i, valid, missing);
  if (out.count_missing) {
    std::uint64_t* const counters[3] = {&view.control->missing, nullptr, nullptr};
    add_to_control(work, counters, {missing, 0, 0});
  }
}

template <class View, class Absent>
void launch_find(const View& view, const KeyBatch& keys, const FindOrder& out, const Absent& absent, Stream stream) {
  using Value = typename View::Value;
  bool whole = has_whole_words<Slot<typename View::Key, NoValue>>(keys, {});
  if constexpr (kMayHaveRows<View> && !std::is_same_v<Absent, AbsentPositions>) {
    if (view.rows.bytes != 0 && out.values != nullptr) {
      return launch("finding keys", find_kernel<View, true, false, true, Absent>, keys.count, kFindBlock, stream, view,
                    keys, whole, out, absent, row_shape(view.rows.bytes, {view.rows.data, out.values, out.fallback}));
    }
  }
  if constexpr (View::kHasValue)
    whole = whole && (out.values == nullptr || (out.bytes == sizeof(Value) && is_aligned<Value>(out.values)));
  const bool ahead = !lies_in_l2<View>(view.geometry);
  auto* kernel = ahead ? find_kernel<View, false, false, true, Absent> : find_kernel<View, false, false, false, Absent>;
  if constexpr (View::kHasValue && !std::is_same_v<Absent, AbsentPositions>)
    if (whole)
      kernel = ahead ? find_kernel<View, false, true, true, Absent> : find_kernel<View, false, true, false, Absent>;
  launch("finding keys", kernel, keys.count, kFindBlock, stream, view, keys, whole, out, absent, RowShape{});
}

}  // namespace gpuhash::cuda
