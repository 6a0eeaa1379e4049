#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/rows/rows.cuh"
#include "cuda/split/tile.cuh"
#include "table/splitter.hpp"

/// Items in the order of the keys, put into the owners' order, and the reverse.
namespace gpuhash::cuda {

inline constexpr int kInFlight = 4;  // loads of a thread, where each waits for another one

/// Items of one word.
template <class Word>
__global__ void __launch_bounds__(kSplitBlock) sort_words_kernel(Ranked ranked, const Word* items, Word* out) {
  __shared__ Word sorted[kMaxTileKeys];
  __shared__ std::uint8_t owners[kMaxTileKeys];
  __shared__ std::int64_t offsets[kMaxParts];
  const RankedTile tile(ranked, offsets);
  for (int begin = static_cast<int>(threadIdx.x); begin < tile.size; begin += kSplitBlock * kInFlight) {
    Word word[kInFlight];
    std::uint32_t rank[kInFlight];
#pragma unroll
    for (int r = 0; r < kInFlight; ++r) {
      const int j = begin + r * static_cast<int>(kSplitBlock);
      if (j >= tile.size) continue;
      word[r] = __ldcs(items + tile.base + j);
      rank[r] = tile.ranks[j];
    }
#pragma unroll
    for (int r = 0; r < kInFlight; ++r) {
      if (begin + r * static_cast<int>(kSplitBlock) >= tile.size) continue;
      const std::uint32_t at = tile.place(rank[r]);
      sorted[at] = word[r];
      owners[at] = static_cast<std::uint8_t>(tile.owner(rank[r]));
    }
  }
  __syncthreads();
#pragma unroll 4
  for (int rank = static_cast<int>(threadIdx.x); rank < tile.size; rank += kSplitBlock)
    out[offsets[owners[rank]] + rank] = sorted[rank];
}

/// Items of any width: each moved by `shape.lanes` neighbouring threads.
template <class Word>
__global__ void __launch_bounds__(kSplitBlock)
    sort_rows_kernel(Ranked ranked, const Word* items, RowShape shape, Word* out) {
  __shared__ std::int64_t offsets[kMaxParts];
  const RankedTile tile(ranked, offsets);
  const int at_once = static_cast<int>(kSplitBlock) / shape.lanes;
  for (int j = static_cast<int>(threadIdx.x) / shape.lanes; j < tile.size; j += at_once) {
    Word* const target = out + tile.position(tile.ranks[j]) * shape.words;
    const Word* const source = items + (tile.base + j) * shape.words;
    for (std::int64_t w = threadIdx.x % shape.lanes; w < shape.words; w += shape.lanes)
      __stcs(target + w, load_row_word(source + w));
  }
}

/// Items of one word.
template <class Word, bool kFound>
__global__ void __launch_bounds__(kSplitBlock)
    gather_words_kernel(Ranked ranked, const Word* items, GatherOptions options, Word* out) {
  __shared__ std::int64_t offsets[kMaxParts];
  const RankedTile tile(ranked, offsets);
  const auto* const fallback = static_cast<const Word*>(options.fallback);
  for (int begin = static_cast<int>(threadIdx.x); begin < tile.size; begin += kSplitBlock * kInFlight) {
    std::int64_t position[kInFlight];
    Word word[kInFlight];
    bool found[kInFlight];
#pragma unroll
    for (int r = 0; r < kInFlight; ++r) {
      const int j = begin + r * static_cast<int>(kSplitBlock);
      if (j < tile.size) position[r] = tile.position(tile.ranks[j]);
    }
#pragma unroll
    for (int r = 0; r < kInFlight; ++r) {
      if (begin + r * static_cast<int>(kSplitBlock) >= tile.size) continue;
      word[r] = items[position[r]];
      if constexpr (kFound) found[r] = options.found[position[r]];
    }
#pragma unroll
    for (int r = 0; r < kInFlight; ++r) {
      const int j = begin + r * static_cast<int>(kSplitBlock);
      if (j >= tile.size) continue;
      if constexpr (kFound) {
        if (options.found_out != nullptr) options.found_out[tile.base + j] = found[r];
        if (fallback != nullptr && !found[r]) word[r] = fallback[options.fallback_per_key ? tile.base + j : 0];
      }
      __stcs(out + tile.base + j, word[r]);
    }
  }
}

/// Items of any width, as above.
template <class Word>
__global__ void __launch_bounds__(kSplitBlock)
    gather_rows_kernel(Ranked ranked, const Word* items, RowShape shape, GatherOptions options, Word* out) {
  __shared__ std::int64_t offsets[kMaxParts];
  const RankedTile tile(ranked, offsets);
  const auto* const fallback = static_cast<const Word*>(options.fallback);
  const int at_once = static_cast<int>(kSplitBlock) / shape.lanes;
#pragma unroll 4
  for (int j = static_cast<int>(threadIdx.x) / shape.lanes; j < tile.size; j += at_once) {
    const std::int64_t i = tile.base + j;
    const std::int64_t position = tile.position(tile.ranks[j]);
    const Word* source = items + position * shape.words;
    if (options.found_out != nullptr && threadIdx.x % shape.lanes == 0) options.found_out[i] = options.found[position];
    if (fallback != nullptr && !options.found[position])
      source = fallback + (options.fallback_per_key ? i * shape.words : 0);
    for (std::int64_t w = threadIdx.x % shape.lanes; w < shape.words; w += shape.lanes)
      __stcs(out + i * shape.words + w, source[w]);
  }
}

static __global__ void __launch_bounds__(kSplitBlock)
    gather_row_numbers_kernel(Ranked ranked, const std::int64_t* rows, std::int64_t* out) {
  __shared__ std::int64_t offsets[kMaxParts];
  const RankedTile tile(ranked, offsets);
  for (int j = static_cast<int>(threadIdx.x); j < tile.size; j += kSplitBlock) {
    const std::uint32_t rank = tile.ranks[j];
    const std::int64_t row = rows[tile.position(rank)];
    out[tile.base + j] = row < 0 ? row : std::int64_t{tile.owner(rank)} << kShardShift | row;
  }
}

static __global__ void number_rows_kernel(std::int64_t* rows, std::int64_t count, std::int64_t number) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) rows[i] |= number;
}

}  // namespace gpuhash::cuda
