#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "table/splitter.hpp"

/// Splitting a batch by owners. The batch is cut into tiles, and those into one *chunk* of neighbouring tiles for each
/// block that the GPU runs at a time. One kernel counts each chunk's keys per owner. Another one, which need not follow
/// at once, sums up what lies before its own chunk, and then sorts tile by tile in shared memory, so that keys leave in
/// runs, one per owner. For each key it leaves 16 bits, its owner and its rank in its tile's order, and for each tile
/// where its runs begin. By those all that follows moves items, and needs no keys.
///
/// What binds these kernels is how many instructions they spend on a key, before memory does (docs/dead-ends.md): so
/// the bits of an owner are a parameter of theirs.
///
/// Nothing in it depends on timing: each part is in the order of the batch.
///
/// Hot keys are merged by tiles: each that comes in a tile gets one place there, behind the others of its owner, and
/// all that come of it have this one rank. A *mark* per key says whose rank is shared so.
namespace gpuhash::cuda {

inline constexpr unsigned kSplitBlock = 256;
inline constexpr int kSplitWarps = kSplitBlock / 32;
inline constexpr int kMaxParts = static_cast<int>(Split::kMaxParts);
inline constexpr int kMaxOwnerBits = 6;
static_assert(kMaxParts == 1 << kMaxOwnerBits);

/// Keys of a thread in a tile.
constexpr int rounds(int owner_bits) { return owner_bits <= 5 ? 8 : 4; }
constexpr int tile_keys(int owner_bits) { return static_cast<int>(kSplitBlock) * rounds(owner_bits); }
inline constexpr int kMaxTileKeys = tile_keys(1);
static_assert(kMaxTileKeys <= 1 << 11 && tile_keys(kMaxOwnerBits) <= 1 << 10, "owner and rank share 16 bits");

/// What is known of a split batch.
struct Ranked {
  std::uint16_t* ranks;   // [n]: owner << rank_bits | rank in the tile's order
  std::int64_t* offsets;  // [tiles, parts]: what turns such a rank into a position in the owners' order
  std::uint32_t* marks;   // a bit for each key: is it hot? null: none was looked for
  std::int64_t count;
  Parts parts;
  int tile_keys;
  int rank_bits;
};

/// A block's tile of a ranked batch.
struct RankedTile {
  std::int64_t base;
  int size;
  const std::uint16_t* ranks;   // of its keys
  const std::int64_t* offsets;  // in shared memory
  const std::uint32_t* marks;   // as in Ranked
  int rank_bits;

  /// The whole block makes it.
  __device__ __forceinline__ RankedTile(const Ranked& ranked, std::int64_t* shared)
      : offsets(shared), rank_bits(ranked.rank_bits) {
    base = std::int64_t{blockIdx.x} * ranked.tile_keys;
    size = static_cast<int>(min(std::int64_t{ranked.tile_keys}, ranked.count - base));
    ranks = ranked.ranks + base;
    marks = ranked.marks == nullptr ? nullptr : ranked.marks + base / 32;
    const auto parts = static_cast<unsigned>(ranked.parts.count);
    if (threadIdx.x < parts) shared[threadIdx.x] = ranked.offsets[std::int64_t{blockIdx.x} * parts + threadIdx.x];
    __syncthreads();
  }
  __device__ __forceinline__ int owner(std::uint32_t rank) const { return static_cast<int>(rank >> rank_bits); }
  /// Its place in the tile's order.
  __device__ __forceinline__ std::uint32_t place(std::uint32_t rank) const { return rank & ((1u << rank_bits) - 1); }
  __device__ __forceinline__ std::int64_t position(std::uint32_t rank) const {
    return offsets[rank >> rank_bits] + place(rank);
  }
  /// Is key j hot?
  __device__ __forceinline__ bool is_marked(int j) const { return (marks_of_warp(j) >> j % 32 & 1) != 0; }
  /// The marks of the 32 keys that key j is one of.
  __device__ __forceinline__ std::uint32_t marks_of_warp(int j) const { return marks == nullptr ? 0 : marks[j / 32]; }
};

}  // namespace gpuhash::cuda
