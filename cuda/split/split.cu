#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include "cuda/apply/cell.cuh"
#include "cuda/atomics.cuh"
#include "cuda/batch.cuh"
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/mailbox.hpp"
#include "cuda/rows/rows.cuh"
#include "shared/hot_keys.hpp"
#include "shared/owner.hpp"
#include "shared/sample_slots.hpp"
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
namespace {

constexpr unsigned kSplitBlock = 256;
constexpr int kSplitWarps = kSplitBlock / 32;
constexpr int kInFlight = 4;  // loads of a thread, where each waits for another one
constexpr int kMaxParts = static_cast<int>(Split::kMaxParts);
constexpr unsigned kSampleBlock = 1024;
constexpr int kMaxOwnerBits = 6;
static_assert(kMaxParts == 1 << kMaxOwnerBits);

/// Keys of a thread in a tile.
constexpr int rounds(int owner_bits) { return owner_bits <= 5 ? 8 : 4; }
constexpr int tile_keys(int owner_bits) { return static_cast<int>(kSplitBlock) * rounds(owner_bits); }
constexpr int kMaxTileKeys = tile_keys(1);
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
__global__ void __launch_bounds__(kSplitBlock)
    tell_kernel(const std::uint32_t* sizes, int parts, unsigned chunks, Notes notes, std::int64_t* told) {
  __shared__ std::int64_t all[kMaxParts];
  __shared__ std::int64_t before[kMaxParts];
  sum_up(sizes, parts, chunks, 0, all, before);
  __syncthreads();
  const int columns = 1 + notes.count;
  for (int i = static_cast<int>(threadIdx.x); i < parts * columns; i += kSplitBlock)
    told[i] = i % columns == 0 ? all[i / columns] : notes.notes[i % columns - 1];
}

/// Tells the host what has been counted. One warp calls it.
__device__ __forceinline__ void send_letter(CountsMailbox::Letter* letter, std::uint64_t number, int size,
                                            const std::int64_t* counts) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x % 32); i < size; i += 32) letter->counts[i] = counts[i];
  __threadfence_system();
  __syncwarp();
  if (threadIdx.x % 32 == 0) *static_cast<volatile std::uint64_t*>(&letter->number) = number;
}

/// One tile in shared memory. Each warp's keys, and where hot keys are merged then each warp's slots of them, follow
/// each other in the order of an owner.
template <class Key, bool kMerges>
struct SortedTile {
  static constexpr int kGroups = kMerges ? 2 * kSplitWarps : kSplitWarps;

  Key keys[kMaxTileKeys];
  std::uint8_t owners[kMaxTileKeys];
  std::uint32_t counts[kGroups][kMaxParts];  // then what comes before each group in the tile
  std::int64_t offsets[kMaxParts];           // as of Ranked
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

/// A block's tile of a ranked batch.
struct Tile {
  std::int64_t base;
  int size;
  const std::uint16_t* ranks;   // of its keys
  const std::int64_t* offsets;  // in shared memory
  const std::uint32_t* marks;   // as of Ranked
  int rank_bits;

  /// The whole block makes it.
  __device__ __forceinline__ Tile(const Ranked& ranked, std::int64_t* shared)
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

/// Items of one word.
template <class Word>
__global__ void __launch_bounds__(kSplitBlock) sort_words_kernel(Ranked ranked, const Word* items, Word* out) {
  __shared__ Word sorted[kMaxTileKeys];
  __shared__ std::uint8_t owners[kMaxTileKeys];
  __shared__ std::int64_t offsets[kMaxParts];
  const Tile tile(ranked, offsets);
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
  const Tile tile(ranked, offsets);
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
__global__ void __launch_bounds__(kSplitBlock) gather_mask_once_kernel(Ranked ranked, const bool* mask, bool* out) {
  __shared__ std::uint32_t given[kMaxTileKeys / 32];
  __shared__ std::int64_t offsets[kMaxParts];
  if (threadIdx.x < kMaxTileKeys / 32) given[threadIdx.x] = 0;
  const Tile tile(ranked, offsets);
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

/// Items of any width: each moved by `shape.lanes` neighbouring threads.
template <class Word>
__global__ void __launch_bounds__(kSplitBlock)
    sort_rows_kernel(Ranked ranked, const Word* items, RowShape shape, Word* out) {
  __shared__ std::int64_t offsets[kMaxParts];
  const Tile tile(ranked, offsets);
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
  const Tile tile(ranked, offsets);
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
  const Tile tile(ranked, offsets);
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

__global__ void __launch_bounds__(kSplitBlock)
    gather_row_numbers_kernel(Ranked ranked, const std::int64_t* rows, std::int64_t* out) {
  __shared__ std::int64_t offsets[kMaxParts];
  const Tile tile(ranked, offsets);
  for (int j = static_cast<int>(threadIdx.x); j < tile.size; j += kSplitBlock) {
    const std::uint32_t rank = tile.ranks[j];
    const std::int64_t row = rows[tile.position(rank)];
    out[tile.base + j] = row < 0 ? row : std::int64_t{tile.owner(rank)} << kShardShift | row;
  }
}

__global__ void number_rows_kernel(std::int64_t* rows, std::int64_t count, std::int64_t number) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) rows[i] |= number;
}

/// In one block: tells the host how many of a sample's keys repeat others, and how often one key comes, and lists those
/// that are hot.
template <class Key>
__global__ void __launch_bounds__(kSampleBlock)
    sample_kernel(KeyBatch keys, bool whole, std::uint64_t seed, HotKeys<Key>* hot, CountsMailbox::Letter* letter,
                  std::uint64_t number) {
  using Hot = HotKeys<Key>;
  constexpr int kPositionBits = 12;
  static_assert(Sample::kKeys == 1 << kPositionBits);
  __shared__ std::uint32_t slots[SampleSlots::kSlots];
  __shared__ std::uint32_t hottest[kHotSlots];  // how often it comes << kPositionBits | one of its positions
  __shared__ std::int64_t told[2];
  __shared__ int distinct;
  __shared__ int most;
  for (unsigned at = threadIdx.x; at < SampleSlots::kSlots; at += kSampleBlock) slots[at] = 0;
  if (threadIdx.x < kHotSlots) hottest[threadIdx.x] = 0;
  if (threadIdx.x == 0) distinct = most = 0;
  __syncthreads();
  constexpr int kEach = static_cast<int>(Sample::kKeys / kSampleBlock);
  const std::int64_t step = keys.count / Sample::kKeys;
  const auto key_at = [&](std::int64_t i) { return load_key<Key>(keys, i * step, whole); };
  std::uint64_t hashes[kEach];
  std::uint32_t found[kEach];  // slots
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    hashes[r] = hash_key(key_at(threadIdx.x + std::int64_t{r} * kSampleBlock), seed);
    const SampleSlots::Place place(hashes[r]);
    for (found[r] = place.home;; found[r] = SampleSlots::next(found[r])) {
      const std::uint32_t there = atomicCAS(&slots[found[r]], 0, place.empty() + 1);
      if (there == 0) break;
      if (!place.is_mine(there)) continue;
      atomicAdd(&slots[found[r]], 1);
      break;
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kEach; ++r) {
    const auto count = static_cast<std::uint32_t>(SampleSlots::count(slots[found[r]]));
    if (count >= Hot::kLeastInSample)
      atomicMax(&hottest[Hot::slot_of(hashes[r])], count << kPositionBits | (threadIdx.x + r * kSampleBlock));
  }
  int mine = 0;
  int often = 0;
  for (unsigned at = threadIdx.x; at < SampleSlots::kSlots; at += kSampleBlock) {
    mine += slots[at] != 0;
    often = max(often, static_cast<int>(SampleSlots::count(slots[at])));
  }
  atomicAdd(&distinct, mine);
  atomicMax(&most, often);
  __syncthreads();
  if (threadIdx.x < kHotSlots) {
    const std::uint32_t entry = hottest[threadIdx.x];
    hot->keys[threadIdx.x] = key_at(entry & ((1u << kPositionBits) - 1));  // any key, where there is none
    hot->used[threadIdx.x] = entry != 0;
  }
  if (threadIdx.x >= 32) return;
  if (threadIdx.x == 0) {
    told[0] = Sample::kKeys - distinct;
    told[1] = most;
  }
  __syncwarp();
  send_letter(letter, number, 2, told);
}

template <class Key>
__global__ void owners_kernel(KeyBatch keys, bool whole, std::uint64_t seed, std::uint32_t parts,
                              std::int32_t* owners) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < keys.count) owners[i] = static_cast<std::int32_t>(owner_of(load_key<Key>(keys, i, whole), seed, parts));
}

/// Calls run(word, whole) with a word that is as wide as the keys or wider; whole as for load_key().
template <class Run>
void with_key_word(const KeyBatch& keys, Run run) {
  const auto call = [&](auto key) {
    using Key = decltype(key);
    run(key, keys.bytes == sizeof(Key) && is_aligned<Key>(keys.data));
  };
  if (keys.bytes <= 4) return call(std::uint32_t{});
  if (keys.bytes <= 8) return call(std::uint64_t{});
  call(Uint128{});
}

/// Calls run(word, shape) for items that are one word, of up to 8 bytes, or of several words.
template <class One, class Several>
void with_items(std::int64_t bytes, std::initializer_list<const void*> arrays, One one, Several several) {
  std::uint64_t bits = static_cast<std::uint64_t>(bytes);
  for (const void* const array : arrays) bits |= reinterpret_cast<std::uintptr_t>(array);
  if (bytes == 8 && bits % 8 == 0) return one(std::uint64_t{});
  if (bytes == 4 && bits % 4 == 0) return one(std::uint32_t{});
  if (bytes == 2 && bits % 2 == 0) return one(std::uint16_t{});
  if (bytes == 1) return one(std::uint8_t{});
  with_row_words(bytes, arrays, several);
}

/// Blocks of the kernel that the current GPU runs at a time.
template <class Kernel>
std::int64_t resident_blocks(Kernel kernel, int device) {
  int blocks = 0;
  int multiprocessors = 0;
  const BesideCaptures relaxed;  // the kernel may have to be loaded
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kSplitBlock, 0), "splitting a batch");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "splitting a batch");
  return std::max(1, blocks * multiprocessors);
}

/// A letter on its way, which must not come when the mailbox has gone.
class ExpectedLetter {
 public:
  ExpectedLetter(DeviceContext& context, CountsMailbox& mailbox, Stream stream) : context_(context), stream_(stream) {
    std::tie(letter_, number_) = mailbox.next(context);
  }
  ExpectedLetter(const ExpectedLetter&) = delete;
  ExpectedLetter& operator=(const ExpectedLetter&) = delete;
  ~ExpectedLetter() {
    if (!on_its_way_) return;
    try {
      context_.synchronize(stream_);
    } catch (const std::exception&) {
      report_ignored_error("giving up a batch whose keys are being counted");
    }
  }

  /// To be called before the kernel that sends it is launched.
  CountsMailbox::Letter* expect() {
    on_its_way_ = true;
    return letter_;
  }
  std::uint64_t number() const { return number_; }

  const std::int64_t* wait() {
    on_its_way_ = false;
    wait_for_number(context_, letter_->number, number_, stream_, "counting a batch's keys");
    return letter_->counts;
  }

 private:
  DeviceContext& context_;
  Stream stream_;
  CountsMailbox::Letter* letter_ = nullptr;
  std::uint64_t number_ = 0;
  bool on_its_way_ = false;
};

class CudaSample final : public Sample {
 public:
  CudaSample(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, CountsMailbox& mailbox, Stream stream)
      : letter_(context, mailbox, stream) {
    const DeviceGuard guard(context.device().index);
    with_key_word(keys, [&](auto key, bool whole) {
      using Key = decltype(key);
      hot_ = Allocation(context, sizeof(HotKeys<Key>), stream);
      launch("counting repeated keys", sample_kernel<Key>, kSampleBlock, kSampleBlock, stream, keys, whole, seed,
             hot_.as<HotKeys<Key>>(), letter_.expect(), letter_.number());
    });
  }

  template <class Key>
  const HotKeys<Key>* hot() const {
    return hot_.as<HotKeys<Key>>();
  }

 protected:
  Repeats wait() override {
    const std::int64_t* const counts = letter_.wait();
    return {counts[0], counts[1]};
  }

 private:
  ExpectedLetter letter_;
  Allocation hot_;
};

class CudaSplit final : public Split {
 public:
  CudaSplit(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, const Parts& parts,
            CountsMailbox& mailbox, const std::shared_ptr<Sample>& sample, Stream stream)
      : Split(parts), context_(context), stream_(stream), letter_(context, mailbox, stream), keys_(keys), seed_(seed) {
    const DeviceGuard guard(context.device().index);
    const auto count_keys = [&] {
      with_kernels(
          [&](auto key, bool whole, auto owner_bits, auto merges) { count<decltype(key), owner_bits, merges>(whole); });
    };
    count_keys();
    if (sample == nullptr || !sample->has_hot_keys()) return;
    hot_ = std::static_pointer_cast<const CudaSample>(sample);
    set_merges();
    count_keys();
  }

  void tell(std::span<const std::int64_t> notes, std::int64_t* told) const override {
    const DeviceGuard guard(context_.device().index);
    Notes told_beside{{}, static_cast<int>(notes.size())};
    std::ranges::copy(notes, told_beside.notes);
    launch("telling the keys of parts", tell_kernel, kSplitBlock, kSplitBlock, stream_, sizes_,
           static_cast<int>(parts().count), static_cast<unsigned>(chunks_), told_beside, told);
  }

  void sort_keys(void* sorted) override {
    const DeviceGuard guard(context_.device().index);
    with_kernels([&](auto key, bool whole, auto owner_bits, auto merges) {
      using Key = decltype(key);
      launch("splitting a batch", sort_keys_kernel<Key, owner_bits, merges>, chunks_ * kSplitBlock, kSplitBlock,
             stream_, keys_, whole, seed_, chunk_keys_, hot<Key>(), sizes_, ranked_, sorted,
             keys_.bytes == sizeof(Key) && is_aligned<Key>(sorted), letter_.expect(), letter_.number());
    });
  }

  void wait() override { set_counts(letter_.wait()); }

  void sort(const void* items, std::int64_t bytes, void* out, Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    with_items(
        bytes, {items, out},
        [&](auto word) {
          using Word = decltype(word);
          launch_tiles("sorting a batch by shards", sort_words_kernel<Word>, stream, static_cast<const Word*>(items),
                       static_cast<Word*>(out));
        },
        [&](auto word, RowShape shape) {
          using Word = decltype(word);
          launch_tiles("sorting a batch by shards", sort_rows_kernel<Word>, stream, static_cast<const Word*>(items),
                       shape, static_cast<Word*>(out));
        });
  }

  void gather(const void* items, std::int64_t bytes, void* out, const GatherOptions& options,
              Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    with_items(
        bytes, {items, out, options.fallback},
        [&](auto word) {
          using Word = decltype(word);
          const bool needs_found = options.fallback != nullptr || options.found_out != nullptr;
          launch_tiles("gathering answers",
                       needs_found ? gather_words_kernel<Word, true> : gather_words_kernel<Word, false>, stream,
                       static_cast<const Word*>(items), options, static_cast<Word*>(out));
        },
        [&](auto word, RowShape shape) {
          using Word = decltype(word);
          launch_tiles("gathering answers", gather_rows_kernel<Word>, stream, static_cast<const Word*>(items), shape,
                       options, static_cast<Word*>(out));
        });
  }

  void gather_rows(const std::int64_t* rows, std::int64_t* out, Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    launch_tiles("gathering row numbers", gather_row_numbers_kernel, stream, rows, out);
  }

  void gather_mask(const bool* mask, bool* out, Stream stream) const override {
    if (hot_ == nullptr) return gather(mask, sizeof(bool), out, {}, stream);
    const DeviceGuard guard(context_.device().index);
    launch_tiles("gathering answers", gather_mask_once_kernel, stream, mask, out);
  }

  void combine(const void* values, bool broadcast, const Reduction& reduction, void* out,
               Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    const auto run = [&](auto word) {
      using Word = decltype(word);
      const WordReducer<Word> reducer{reduction.op, reduction.dtype,
                                      static_cast<Word>(identity_bits(reduction.op, reduction.dtype).low)};
      launch_tiles("combining the values of hot keys", combine_words_kernel<Word>, stream,
                   static_cast<const Word*>(values), broadcast, reducer, static_cast<Word*>(out));
    };
    if (reduction.bytes() == 8)
      run(std::uint64_t{});
    else
      run(std::uint32_t{});
  }

 private:
  /// Calls run(word, whole, owner bits, merges): word and whole as of with_key_word().
  template <class Run>
  void with_kernels(Run run) {
    const auto with_bits = [&](auto key, bool whole, auto owner_bits) {
      if (hot_ == nullptr)
        run(key, whole, owner_bits, std::false_type());
      else
        run(key, whole, owner_bits, std::true_type());
    };
    with_key_word(keys_, [&](auto key, bool whole) {
      if (parts().count <= 2)
        with_bits(key, whole, std::integral_constant<int, 1>());
      else if (parts().count <= 8)
        with_bits(key, whole, std::integral_constant<int, 3>());
      else
        with_bits(key, whole, std::integral_constant<int, kMaxOwnerBits>());
    });
  }

  template <class Key>
  const HotKeys<Key>* hot() const {
    return hot_ == nullptr ? nullptr : hot_->hot<Key>();
  }

  template <class Key, int kOwnerBits, bool kMerges>
  void count(bool whole) {
    constexpr int kTileKeys = tile_keys(kOwnerBits);
    const auto part_count = static_cast<std::int64_t>(parts().count);
    const std::int64_t tiles = (keys_.count + kTileKeys - 1) / kTileKeys;
    static const std::int64_t resident =
        resident_blocks(sort_keys_kernel<Key, kOwnerBits, kMerges>, context_.device().index);
    const std::int64_t chunk_tiles = (tiles + resident - 1) / resident;
    chunks_ = (tiles + chunk_tiles - 1) / chunk_tiles;
    chunk_keys_ = chunk_tiles * kTileKeys;

    const std::int64_t offsets_end = tiles * part_count * static_cast<std::int64_t>(sizeof(std::int64_t));
    const std::int64_t sizes_end =
        offsets_end + chunks_ * part_count * static_cast<std::int64_t>(sizeof(std::uint32_t));
    const std::int64_t marks_end =
        sizes_end + (kMerges ? tiles * (kTileKeys / 32) * static_cast<std::int64_t>(sizeof(std::uint32_t)) : 0);
    const std::int64_t bytes = marks_end + keys_.count * static_cast<std::int64_t>(sizeof(std::uint16_t));
    memory_ = scratch<std::byte>(context_, bytes, stream_);
    auto* const sizes = reinterpret_cast<std::uint32_t*>(memory_.as<std::byte>() + offsets_end);
    sizes_ = sizes;
    ranked_ = {reinterpret_cast<std::uint16_t*>(memory_.as<std::byte>() + marks_end),
               memory_.as<std::int64_t>(),
               kMerges ? reinterpret_cast<std::uint32_t*>(memory_.as<std::byte>() + sizes_end) : nullptr,
               keys_.count,
               parts(),
               kTileKeys,
               16 - kOwnerBits};
    launch("splitting a batch", count_kernel<Key, kOwnerBits, kMerges>, chunks_ * kSplitBlock, kSplitBlock, stream_,
           keys_, whole, seed_, static_cast<int>(part_count), chunk_keys_, hot<Key>(), sizes);
  }

  template <class... Parameters, class... Arguments>
  void launch_tiles(const char* action, void (*kernel)(Ranked, Parameters...), Stream stream,
                    Arguments... arguments) const {
    const std::int64_t tiles = (ranked_.count + ranked_.tile_keys - 1) / ranked_.tile_keys;
    launch(action, kernel, tiles * kSplitBlock, kSplitBlock, stream, ranked_, arguments...);
  }

  DeviceContext& context_;
  Stream stream_;
  std::shared_ptr<const CudaSample> hot_;  // null: nothing is merged
  ExpectedLetter letter_;
  KeyBatch keys_;
  std::uint64_t seed_;
  std::int64_t chunks_ = 0;
  std::int64_t chunk_keys_ = 0;
  Allocation memory_;  // offsets int64 [tiles, parts], sizes uint32 [parts, chunks], marks, ranks uint16 [n]
  const std::uint32_t* sizes_ = nullptr;
  Ranked ranked_{nullptr, nullptr, nullptr, 0, parts(), 0, 0};
};

class CudaSplitter final : public Splitter {
 public:
  std::unique_ptr<Split> split(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, const Parts& parts,
                               CountsMailbox& mailbox, std::shared_ptr<Sample> sample, Stream stream) const override {
    return std::make_unique<CudaSplit>(context, keys, seed, parts, mailbox, sample, stream);
  }
  std::shared_ptr<Sample> sample(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed,
                                 CountsMailbox& mailbox, Stream stream) const override {
    return std::make_shared<CudaSample>(context, keys, seed, mailbox, stream);
  }
  void find_owners(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, std::uint32_t parts,
                   std::int32_t* owners, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    with_key_word(keys, [&](auto key, bool whole) {
      launch("finding the owners of keys", owners_kernel<decltype(key)>, keys.count, kSplitBlock, stream, keys, whole,
             seed, parts, owners);
    });
  }
  void number_rows(DeviceContext& context, std::int64_t* rows, std::int64_t count, std::size_t shard,
                   Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("numbering rows", number_rows_kernel, count, kSplitBlock, stream, rows, count,
           static_cast<std::int64_t>(shard) << kShardShift);
  }
};

}  // namespace

const Splitter& CudaAlgorithms::splitter() {
  static const auto& splitter = *new CudaSplitter;  // never destroyed: threads may work at exit
  return splitter;
}

}  // namespace gpuhash::cuda
