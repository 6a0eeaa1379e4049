#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "cuda/launch.cuh"
#include "cuda/rows/initial_rows.hpp"
#include "cuda/rows/rows.cuh"
#include "cuda/walk/election.cuh"
#include "cuda/walk/find.cuh"
#include "cuda/walk/insert.cuh"

namespace gpuhash::cuda {

/// Gives a row to each listed key that is new. A lane whose key another one inserts leaves the number of its slot.
template <class View, bool kErased>
__global__ void __launch_bounds__(kBlock)
    insert_listed_kernel(View view, KeyBatch keys, const std::uint32_t* positions, bool* inserted, std::int64_t* rows) {
  using Key = typename View::Key;
  using Slot = typename View::SlotType;
  __shared__ Workspace work;
  Counts counts;
  const auto listed = static_cast<std::int64_t>(view.control->listed);
  for (std::int64_t first = std::int64_t{blockIdx.x} * kBlock; first < listed;
       first += std::int64_t{gridDim.x} * kBlock) {
    const std::int64_t t = first + threadIdx.x;
    const bool valid = t < listed;
    const std::int64_t i = valid ? positions[t] : 0;
    Key key{};
    if (valid) key = load_key<Key>(keys, i, false);
    Slot* claimed = nullptr;
    Slot* hit = nullptr;
    find_or_insert<View, kErased>(
        view, work.owners[threadIdx.x / 32], key, empty_value<typename View::Value>(), valid, counts,
        [&](Slot* slot) { hit = slot; }, [&](Slot* slot) { claimed = slot; });
    const std::int64_t row = give_row(view, claimed, counts);
    if (!valid) continue;
    inserted[i] = row != kNoRow;
    rows[i] = hit == nullptr ? row : slot_in_place_of_row(hit - view.slots);
  }
  counts.add_to(view, work);
}

/// An order with rows and a mask and without values, for keys most of which are there, as once a model has seen most of
/// its ids: a lookup, which is the fastest thing that a table does, lists the positions of the others, and only they
/// are inserted. How many there are only the GPU knows: what follows the lookup goes round as often as it takes.
/// `initial`, at least one column, is what new rows get.
template <class View>
void find_or_insert_rows(DeviceContext& context, const View& view, const InsertOrder& batch,
                         std::span<const ColumnInitial> initial, Stream stream) {
  const std::int64_t n = batch.keys.count;
  const Allocation positions = scratch<std::uint32_t>(context, n, stream);
  const ListedKeys listed{positions.as<std::uint32_t>(), &view.control->listed, value_bytes(view),
                          sizeof(typename View::SlotType)};
  FindOrder lookup{};
  lookup.rows = batch.rows;
  launch_find(view, batch.keys, lookup, AbsentPositions{positions.as<std::uint32_t>(), batch.inserted}, stream);
  launch("inserting rows", view.may_have_erased ? insert_listed_kernel<View, true> : insert_listed_kernel<View, false>,
         std::min(n, kListedAtOnce), kBlock, stream, view, batch.keys, listed.positions, batch.inserted, batch.rows);
  for (const ColumnInitial& column : initial)
    initialise_listed_rows(view.rows, column.rows, column.offset, batch.keys, batch.inserted, batch.rows, listed,
                           stream);
  count_off_row_tickets(view, stream);
}

}  // namespace gpuhash::cuda
