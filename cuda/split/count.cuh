#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/atomics.cuh"
#include "cuda/batch.cuh"
#include "cuda/split/tile.cuh"
#include "cuda/walk/probe.cuh"
#include "shared/hot_keys.hpp"
#include "shared/owner.hpp"
#include "table/splitter.hpp"

/// How many keys each owner has, and who owns a key.
namespace gpuhash::cuda {

/// A warp's keys per owner: lane i counts those of owner i, and of owner i + 32 where there are so many. Of one warp's
/// keys, which are looked at 32 at a time, each learns how many of its owner's came before.
template <int kOwnerBits>
struct WarpCounts {
  std::uint32_t low = 0;
  std::uint32_t high = 0;

  __device__ __forceinline__ std::uint32_t add(std::uint32_t owner, bool valid) {
    const std::uint32_t lane = threadIdx.x % 32;
    unsigned same = __ballot_sync(kAllLanes, valid);
    unsigned lows = same;  // the keys that this lane counts
    unsigned highs = same;
#pragma unroll
    for (int bit = 0; bit < kOwnerBits; ++bit) {
      const bool set = (owner >> bit & 1) != 0;
      const unsigned with = __ballot_sync(kAllLanes, set);
      same &= set ? with : ~with;
      lows &= (lane >> bit & 1) != 0 ? with : ~with;
      if constexpr (kOwnerBits > 5) highs &= ((lane + 32) >> bit & 1) != 0 ? with : ~with;
    }
    std::uint32_t before = __shfl_sync(kAllLanes, low, static_cast<int>(owner % 32));
    if constexpr (kOwnerBits > 5) {
      const std::uint32_t high_before = __shfl_sync(kAllLanes, high, static_cast<int>(owner % 32));
      before = owner < 32 ? before : high_before;
      high += __popc(highs);
    }
    low += __popc(lows);
    return before + __popc(same & ((1u << lane) - 1));
  }

  /// To counts [parts].
  __device__ __forceinline__ void write(int parts, std::uint32_t* counts) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < parts) counts[lane] = low;
    if (kOwnerBits > 5 && lane + 32 < parts) counts[lane + 32] = high;
  }
};

/// The hot keys of a batch, and which of them a tile has, in shared memory.
template <class Key>
struct HotTile {
  static_assert(kHotSlots == kSplitBlock, "each thread has a slot of its own");

  HotKeys<Key> hot;
  std::uint8_t owners[kSplitBlock];
  std::uint8_t seen[2][kSplitBlock];  // of this tile and of the one before or after

  /// The whole block calls it, and synchronizes afterwards.
  __device__ __forceinline__ void load(const HotKeys<Key>& from, std::uint64_t seed, int parts) {
    const unsigned slot = threadIdx.x;
    hot.keys[slot] = from.keys[slot];
    hot.used[slot] = from.used[slot];
    owners[slot] = static_cast<std::uint8_t>(owner_of(from.keys[slot], seed, static_cast<std::uint32_t>(parts)));
    seen[0][slot] = seen[1][slot] = 0;
  }
  /// The slot of a hot key, which the tile then has; -1 for others.
  __device__ __forceinline__ int see(const Key& key, std::uint64_t hash, unsigned tile) {
    const int slot = hot.find(key, hash);
    if (slot >= 0) seen[tile % 2][slot] = 1;
    return slot;
  }
  /// Has the tile the key of this thread's slot? Forgets it. After the block has synchronized.
  __device__ __forceinline__ bool take(unsigned tile) {
    const bool has = seen[tile % 2][threadIdx.x] != 0;
    seen[tile % 2][threadIdx.x] = 0;
    return has;
  }
};
struct NoHotTile {};

/// sizes [parts, chunks]: keys of each chunk per owner. kMerges: of hot keys, one for each tile.
template <class Key, int kOwnerBits, bool kMerges>
__global__ void __launch_bounds__(kSplitBlock)
    count_kernel(KeyBatch keys, bool whole, std::uint64_t seed, int parts, std::int64_t chunk_keys,
                 const HotKeys<Key>* hot, std::uint32_t* sizes) {
  __shared__ std::uint32_t counts[kSplitWarps][kMaxParts];
  __shared__ std::conditional_t<kMerges, HotTile<Key>, NoHotTile> merging;
  if constexpr (kMerges) {
    merging.load(*hot, seed, parts);
    __syncthreads();
  }
  const std::int64_t begin = blockIdx.x * chunk_keys;
  const int size = static_cast<int>(min(chunk_keys, keys.count - begin));
  WarpCounts<kOwnerBits> mine;
  constexpr int kAtOnce = kMerges ? rounds(kOwnerBits) : 8;  // a tile, whose hot keys are counted together
  [[maybe_unused]] unsigned tile = 0;
  for (int start = 0; start < size; start += static_cast<int>(kSplitBlock) * kAtOnce, ++tile) {
    const int base = start + static_cast<int>(threadIdx.x);
    Key key[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int j = base + r * static_cast<int>(kSplitBlock);
      key[r] = j < size ? load_key<Key>(keys, begin + j, whole) : Key{};
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const std::uint64_t hash = hash_key(key[r], seed);
      bool counts_alone = base + r * static_cast<int>(kSplitBlock) < size;
      if constexpr (kMerges) {
        if (counts_alone) counts_alone = merging.see(key[r], hash, tile) < 0;
      }
      mine.add(owner_of_hash(hash, static_cast<std::uint32_t>(parts)), counts_alone);
    }
    if constexpr (kMerges) {
      __syncthreads();
      mine.add(merging.owners[threadIdx.x], merging.take(tile));
    }
  }
  mine.write(parts, counts[threadIdx.x / 32]);
  __syncthreads();
  const int part = static_cast<int>(threadIdx.x);
  if (part >= parts) return;
  std::uint32_t sum = 0;
  for (int warp = 0; warp < kSplitWarps; ++warp) sum += counts[warp][part];
  sizes[part * gridDim.x + blockIdx.x] = sum;
}

/// Sets `all` and `before` [parts]: keys of each owner in all chunks, and in those before the given one. The whole
/// block calls it, and synchronizes afterwards.
__device__ __forceinline__ void sum_up(const std::uint32_t* sizes, int parts, unsigned chunks, unsigned own,
                                       std::int64_t* all, std::int64_t* before) {
  const unsigned lane = threadIdx.x % 32;
  for (int part = static_cast<int>(threadIdx.x / 32); part < parts; part += kSplitWarps) {
    std::uint64_t sum = 0;
    std::uint64_t first = 0;
#pragma unroll 8
    for (unsigned chunk = lane; chunk < chunks; chunk += 32) {
      const std::uint32_t size = sizes[part * chunks + chunk];
      sum += size;
      first += chunk < own ? size : 0;
    }
    for (int step = 16; step > 0; step /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, step);
      first += __shfl_xor_sync(kAllLanes, first, step);
    }
    if (lane == 0) {
      all[part] = static_cast<std::int64_t>(sum);
      before[part] = static_cast<std::int64_t>(first);
    }
  }
}

struct Notes {
  std::int64_t notes[Split::kMaxNotes];
  int count;
};

/// In one block: told [parts, 1 + notes].
static __global__ void __launch_bounds__(kSplitBlock)
    tell_kernel(const std::uint32_t* sizes, int parts, unsigned chunks, Notes notes, std::int64_t* told) {
  __shared__ std::int64_t all[kMaxParts];
  __shared__ std::int64_t before[kMaxParts];
  sum_up(sizes, parts, chunks, 0, all, before);
  __syncthreads();
  const int columns = 1 + notes.count;
  for (int i = static_cast<int>(threadIdx.x); i < parts * columns; i += kSplitBlock)
    told[i] = i % columns == 0 ? all[i / columns] : notes.notes[i % columns - 1];
}

template <class Key>
__global__ void owners_kernel(KeyBatch keys, bool whole, std::uint64_t seed, std::uint32_t parts,
                              std::int32_t* owners) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < keys.count) owners[i] = static_cast<std::int32_t>(owner_of(load_key<Key>(keys, i, whole), seed, parts));
}

}  // namespace gpuhash::cuda
