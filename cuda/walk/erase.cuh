#pragma once

#include "cuda/batch.cuh"
#include "cuda/walk/probe.cuh"
#include "table/executor.hpp"

namespace gpuhash::cuda {

/// Erases one key per lane; true in the one lane that did it, of all lanes of the grid with that key. on_erased(value)
/// gets what lay beside the key.
template <class View, class OnErased>
__device__ __forceinline__ bool erase_one(const View& view, std::uint8_t* owners, const typename View::Key& key,
                                          bool open, OnErased on_erased) {
  using Key = typename View::Key;
  Probe<Key> probe(key, view.geometry);
  const auto ignore = [](const typename View::SlotType&, int) {};
  const auto filter_has_key = [&] { return filter_has(view.filters, probe.bucket(), probe.filter_bit()); };
  bool gone = false;
  bool first = true;
  unsigned active = __ballot_sync(kAllLanes, open);
  while (active != 0) {
    const Seen seen = first ? look<View, Reads::kContended, false, true>(view, kAllLanes, probe.stored(),
                                                                         probe.bucket(), owners, ignore)
                            : look<View, Reads::kContended, false, false>(view, active, probe.stored(), probe.bucket(),
                                                                          owners, ignore);
    first = false;
    if (open) {
      if (seen.hit != 0) {
        typename View::SlotType* const slot =
            view.slots + std::uint64_t{probe.bucket()} * View::kSlots + slot_of_bit<View>(__ffs(seen.hit) - 1);
        typename View::Value value{};
        gone = release(slot, probe.stored(), mark_of_erased<Key>(seen.empty != 0), value);
        if (gone) on_erased(value);
        open = false;
      } else if (search_ends(seen.empty != 0, filter_has_key) || probe.exhausted(view.geometry)) {
        open = false;
      } else {
        probe.next(view.geometry);
      }
    }
    active = __ballot_sync(kAllLanes, open);
  }
  return gone;
}

/// Erases 32 keys per warp.
///
/// whole: keys have the width and the alignment of those in the slots.
template <class View>
__global__ void __launch_bounds__(kBlock) erase_kernel(View view, KeyBatch keys, bool whole, bool* erased) {
  using Key = typename View::Key;
  __shared__ Workspace work;
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const bool valid = i < keys.count;
  Key key{};
  if (valid) key = load_key<Key>(keys, i, whole);
  std::int64_t row = -1;
  const bool gone = erase_one(view, work.owners[threadIdx.x / 32], key, valid, [&](const typename View::Value& value) {
    if constexpr (View::kHasValue) row = static_cast<std::int64_t>(value);
  });
  if (view.rows.bytes != 0) {
    const std::uint64_t ticket = take_ticket(&view.control->free_rows, gone);
    if (gone) view.rows.free[ticket] = row;
  }
  if (valid && erased != nullptr) erased[i] = gone;
  std::uint64_t* const counters[3] = {&view.control->size, &view.control->erased, nullptr};
  add_to_control(work, counters, {-static_cast<int>(gone), gone, 0});
}

}  // namespace gpuhash::cuda
