#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/atomics.cuh"
#include "cuda/batch.cuh"
#include "cuda/split/count.cuh"
#include "cuda/split/letter.cuh"
#include "cuda/split/tile.cuh"
#include "cuda/walk/probe.cuh"
#include "shared/hot_keys.hpp"
#include "shared/owner.hpp"

namespace gpuhash::cuda {

/// One tile in shared memory. Each warp's keys, and where hot keys are merged then each warp's slots of them, follow
/// each other in the order of an owner.
template <class Key, bool kMerges>
struct SortedTile {
  static constexpr int kGroups = kMerges ? 2 * kSplitWarps : kSplitWarps;

  Key keys[kMaxTileKeys];
  std::uint8_t owners[kMaxTileKeys];
  std::uint32_t counts[kGroups][kMaxParts];  // then what comes before each group in the tile
  std::int64_t offsets[kMaxParts];           // as in Ranked
  int size;                                  // places
};

template <class Key, int kOwnerBits, bool kMerges>
__global__ void __launch_bounds__(kSplitBlock, sizeof(Key) <= 8 ? 5 : 4)
    sort_keys_kernel(KeyBatch keys, bool whole, std::uint64_t seed, std::int64_t chunk_keys, const HotKeys<Key>* hot,
                     const std::uint32_t* sizes, Ranked ranked, void* out, bool out_whole,
                     CountsMailbox::Letter* letter, std::uint64_t number) {
  constexpr int kRounds = rounds(kOwnerBits);
  constexpr int kTileKeys = tile_keys(kOwnerBits);
  constexpr int kRankBits = 16 - kOwnerBits;
  constexpr std::uint32_t kIsHot = 1u << 31;  // in `places`, beside the slot
  using Sorted = SortedTile<Key, kMerges>;
  __shared__ Sorted tile;
  __shared__ std::conditional_t<kMerges, HotTile<Key>, NoHotTile> merging;
  __shared__ std::uint16_t hot_places[kMerges ? kSplitBlock : 1];
  __shared__ std::int64_t next[kMaxParts];  // where the next tile's keys of each owner go
  __shared__ std::int64_t all[kMaxParts];
  const int parts = static_cast<int>(ranked.parts.count);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);

  if constexpr (kMerges) merging.load(*hot, seed, parts);
  sum_up(sizes, parts, gridDim.x, blockIdx.x, all, next);
  __syncthreads();
  if (blockIdx.x == 0 && warp == 1) send_letter(letter, number, parts, all);
  if (threadIdx.x == 0) {
    std::int64_t sum = 0;
#pragma unroll 1
    for (std::size_t i = 0; i < ranked.parts.count; ++i) {
      const std::size_t part = ranked.parts.at(i);
      next[part] += sum;
      sum = ranked.parts.next_after(sum + all[part]);
    }
  }

  const std::int64_t chunk_begin = blockIdx.x * chunk_keys;
  const std::int64_t chunk_end = min(chunk_begin + chunk_keys, keys.count);
  for (std::int64_t base = chunk_begin; base < chunk_end; base += kTileKeys) {
    const int size = static_cast<int>(min(std::int64_t{kTileKeys}, chunk_end - base));
    const int first = warp * 32 * kRounds + lane;  // each warp has neighbouring keys, for the order
    Key key[kRounds];
    if (!whole) {       // by way of the tile, so that there is the code for one key
      __syncthreads();  // the tile before has been written out
#pragma unroll 1
      for (int j = first; j < min(size, first + 32 * kRounds); j += 32)
        tile.keys[j] = load_bytes<Key>(keys.data, base + j, keys.bytes);
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int j = first + r * 32;
      key[r] = j >= size ? Key{} : whole ? load_key<Key>(keys, base + j, true) : tile.keys[j];
    }
    WarpCounts<kOwnerBits> mine;
    std::uint32_t places[kRounds];  // owner << kRankBits | how many of the warp's keys of this owner come before
    [[maybe_unused]] const auto number_of_tile = static_cast<unsigned>(base / kTileKeys);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const std::uint64_t hash = hash_key(key[r], seed);
      const std::uint32_t owner = owner_of_hash(hash, static_cast<std::uint32_t>(parts));
      const bool valid = first + r * 32 < size;
      int slot = -1;
      if constexpr (kMerges) {
        if (valid) slot = merging.see(key[r], hash, number_of_tile);
        const unsigned marks = __ballot_sync(kAllLanes, slot >= 0);
        if (lane == 0) ranked.marks[base / 32 + warp * kRounds + r] = marks;
      }
      const std::uint32_t before = mine.add(owner, valid && slot < 0);
      places[r] = slot < 0 ? owner << kRankBits | before : kIsHot | static_cast<std::uint32_t>(slot);
    }
    mine.write(parts, tile.counts[warp]);
    __syncthreads();                        // also: the tile before has been written out, and `next` is there
    [[maybe_unused]] bool has_hot = false;  // has the tile the key of this thread's slot?
    [[maybe_unused]] std::uint32_t hot_before = 0;
    if constexpr (kMerges) {
      WarpCounts<kOwnerBits> mine_hot;
      has_hot = merging.take(number_of_tile);
      hot_before = mine_hot.add(merging.owners[threadIdx.x], has_hot);
      mine_hot.write(parts, tile.counts[kSplitWarps + warp]);
      __syncthreads();
    }
    if (warp == 0) {
      int parts_before = 0;
      for (int part = lane; part < (kOwnerBits > 5 ? 64 : 32); part += 32) {
        int total = 0;
        for (int w = 0; part < parts && w < Sorted::kGroups; ++w) total += static_cast<int>(tile.counts[w][part]);
        int end = total;
        for (int step = 1; step < 32; step *= 2) {
          const int sum = __shfl_up_sync(kAllLanes, end, step);
          if (lane >= step) end += sum;
        }
        end += parts_before;
        parts_before = __shfl_sync(kAllLanes, end, 31);
        if (part >= parts) continue;
        int sum = end - total;
        tile.offsets[part] = next[part] - sum;
        ranked.offsets[base / kTileKeys * parts + part] = tile.offsets[part];
        next[part] += total;
        for (int w = 0; w < Sorted::kGroups; ++w) {
          const int count = static_cast<int>(tile.counts[w][part]);
          tile.counts[w][part] = static_cast<std::uint32_t>(sum);
          sum += count;
        }
      }
      if (lane == 0) tile.size = parts_before;
    }
    __syncthreads();
    if constexpr (kMerges) {
      if (has_hot) {
        const std::uint32_t owner = merging.owners[threadIdx.x];
        const std::uint32_t rank = hot_before + tile.counts[kSplitWarps + warp][owner];
        tile.keys[rank] = merging.hot.keys[threadIdx.x];
        tile.owners[rank] = static_cast<std::uint8_t>(owner);
        hot_places[threadIdx.x] = static_cast<std::uint16_t>(owner << kRankBits | rank);
      }
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int j = first + r * 32;
      if (j >= size || (kMerges && (places[r] & kIsHot) != 0)) continue;
      const std::uint32_t owner = places[r] >> kRankBits;
      const std::uint32_t place = places[r] + tile.counts[warp][owner];
      const std::uint32_t rank = place & ((1u << kRankBits) - 1);
      tile.keys[rank] = key[r];
      tile.owners[rank] = static_cast<std::uint8_t>(owner);
      ranked.ranks[base + j] = static_cast<std::uint16_t>(place);
    }
    __syncthreads();
    if constexpr (kMerges) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r)
        if ((places[r] & kIsHot) != 0) ranked.ranks[base + first + r * 32] = hot_places[places[r] & ~kIsHot];
    }
    const int places_in_all = kMerges ? tile.size : size;
    const auto position_of = [&](int rank) { return tile.offsets[tile.owners[rank]] + rank; };
    if (out_whole) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        const int rank = r * static_cast<int>(kSplitBlock) + static_cast<int>(threadIdx.x);
        if (rank < places_in_all) static_cast<Key*>(out)[position_of(rank)] = tile.keys[rank];
      }
    } else {
#pragma unroll 1
      for (int rank = static_cast<int>(threadIdx.x); rank < places_in_all; rank += kSplitBlock)
        store_bytes(out, position_of(rank), keys.bytes, tile.keys[rank]);
    }
  }
}

}  // namespace gpuhash::cuda
