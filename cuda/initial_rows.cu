#include "cuda/initial_rows.hpp"

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

template <class Rows>
__global__ void __launch_bounds__(kRowBlock)
    initialise_rows_kernel(Rows rows, KeyBatch keys, const bool* is_new, const std::int64_t* numbers,
                           typename Rows::Element* storage, std::int64_t stride, std::int64_t elements,
                           WarpShare share) {
  const int lane = threadIdx.x % 32;
  const std::int64_t first = (std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x) / 32 * share.keys;
  const std::int64_t i = first + lane;
  const bool fresh = lane < share.keys && i < keys.count && is_new[i];
  const std::int64_t number = fresh ? numbers[i] : kNoRow;  // also where a replayed CUDA graph had no room
  if (__ballot_sync(kAllLanes, number >= 0) == 0) return;
  for (int k = lane / share.lanes; k < share.keys; k += 32 / share.lanes) {
    const std::int64_t row_number = __shfl_sync(kAllLanes, number, k);
    if (row_number < 0) continue;
    const auto row = rows.of(load_bytes<Uint128>(keys.data, first + k, keys.bytes));
    for (std::int64_t block = lane % share.lanes; block * Rows::kPerBlock < elements; block += share.lanes)
      row.write(storage + row_number * stride, block, elements);
  }
}

}  // namespace

void initialise_rows(const RowView& rows, const InitialRows& initial, std::int64_t offset, const KeyBatch& keys,
                     const bool* is_new, const std::int64_t* numbers, Stream stream) {
  const std::int64_t n = keys.count;
  with_initial_rows(initial.initializer, initial.dtype, [&](const auto& filled) {
    using Rows = std::remove_cvref_t<decltype(filled)>;
    const WarpShare share = share_of_warp(n, (initial.elements + Rows::kPerBlock - 1) / Rows::kPerBlock);
    launch("initialising rows", initialise_rows_kernel<Rows>, (n + share.keys - 1) / share.keys * 32, kRowBlock, stream,
           filled, keys, is_new, numbers, reinterpret_cast<typename Rows::Element*>(rows.data + offset),
           rows.bytes / static_cast<std::int64_t>(sizeof(typename Rows::Element)), initial.elements, share);
  });
}

}  // namespace gpuhash::cuda
