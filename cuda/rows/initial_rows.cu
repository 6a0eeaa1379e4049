#include "cuda/rows/initial_rows.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/launch.cuh"
#include "cuda/rows/rows.cuh"
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

/// Where the first row's part lies, and how far from one row's to the next, in elements.
template <class Element>
struct RowParts {
  Element* first;
  std::int64_t stride;
  std::int64_t elements;  // of a row's part
};

/// Fills those of rows `number` of the warp's keys, which are those at positions i of the batch; not where that is
/// negative.
template <class Rows>
__device__ __forceinline__ void write_warp_rows(const Rows& rows, const KeyBatch& keys, std::int64_t i,
                                                std::int64_t number, const RowParts<typename Rows::Element>& parts,
                                                WarpShare share) {
  if (__ballot_sync(kAllLanes, number >= 0) == 0) return;
  const int lane = threadIdx.x % 32;
  for (int k = lane / share.lanes; k < share.keys; k += 32 / share.lanes) {
    const std::int64_t row_number = __shfl_sync(kAllLanes, number, k);
    const std::int64_t position = __shfl_sync(kAllLanes, i, k);
    if (row_number < 0) continue;
    const auto row = rows.of(load_bytes<Uint128>(keys.data, position, keys.bytes));
    for (std::int64_t block = lane % share.lanes; block * Rows::kPerBlock < parts.elements; block += share.lanes)
      row.write(parts.first + row_number * parts.stride, block, parts.elements);
  }
}

template <class Rows>
__global__ void __launch_bounds__(kRowBlock)
    initialise_rows_kernel(Rows rows, KeyBatch keys, const bool* is_new, const std::int64_t* numbers,
                           RowParts<typename Rows::Element> parts, WarpShare share) {
  const int lane = threadIdx.x % 32;
  const std::int64_t i = (std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x) / 32 * share.keys + lane;
  const bool fresh = lane < share.keys && i < keys.count && is_new[i];
  const std::int64_t number = fresh ? numbers[i] : kNoRow;  // also where a replayed CUDA graph had no room
  write_warp_rows(rows, keys, i, number, parts, share);
}

/// As launched for fewer keys than may be listed: each warp goes round.
template <class Rows>
__global__ void __launch_bounds__(kRowBlock)
    initialise_listed_rows_kernel(Rows rows, KeyBatch keys, const bool* is_new, std::int64_t* numbers,
                                  ListedKeys listed, RowParts<typename Rows::Element> parts, WarpShare share) {
  const int lane = threadIdx.x % 32;
  const auto count = static_cast<std::int64_t>(*listed.count);
  const std::int64_t warps = std::int64_t{gridDim.x} * (kRowBlock / 32);
  for (std::int64_t first = (std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x) / 32 * share.keys; first < count;
       first += warps * share.keys) {
    const bool valid = lane < share.keys && first + lane < count;
    const std::int64_t i = valid ? listed.positions[first + lane] : 0;
    std::int64_t number = valid ? numbers[i] : kNoRow;
    if (number < kNoRow) {  // another of these keys has got the row
      const auto row =
          *reinterpret_cast<const std::int64_t*>(listed.slot_values + slot_of_row(number) * listed.slot_bytes);
      numbers[i] = row >= 0 ? row : kNoRow;
    }
    if (!valid || !is_new[i]) number = kNoRow;
    write_warp_rows(rows, keys, i, number, parts, share);
  }
}

/// Calls run(what fills the rows, their parts, how many blocks of numbers one takes).
template <class Run>
void with_rows(const RowView& rows, const InitialRows& initial, std::int64_t offset, Run run) {
  with_initial_rows(initial.initializer, initial.dtype, [&]<class Rows>(const Rows& filled) {
    using Element = typename Rows::Element;
    run(filled,
        RowParts<Element>{reinterpret_cast<Element*>(rows.data + offset),
                          rows.bytes / static_cast<std::int64_t>(sizeof(Element)), initial.elements},
        (initial.elements + Rows::kPerBlock - 1) / Rows::kPerBlock);
  });
}

}  // namespace

void initialise_rows(const RowView& rows, const InitialRows& initial, std::int64_t offset, const KeyBatch& keys,
                     const bool* is_new, const std::int64_t* numbers, Stream stream) {
  with_rows(rows, initial, offset, [&]<class Rows>(const Rows& filled, const auto& parts, std::int64_t blocks_per_row) {
    const WarpShare share = share_of_warp(keys.count, blocks_per_row);
    launch("initialising rows", initialise_rows_kernel<Rows>, (keys.count + share.keys - 1) / share.keys * 32,
           kRowBlock, stream, filled, keys, is_new, numbers, parts, share);
  });
}

void initialise_listed_rows(const RowView& rows, const InitialRows& initial, std::int64_t offset, const KeyBatch& keys,
                            const bool* is_new, std::int64_t* numbers, const ListedKeys& listed, Stream stream) {
  with_rows(rows, initial, offset, [&]<class Rows>(const Rows& filled, const auto& parts, std::int64_t blocks_per_row) {
    const WarpShare share = share_of_warp(0, blocks_per_row);
    launch("initialising rows", initialise_listed_rows_kernel<Rows>, std::min(keys.count, kListedAtOnce), kRowBlock,
           stream, filled, keys, is_new, numbers, listed, parts, share);
  });
}

}  // namespace gpuhash::cuda
