#pragma once

#include <cstddef>

#include "cuda/launch.cuh"
#include "cuda/rows/rows.cuh"
#include "cuda/walk/insert.cuh"

namespace gpuhash::cuda {

/// Finds or inserts 32 keys per warp and copies their rows, where no order of duplicates is asked for.
///
/// Where row numbers are asked for, a lane whose key has none yet leaves the number of its slot instead.
///
/// A slot is claimed with the value of an empty slot, which is no row number, and gets its row number once the warp has
/// taken its tickets. So a lane that finds its key with that value has a duplicate of a new key: the row of the lane
/// that claimed the slot stays, and it has nothing to copy. All others that assign, new keys' lanes too, elect one
/// writer per row: the first to swap the batch's epoch into the row's tag. It alone copies, so a row stays whole.
template <class View, bool kErased>
__global__ void __launch_bounds__(kBlock) insert_rows_kernel(View view, InsertOrder batch, RowShape shape) {
  using Key = typename View::Key;
  using Value = typename View::Value;
  __shared__ Workspace work;
  __shared__ std::int64_t rows[kBlock];  // to be written; negative: none
  std::int64_t* const warp_rows = rows + threadIdx.x / 32 * 32;
  const int lane = threadIdx.x % 32;
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const std::int64_t first = i - lane;
  const bool valid = i < batch.keys.count;
  static_assert(static_cast<std::int64_t>(empty_value<Value>()) < 0);
  warp_rows[lane] = -1;
  __syncwarp();
  Key key{};
  if (valid) key = load_key<Key>(batch.keys, i, false);

  Counts counts;
  typename View::SlotType* claimed = nullptr;
  typename View::SlotType* hit = nullptr;
  find_or_insert<View, kErased>(
      view, work.owners[threadIdx.x / 32], key, empty_value<Value>(), valid, counts,
      [&](typename View::SlotType* slot) { hit = slot; }, [&](typename View::SlotType* slot) { claimed = slot; },
      [&](const typename View::SlotType& slot, int of) { warp_rows[of] = static_cast<std::int64_t>(slot.value); });
  const std::int64_t new_row = give_row(view, claimed, counts);
  const bool is_new = new_row != kNoRow;
  if (valid && batch.inserted != nullptr) batch.inserted[i] = is_new;

  __syncwarp();
  const std::int64_t row = claimed != nullptr ? new_row : valid ? warp_rows[lane] : -1;
  if (valid && batch.rows != nullptr)
    batch.rows[i] = row >= 0 || hit == nullptr ? row : slot_in_place_of_row(hit - view.slots);
  bool writes = row >= 0;
  if (batch.action == Action::kKeep) {
    writes = is_new;
  } else if (writes) {
    const std::uint32_t epoch = row_epoch(view);
    writes = atomicExch(view.rows.tags + row, epoch) != epoch;
  }
  warp_rows[lane] = writes ? row : -1;
  __syncwarp();
  if (batch.values.data != nullptr)
    copy_warp_rows(
        shape,
        [&](int k) {
          const auto* const values = static_cast<const std::byte*>(batch.values.data);
          return static_cast<const void*>(values + (batch.values.broadcast ? 0 : (first + k) * view.rows.bytes));
        },
        [&](int k) {
          return static_cast<void*>(warp_rows[k] >= 0 ? view.rows.data + warp_rows[k] * view.rows.bytes : nullptr);
        });
  counts.add_to(view, work);
}

template <class View>
void insert_rows(const View& view, const InsertOrder& batch, Stream stream) {
  launch("inserting rows", view.may_have_erased ? insert_rows_kernel<View, true> : insert_rows_kernel<View, false>,
         batch.keys.count, kBlock, stream, view, batch,
         row_shape(view.rows.bytes, {view.rows.data, batch.values.data}));
  count_off_row_tickets(view, stream);
  if (batch.rows != nullptr)
    launch("reading row numbers", settle_row_numbers_kernel<View>, batch.keys.count, kRowBlock, stream, view,
           batch.rows, batch.keys.count);
}

}  // namespace gpuhash::cuda
