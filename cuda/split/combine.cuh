#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/apply/cell.cuh"
#include "cuda/split/tile.cuh"

/// What shares a place because its key is hot: values become one, and an answer is given to one.
namespace gpuhash::cuda {

/// Values of one word: those of a hot key are combined in the tile.
template <class Word>
__global__ void __launch_bounds__(kSplitBlock)
    combine_words_kernel(Ranked ranked, const Word* values, bool broadcast, WordReducer<Word> reducer, Word* out) {
  constexpr std::uint8_t kNobody = 0xff;
  static_assert(kMaxParts <= kNobody);
  __shared__ Word combined[kMaxTileKeys];
  __shared__ std::uint8_t owners[kMaxTileKeys];
  __shared__ std::int64_t offsets[kMaxParts];
  for (int at = static_cast<int>(threadIdx.x); at < kMaxTileKeys; at += kSplitBlock) owners[at] = kNobody;
  const RankedTile tile(ranked, offsets);
#pragma unroll 4
  for (int j = static_cast<int>(threadIdx.x); j < tile.size; j += kSplitBlock) {
    const std::uint32_t rank = tile.ranks[j];
    const std::uint32_t at = tile.place(rank);
    combined[at] = tile.is_marked(j) ? reducer.identity : values[broadcast ? 0 : tile.base + j];
    owners[at] = static_cast<std::uint8_t>(tile.owner(rank));
  }
  __syncthreads();
#pragma unroll 1
  for (int begin = static_cast<int>(threadIdx.x) & ~31; begin < tile.size; begin += kSplitBlock) {
    if (tile.marks_of_warp(begin) == 0) continue;
    const int j = begin + static_cast<int>(threadIdx.x % 32);
    const bool is_hot = j < tile.size && tile.is_marked(j);
    const std::int64_t at = is_hot ? std::int64_t{tile.place(tile.ranks[j])} : -1;
    Word value = is_hot ? values[broadcast ? 0 : tile.base + j] : Word{};
    const bool leads = combine_peers(at, value, [&](Word a, Word b) { return reducer.combine(a, b); });
    if (leads) reducer.template update<CellsIn::kShared>(&combined[at], value);
  }
  __syncthreads();
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x); at < tile.size; at += kSplitBlock)
    if (owners[at] != kNobody) out[offsets[owners[at]] + at] = combined[at];
}

/// Of keys that share a place where the mask is true, one gets it.
static __global__ void __launch_bounds__(kSplitBlock)
    gather_mask_once_kernel(Ranked ranked, const bool* mask, bool* out) {
  __shared__ std::uint32_t given[kMaxTileKeys / 32];
  __shared__ std::int64_t offsets[kMaxParts];
  if (threadIdx.x < kMaxTileKeys / 32) given[threadIdx.x] = 0;
  const RankedTile tile(ranked, offsets);
#pragma unroll 4
  for (int j = static_cast<int>(threadIdx.x); j < tile.size; j += kSplitBlock) {
    const std::uint32_t rank = tile.ranks[j];
    bool answer = mask[tile.position(rank)];
    if (answer && tile.is_marked(j)) {
      const std::uint32_t at = tile.place(rank);
      answer = (atomicOr(&given[at / 32], 1u << at % 32) >> at % 32 & 1) == 0;
    }
    out[tile.base + j] = answer;
  }
}

}  // namespace gpuhash::cuda
