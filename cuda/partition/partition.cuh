#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/apply/cell.cuh"
#include "cuda/batch.cuh"
#include "cuda/walk/probe.cuh"
#include "table/executor.hpp"

/// Partitioning a large batch by region, so that every line of the table is read and written once, in a stream, and all
/// probing happens in shared memory (cuda/region/kernels.cuh).
///
/// A random compare-and-swap per key is what an insertion costs otherwise, and there is no way around that limit of the
/// memory system but not to make random accesses. Two passes move each item to the list of its region: first into some
/// hundred *bins* of consecutive regions, then from each bin to its regions. A pass takes a tile of the batch into
/// shared memory, counts the tile's items per bin, reserves room in each bin by one atomic, and writes the tile out in
/// the order of bins, in runs of a few hundred bytes. Lists have a fixed capacity, the mean and some standard
/// deviations more, so that nothing has to be counted beforehand. What finds its list full, as in batches with many
/// duplicates of few keys, goes to the *rest*, which is worked off the direct way at the end. Where even that does not
/// hold all of it, `overflow` is set and the whole batch is worked off the direct way. All of this is decided on the
/// device.
namespace gpuhash::cuda {

inline constexpr std::uint32_t kTile = 4096;
inline constexpr unsigned kPartitionBlock = 512;
inline constexpr std::uint32_t kPerThread = kTile / kPartitionBlock;
inline constexpr std::uint32_t kMaxBins = kPartitionBlock;  // of either pass

struct PartitionCounters {
  std::uint32_t rest;      // items that found their list full
  std::uint32_t overflow;  // nonzero: not all of them are on the list of the rest
};

/// Items that no list had room for.
template <class Item>
struct Rest {
  Item* items;
  std::uint32_t* positions;  // in the batch; null if not wanted
  PartitionCounters* counters;
  std::uint32_t capacity;

  /// The same answer in all threads of the block, which all call it.
  __device__ __forceinline__ bool overflown() const { return __syncthreads_or(threadIdx.x == 0 && overflow_seen()); }

  /// Whoever sees it counts no more, so that the count cannot wrap.
  __device__ __forceinline__ bool overflow_seen() const {
    return *static_cast<volatile std::uint32_t*>(&counters->overflow) != 0;
  }

  /// One thread on its own.
  __device__ __forceinline__ void push_one(const Item& item) const {
    const std::uint32_t at = overflow_seen() ? capacity : atomicAdd(&counters->rest, 1u);
    if (at < capacity)
      items[at] = item;
    else
      counters->overflow = 1;
  }

  /// All lanes of the warp call it.
  __device__ __forceinline__ void push(bool wanted, const Item& item, std::uint32_t position) const {
    const unsigned pushers = __ballot_sync(kAllLanes, wanted);
    if (pushers == 0) return;
    const int lane = threadIdx.x % 32;
    const int leader = __ffs(pushers) - 1;
    std::uint32_t first = 0;
    if (lane == leader) {
      first = overflow_seen() ? capacity : atomicAdd(&counters->rest, static_cast<std::uint32_t>(__popc(pushers)));
    }
    first = __shfl_sync(kAllLanes, first, leader);
    const std::uint32_t at = first + __popc(pushers & ((1u << lane) - 1));
    if (!wanted) return;
    if (at < capacity) {
      items[at] = item;
      if (positions != nullptr) positions[at] = position;
    } else {
      counters->overflow = 1;
    }
  }
};

/// Lists of equal capacity, one behind the other.
template <class Item>
struct Lists {
  Item* items;               // [lists, capacity]
  std::uint32_t* positions;  // [lists, capacity], in the batch; null if not wanted
  std::uint32_t* counts;     // [lists]; may exceed the capacity
  std::uint32_t capacity;

  __device__ __forceinline__ std::uint32_t count(std::uint32_t list) const { return min(counts[list], capacity); }
  __device__ __forceinline__ std::uint64_t offset(std::uint32_t list, std::uint32_t at) const {
    return std::uint64_t{list} * capacity + at;
  }
};

/// Which regions make up a bin.
struct Binning {
  std::uint32_t bins;
  std::uint32_t regions_per_bin;
  std::uint32_t reciprocal;  // 2^32 / regions_per_bin, rounded up: exact for fewer than 2^23 regions

  __device__ __forceinline__ std::uint32_t bin_of(std::uint32_t region) const {
    return regions_per_bin == 1 ? region : __umulhi(region, reciprocal);
  }
};

/// Shared memory of a block.
template <class Item, bool kPositions>
struct Tile {
  Item items[kTile];
  std::uint32_t positions[kPositions ? kTile : 1];
  std::uint16_t bins[kTile];  // while duplicates are merged: the first item of each hash
  std::uint32_t counts[kMaxBins];
  std::uint32_t offsets[kMaxBins];
  std::uint32_t bases[kMaxBins];
  std::uint32_t warp_sums[kPartitionBlock / 32];
  std::uint32_t kept;  // items that were not merged into others
};

/// Of duplicates, each stays an item of its own.
struct NoMerge {};

template <class Merge>
inline constexpr bool kMerges = !std::is_same_v<Merge, NoMerge>;

/// A merge with a `seed` keeps one of a tile's duplicates and drops the others (drop_duplicates); one without combines
/// their values (merge_duplicates).
template <class Merge>
inline constexpr bool kDrops = requires(const Merge& merge) { merge.seed; };

/// Shared memory of a block that drops duplicates.
template <class Item, bool kPositions>
struct DroppingTile : Tile<Item, kPositions> {
  std::uint32_t elected[kTile];  // the first item of each hash
};

template <class Item, bool kPositions, class Merge>
using TileOf = std::conditional_t<kDrops<Merge>, DroppingTile<Item, kPositions>, Tile<Item, kPositions>>;

/// Exclusive sums of one number per thread over the block.
__device__ __forceinline__ std::uint32_t exclusive_sum(std::uint32_t mine, std::uint32_t* warp_sums) {
  const int lane = threadIdx.x % 32;
  std::uint32_t sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  std::uint32_t before = 0;
  for (unsigned warp = 0; warp < threadIdx.x / 32; ++warp) before += warp_sums[warp];
  return before + sum - mine;
}

/// Merges values of duplicates within the tile, so that keys that come in every tile do not fill their lists. Not all
/// of them: a key whose hash another key of the tile got hold of first stays as it is. Bit k of the result: the
/// thread's item k went into another one.
template <class Item, bool kPositions, class Merge>
__device__ __forceinline__ std::uint32_t merge_duplicates(Tile<Item, kPositions>& tile, Item (&items)[kPerThread],
                                                          std::uint32_t count, const Merge& reducer) {
  constexpr unsigned short kNone = 0xffff;
  static_assert(kTile < kNone && (kTile & (kTile - 1)) == 0);
  // Regions are picked by the high bits of the hash, which are much the same in all of a bin.
  const auto first_of = [&](const Item& item) {
    return reinterpret_cast<unsigned short*>(&tile.bins[hash_key(item.key, 0) & (kTile - 1)]);
  };
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) tile.bins[k * kPartitionBlock + threadIdx.x] = kNone;
  __syncthreads();
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) {
    const std::uint32_t i = k * kPartitionBlock + threadIdx.x;
    if (i >= count) continue;
    tile.items[i] = items[k];
    atomicCAS(first_of(items[k]), kNone, static_cast<unsigned short>(i));
  }
  __syncthreads();
  std::uint32_t merged = 0;
#pragma unroll 1
  for (std::uint32_t k = 0; k < kPerThread; ++k) {
    const std::uint32_t i = k * kPartitionBlock + threadIdx.x;
    bool merges = false;
    std::uint32_t first = i;
    Item item{};
    if (i < count) {
      item.key = tile.items[i].key;
      first = *first_of(item);
      merges = first != i && tile.items[first].key == item.key;
    }
    if (__ballot_sync(kAllLanes, merges) == 0) continue;
    if (merges) item.value = tile.items[i].value;  // which nobody adds to
    const bool leads = combine_peers(merges ? static_cast<std::int64_t>(first) : -1, item.value,
                                     [&](const auto& a, const auto& b) { return reducer.combine(a, b); });
    if (leads) reducer.update(&tile.items[first].value, item.value);
    if (merges) merged |= 1u << k;
  }
  __syncthreads();
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) {
    const std::uint32_t i = k * kPartitionBlock + threadIdx.x;
    if (i < count) items[k] = tile.items[i];
  }
  return merged;
}

/// Keeps one item of each key within the tile and drops its duplicates, with the same exception. Where there are
/// positions, the item that is kept gets the least one, and merge.drop(position, least) is told of each other one;
/// merge.end_item(valid, position, kept) is called for each item in the end, by all lanes of a warp. Bit k of the
/// result: the thread's item k was dropped.
template <class Item, bool kPositions, class Merge>
__device__ __forceinline__ std::uint32_t drop_duplicates(DroppingTile<Item, kPositions>& tile,
                                                         const Item (&items)[kPerThread],
                                                         std::uint32_t (&positions)[kPerThread], std::uint32_t count,
                                                         const Merge& merge) {
  const auto elected_of = [&](const Item& item) -> std::uint32_t& {
    return tile.elected[hash_key(item.key, merge.seed) & (kTile - 1)];
  };
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) tile.elected[k * kPartitionBlock + threadIdx.x] = kTile;
  __syncthreads();
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) {
    const std::uint32_t i = k * kPartitionBlock + threadIdx.x;
    if (i >= count) continue;
    tile.items[i] = items[k];
    if constexpr (kPositions) tile.positions[i] = positions[k];
    atomicMin(&elected_of(items[k]), i);
  }
  __syncthreads();
  std::uint32_t dropped = 0;
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) {
    const std::uint32_t i = k * kPartitionBlock + threadIdx.x;
    if (i >= count) continue;
    const std::uint32_t first = elected_of(items[k]);
    if (first == i || !(tile.items[first].key == items[k].key)) continue;
    dropped |= 1u << k;
    if constexpr (kPositions) atomicMin(&tile.positions[first], positions[k]);
  }
  if constexpr (kPositions) {
    __syncthreads();
#pragma unroll
    for (std::uint32_t k = 0; k < kPerThread; ++k) {
      const std::uint32_t i = k * kPartitionBlock + threadIdx.x;
      const bool valid = i < count;
      const bool kept = (dropped >> k & 1) == 0;
      std::uint32_t least = positions[k];
      if (valid) least = tile.positions[kept ? i : elected_of(items[k])];
      if (valid && least != positions[k]) merge.drop(positions[k], least);
      merge.end_item(valid, positions[k], kept);
      if (kept) positions[k] = least;
    }
  }
  return dropped;
}

/// The thread's items of a tile of `count`, of which load(i) gives item i.
template <class Item, class Load>
__device__ __forceinline__ void load_items(Item (&items)[kPerThread], std::uint32_t count, Load load) {
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) {
    const std::uint32_t i = k * kPartitionBlock + threadIdx.x;
    if (i < count) items[k] = load(i);
  }
}

/// Moves the block's tile of `count` items to lists [first_list, first_list + bins). load(items) gets those of the
/// thread; bin_of(item) gives an item's list, counted from first_list.
template <class Item, bool kPositions, class Merge, class Load, class PositionOf, class BinOf>
__device__ __forceinline__ void partition_tile(TileOf<Item, kPositions, Merge>& tile, std::uint32_t count,
                                               std::uint32_t bins, const Lists<Item>& to, std::uint32_t first_list,
                                               const Rest<Item>& rest, [[maybe_unused]] const Merge& merge, Load load,
                                               PositionOf position_of, BinOf bin_of) {
  if (rest.overflown()) return;
  const std::uint32_t thread = threadIdx.x;
  tile.counts[thread] = 0;
  Item items[kPerThread];
  std::uint32_t ranks[kPerThread];  // bin << 16 | rank in the tile's part of it
  load(items);
  std::uint32_t merged = 0;
  [[maybe_unused]] std::uint32_t positions[kPerThread];
  if constexpr (kDrops<Merge>) {
#pragma unroll
    for (std::uint32_t k = 0; kPositions && k < kPerThread; ++k) {
      const std::uint32_t i = k * kPartitionBlock + thread;
      if (i < count) positions[k] = position_of(i);
    }
    merged = drop_duplicates(tile, items, positions, count, merge);
  } else if constexpr (kMerges<Merge>) {
    merged = merge_duplicates(tile, items, count, merge);
  }
  __syncthreads();
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) {
    if (k * kPartitionBlock + thread >= count || merged >> k & 1) continue;
    const std::uint32_t bin = bin_of(items[k]);
    ranks[k] = bin << 16 | atomicAdd(&tile.counts[bin], 1u);
  }
  __syncthreads();
  const std::uint32_t mine = tile.counts[thread];
  tile.offsets[thread] = exclusive_sum(mine, tile.warp_sums);
  if (kMerges<Merge> && thread == kPartitionBlock - 1) tile.kept = tile.offsets[thread] + mine;
  if (thread < bins && mine != 0) tile.bases[thread] = atomicAdd(&to.counts[first_list + thread], mine);
  __syncthreads();
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) {
    const std::uint32_t i = k * kPartitionBlock + thread;
    if (i >= count || merged >> k & 1) continue;
    const std::uint32_t bin = ranks[k] >> 16;
    const std::uint32_t at = tile.offsets[bin] + (ranks[k] & 0xffff);
    tile.items[at] = items[k];
    tile.bins[at] = static_cast<std::uint16_t>(bin);
    if constexpr (kPositions && kDrops<Merge>)
      tile.positions[at] = positions[k];
    else if constexpr (kPositions)
      tile.positions[at] = position_of(i);
  }
  __syncthreads();
  if constexpr (kMerges<Merge>) count = tile.kept;
#pragma unroll
  for (std::uint32_t k = 0; k < kPerThread; ++k) {
    const std::uint32_t i = k * kPartitionBlock + thread;
    const bool on = i < count;
    Item item{};
    std::uint32_t position = 0;
    bool full = false;
    if (on) {
      const std::uint32_t bin = tile.bins[i];
      const std::uint32_t at = tile.bases[bin] + (i - tile.offsets[bin]);
      item = tile.items[i];
      if constexpr (kPositions) position = tile.positions[i];
      full = at >= to.capacity;
      if (!full) {
        const std::uint64_t offset = to.offset(first_list + bin, at);
        to.items[offset] = item;
        if constexpr (kPositions) to.positions[offset] = position;
      }
    }
    rest.push(full, item, position);
  }
}

/// A batch as the caller has it.
template <class Item_>
struct BatchItems {
  using Item = Item_;
  KeyBatch keys;
  ValueBatch values;
  bool whole;  // keys and values have the widths and the alignment of the table's

  __host__ __device__ __forceinline__ std::int64_t count() const { return keys.count; }
  __device__ __forceinline__ bool is_plain() const {
    return whole && (sizeof(Item) == sizeof(Item::key) || values.data != nullptr);
  }
  __device__ __forceinline__ Item load_plain(std::int64_t i) const {
    using Key = decltype(Item::key);
    Item item{};
    item.key = load_streaming(static_cast<const Key*>(keys.data) + i);
    if constexpr (sizeof(Item) > sizeof(Key)) {
      using Value = decltype(Item::value);
      item.value = load_streaming(static_cast<const Value*>(values.data) + i);
    }
    return item;
  }
  __device__ __forceinline__ Item load(std::int64_t i) const {
    using Key = decltype(Item::key);
    Item item{};
    item.key = load_key<Key>(keys, i, whole);
    if constexpr (sizeof(Item) > sizeof(Key)) {
      using Value = decltype(Item::value);
      if (values.data != nullptr) item.value = load_value<Value>(values, i, whole);
    }
    return item;
  }
};

/// A key's list is that of its region.
struct RegionOf {
  Geometry geometry;

  template <class Key>
  __device__ __forceinline__ std::uint32_t operator()(const Key& key) const {
    return Probe<Key>(key, geometry).region(geometry);
  }
};

/// First pass: the batch to the bins' lists. list_of(key) says where a key goes.
///
/// A thread loads all of its items at once if they are plain. Others go one after the other by way of the tile: so
/// there is the code for one of them.
template <class Batch, class ListOf, bool kPositions, class Merge>
__global__ void __launch_bounds__(kPartitionBlock, 2)
    partition_batch_kernel(Batch batch, ListOf list_of, Binning binning, Lists<typename Batch::Item> bins,
                           Rest<typename Batch::Item> rest, Merge merge) {
  using Item = typename Batch::Item;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& tile = *reinterpret_cast<TileOf<Item, kPositions, Merge>*>(memory);
  const std::int64_t first = std::int64_t{blockIdx.x} * kTile;
  const std::int64_t left = batch.count() - first;
  const auto count = static_cast<std::uint32_t>(left < kTile ? left : kTile);
  partition_tile<Item, kPositions>(
      tile, count, binning.bins, bins, 0, rest, merge,
      [&](Item(&items)[kPerThread]) {
        if (batch.is_plain())
          return load_items(items, count, [&](std::uint32_t i) { return batch.load_plain(first + i); });
#pragma unroll 1
        for (std::uint32_t i = threadIdx.x; i < count; i += kPartitionBlock) tile.items[i] = batch.load(first + i);
        load_items(items, count, [&](std::uint32_t i) { return tile.items[i]; });
      },
      [&](std::uint32_t i) { return static_cast<std::uint32_t>(first + i); },
      [&](const Item& item) { return binning.bin_of(list_of(item.key)); });
}

/// Second pass: each bin's list to those that it is made up of. Grid: tiles of a bin x bins.
template <class Item, class ListOf, bool kPositions, class Merge>
__global__ void __launch_bounds__(kPartitionBlock, 2)
    partition_bin_kernel(Lists<Item> bins, ListOf list_of, Binning binning, Lists<Item> lists, Rest<Item> rest,
                         Merge merge) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& tile = *reinterpret_cast<TileOf<Item, kPositions, Merge>*>(memory);
  const std::uint32_t bin = blockIdx.y;
  const std::uint32_t first = blockIdx.x * kTile;
  const std::uint32_t count = bins.count(bin);
  if (first >= count) return;
  const std::uint64_t from = bins.offset(bin, first);
  const std::uint32_t first_list = bin * binning.regions_per_bin;
  const std::uint32_t size = min(count - first, kTile);
  partition_tile<Item, kPositions>(
      tile, size, binning.regions_per_bin, lists, first_list, rest, merge,
      [&](Item(&items)[kPerThread]) { load_items(items, size, [&](std::uint32_t i) { return bins.items[from + i]; }); },
      [&](std::uint32_t i) { return bins.positions[from + i]; },
      [&](const Item& item) { return list_of(item.key) - first_list; });
}

}  // namespace gpuhash::cuda
