#include "cuda/initial_rows.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/launch.cuh"
#include "cuda/rows.cuh"
#include "shared/initial_rows.hpp"

namespace gpuhash::cuda {
namespace {

/// A warp looks at `keys` keys, and writes the rows of those that are new: so many side by side as it has lanes for.
struct WarpShare {
  int keys;   // a power of two
  int lanes;  // per row, likewise
};

/// Warps that a large GPU has at a time. With fewer, each is given fewer keys: rows take longer to draw than to store.
constexpr std::int64_t kEnoughWarps = 1 << 13;

WarpShare share_of_warp(std::int64_t keys, std::int64_t blocks_per_row) {
  WarpShare share{32, 1};
  while (share.lanes < 32 && share.lanes < blocks_per_row) share.lanes *= 2;
  while (share.keys > 32 / share.lanes && keys / share.keys < kEnoughWarps) share.keys /= 2;
  return share;
}

/// Fills rows `number` of the warp's keys, which are those at positions i of the batch; not where that is negative.
template <class Rows>
__device__ __forceinline__ void write_warp_rows(const Rows& rows, const KeyBatch& keys, std::int64_t i,
                                                std::int64_t number, typename Rows::Element* storage,
                                                std::int64_t elements, WarpShare share) {
  if (__ballot_sync(kAllLanes, number >= 0) == 0) return;
  const int lane = threadIdx.x % 32;
  for (int k = lane / share.lanes; k < share.keys; k += 32 / share.lanes) {
    const std::int64_t row_number = __shfl_sync(kAllLanes, number, k);
    const std::int64_t position = __shfl_sync(kAllLanes, i, k);
    if (row_number < 0) continue;
    const auto row = rows.of(load_bytes<Uint128>(keys.data, position, keys.bytes));
    for (std::int64_t block = lane % share.lanes; block * Rows::kPerBlock < elements; block += share.lanes)
      row.write(storage + row_number * elements, block, elements);
  }
}

template <class Rows>
__global__ void __launch_bounds__(kRowBlock)
    initialise_rows_kernel(Rows rows, KeyBatch keys, const bool* is_new, const std::int64_t* numbers,
                           typename Rows::Element* storage, std::int64_t elements, WarpShare share) {
  const int lane = threadIdx.x % 32;
  const std::int64_t i = (std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x) / 32 * share.keys + lane;
  const bool fresh = lane < share.keys && i < keys.count && is_new[i];
  const std::int64_t number = fresh ? numbers[i] : kNoRow;  // also where a replayed CUDA graph had no room
  write_warp_rows(rows, keys, i, number, storage, elements, share);
}

/// As launched for fewer keys than may be listed: each warp goes round.
template <class Rows>
__global__ void __launch_bounds__(kRowBlock)
    initialise_listed_rows_kernel(Rows rows, KeyBatch keys, ListedKeys listed, std::int64_t* numbers,
                                  typename Rows::Element* storage, std::int64_t elements, WarpShare share) {
  const int lane = threadIdx.x % 32;
  const std::int64_t count = static_cast<std::int64_t>(*listed.count);
  const std::int64_t warps = std::int64_t{gridDim.x} * (kRowBlock / 32);
  for (std::int64_t first = (std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x) / 32 * share.keys; first < count;
       first += warps * share.keys) {
    const bool valid = lane < share.keys && first + lane < count;
    const std::int64_t i = valid ? listed.positions[first + lane] : 0;
    const std::int64_t number = valid ? numbers[i] : kNoRow;
    if (number < kNoRow) {  // another of these keys has got the row
      const auto row =
          *reinterpret_cast<const std::int64_t*>(listed.slot_values + slot_of_row(number) * listed.slot_bytes);
      numbers[i] = row >= 0 ? row : kNoRow;
    }
    write_warp_rows(rows, keys, i, number, storage, elements, share);
  }
}

/// Calls run(what fills the order's rows, how many blocks of numbers a row takes).
template <class Run>
void with_rows(const InsertOrder& order, Run run) {
  const InitialRows& initial = *order.initial;
  with_initial_rows(initial.initializer, initial.dtype, [&](const auto& filled) {
    constexpr std::int64_t kPerBlock = std::remove_cvref_t<decltype(filled)>::kPerBlock;
    run(filled, (initial.elements + kPerBlock - 1) / kPerBlock);
  });
}

}  // namespace

void initialise_rows(const RowView& rows, const InsertOrder& order, Stream stream) {
  const std::int64_t n = order.keys.count;
  with_rows(order, [&](const auto& filled, std::int64_t blocks_per_row) {
    using Rows = std::remove_cvref_t<decltype(filled)>;
    const WarpShare share = share_of_warp(n, blocks_per_row);
    launch("initialising rows", initialise_rows_kernel<Rows>, (n + share.keys - 1) / share.keys * 32, kRowBlock, stream,
           filled, order.keys, static_cast<const bool*>(order.inserted), static_cast<const std::int64_t*>(order.rows),
           reinterpret_cast<typename Rows::Element*>(rows.data), order.initial->elements, share);
  });
}

void initialise_listed_rows(const RowView& rows, const InsertOrder& order, const ListedKeys& listed, Stream stream) {
  with_rows(order, [&](const auto& filled, std::int64_t blocks_per_row) {
    using Rows = std::remove_cvref_t<decltype(filled)>;
    const WarpShare share = share_of_warp(0, blocks_per_row);
    launch("initialising rows", initialise_listed_rows_kernel<Rows>, std::min(order.keys.count, kListedAtOnce),
           kRowBlock, stream, filled, order.keys, listed, order.rows,
           reinterpret_cast<typename Rows::Element*>(rows.data), order.initial->elements, share);
  });
}

}  // namespace gpuhash::cuda
