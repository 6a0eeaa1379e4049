#pragma once

#include <cstdint>

#include "partition.cuh"

/// One block of threads per region: the region's slots come into shared memory in one stream, the region's part of a
/// partitioned batch is worked off there, and the slots go back in one stream.
///
/// One thread walks one key's probe sequence. Keys whose walk would leave the region, which are few, and stray keys are
/// *leavers*: they are written back to the front of the region's list, and a kernel that goes the direct way takes them
/// from there afterwards. A walk that leaves its region does so for all duplicates of its key (inserting frees no slot,
/// erasing leaves full buckets looking full), so both ways never store one key twice.
namespace gpuhash::cuda {

inline constexpr unsigned kRegionBlock = 512;

/// A region in shared memory, keys and values apart so that lanes that read keys use all banks.
template <class View>
struct SharedRegion {
  using Key = typename View::Key;
  using Value = typename View::Value;
  static constexpr std::uint32_t kSlots = kRegionBytes / sizeof(typename View::SlotType);
  static constexpr std::uint32_t kBucketsPerRow =
      128 / (View::kSlots * sizeof(Key)) > 0 ? 128 / (View::kSlots * sizeof(Key)) : 1;

  Key keys[kSlots];
  Value values[View::kHasValue ? kSlots : 1];
  unsigned filters[View::kMaxRegionBuckets / 4 + 1];

  /// Where a slot's key and value lie: rotated within the bucket, since lanes that look at the same slot of different
  /// buckets would otherwise meet in a few banks.
  __device__ __forceinline__ static std::uint32_t place(std::uint32_t bucket, std::uint32_t slot) {
    return bucket * View::kSlots + ((slot ^ (bucket / kBucketsPerRow)) & (View::kSlots - 1));
  }
  __device__ __forceinline__ Key key(std::uint32_t at) const { return static_cast<const volatile Key*>(keys)[at]; }
  __device__ __forceinline__ bool filter_has(std::uint32_t bucket, std::uint8_t bit) const {
    return static_cast<const volatile std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(filters))[bucket] & bit;
  }
  /// True if the bit was not set before.
  __device__ __forceinline__ bool set_filter(std::uint32_t bucket, std::uint8_t bit) {
    const unsigned mask = static_cast<unsigned>(bit) << (8 * (bucket & 3));
    return (atomicOr(&filters[bucket / 4], mask) & mask) == 0;
  }
  __device__ __forceinline__ Key swap_key(std::uint32_t at, Key expected, Key desired) {
    if constexpr (sizeof(Key) == 4)
      return atomicCAS(&keys[at], expected, desired);
    else
      return atomicCAS(reinterpret_cast<unsigned long long*>(&keys[at]), static_cast<unsigned long long>(expected),
                       static_cast<unsigned long long>(desired));
  }
};

/// What a thread sees in one bucket.
struct SharedSeen {
  std::uint32_t hit;     // place + 1, 0: none
  std::uint32_t empty;   // bit per slot
  std::uint32_t erased;  // bit per slot
};

template <class View>
__device__ __forceinline__ SharedSeen look_in_region(const SharedRegion<View>& region, std::uint32_t bucket,
                                                     const typename View::Key& wanted) {
  using Key = typename View::Key;
  SharedSeen seen{0, 0, 0};
#pragma unroll
  for (std::uint32_t s = 0; s < View::kSlots; ++s) {
    const std::uint32_t at = SharedRegion<View>::place(bucket, s);
    const Key key = region.key(at);
    if (key == wanted) seen.hit = at + 1;
    if (key == empty_key<Key>()) seen.empty |= 1u << s;
    if (key == erased_key<Key>()) seen.erased |= 1u << s;
  }
  return seen;
}

enum class Outcome : std::uint8_t { kFound, kNew, kAbsent, kLeft };

/// What became of an item, and, of one that is in the table, where its slot is.
struct Placed {
  Outcome outcome;
  std::uint32_t place;
};

/// As find_or_insert() in insert.cuh, by one thread and in one region. Puts the key there, and leaves the value to the
/// caller.
template <class View>
__device__ __forceinline__ Placed find_or_insert_in_region(SharedRegion<View>& region, std::uint32_t first_bucket,
                                                           Probe<typename View::Key> probe, const Geometry& geometry,
                                                           int& filter_bits) {
  using Key = typename View::Key;
  using Region = SharedRegion<View>;
  bool remembered = false;
  bool returned = false;
  std::uint32_t remembered_bucket = 0;
  std::uint32_t remembered_hop = 0;
  while (true) {
    const std::uint32_t bucket = probe.bucket() - first_bucket;
    const SharedSeen seen = look_in_region(region, bucket, probe.stored());
    if (seen.hit != 0) return {Outcome::kFound, seen.hit - 1};
    std::uint32_t free = seen.empty | seen.erased;
    if (free != 0 && !remembered) {
      remembered = true;
      remembered_bucket = probe.bucket();
      remembered_hop = probe.hop();
    }
    if (!returned && seen.empty == 0 && region.filter_has(bucket, probe.filter_bit())) {
      if (probe.at_last_hop_in_region()) return {Outcome::kLeft, 0};
      probe.next(geometry);
    } else if (remembered && remembered_bucket == probe.bucket() && remembered_hop == probe.hop()) {
      for (; free != 0; free &= free - 1) {
        const std::uint32_t slot = __ffs(free) - 1;
        const std::uint32_t at = Region::place(bucket, slot);
        const Key mark = seen.empty >> slot & 1 ? empty_key<Key>() : erased_key<Key>();
        const Key was = region.swap_key(at, mark, probe.stored());
        if (was == mark) return {Outcome::kNew, at};
        if (was == probe.stored()) return {Outcome::kFound, at};
      }
      remembered = false;
      returned = false;
    } else if (remembered) {
      probe.move_to(remembered_bucket, remembered_hop);
      returned = true;
    } else {
      filter_bits += region.set_filter(bucket, probe.filter_bit());
      if (probe.at_last_hop_in_region()) return {Outcome::kLeft, 0};
      probe.next(geometry);
    }
  }
}

/// Items that a block works on at a time, and those among them whose search goes on, by their index.
inline constexpr std::uint32_t kChunk = 4 * kRegionBlock;

struct Queues {
  std::uint16_t items[2][kChunk];
  std::uint32_t counts[2];

  __device__ __forceinline__ void push(int which, std::uint32_t item) {
    items[which][atomicAdd(&counts[which], 1u)] = static_cast<std::uint16_t>(item);
  }
};

/// Inserts the keys of items [0, count) of a chunk; all threads of the block call it. load(i, item) gets item i and is
/// false where there is none; done(i, item, outcome, place) hears what became of it and writes the value, and is not
/// called for leavers, of which there are as many as the result says, in queues.items[0].
///
/// By rounds, one bucket per item and round: nearly all items are done in the first, and those that go on are packed
/// together, so that lanes do not wait for the longest walk among them. kSparse: load() is false for many, and the
/// first round, too, starts from items packed together.
template <class View, bool kSparse, class Load, class Done>
__device__ __forceinline__ std::uint32_t insert_in_rounds(SharedRegion<View>& region, Queues& queues,
                                                          std::uint32_t first_bucket, const Geometry& geometry,
                                                          std::uint32_t count, int& filter_bits, Load load, Done done) {
  using Key = typename View::Key;
  using Item = typename View::SlotType;
  using Region = SharedRegion<View>;

  // kLeft: on to the next bucket.
  const auto look = [&](const Item& item, const Probe<Key>& probe) -> Placed {
    if (probe.bucket() == geometry.bucket_count) return {Outcome::kLeft, 0};
    const std::uint32_t bucket = probe.bucket() - first_bucket;
    const SharedSeen seen = look_in_region(region, bucket, probe.stored());
    if (seen.hit != 0) return {Outcome::kFound, seen.hit - 1};
    if (seen.erased != 0)
      return find_or_insert_in_region(region, first_bucket, Probe<Key>(item.key, geometry), geometry, filter_bits);
    for (std::uint32_t free = seen.empty; free != 0; free &= free - 1) {
      const std::uint32_t at = Region::place(bucket, __ffs(free) - 1);
      const Key was = region.swap_key(at, empty_key<Key>(), probe.stored());
      if (was == empty_key<Key>()) return {Outcome::kNew, at};
      if (was == probe.stored()) return {Outcome::kFound, at};
    }
    if (!region.filter_has(bucket, probe.filter_bit())) filter_bits += region.set_filter(bucket, probe.filter_bit());
    return {Outcome::kLeft, 0};
  };

  if (threadIdx.x < 2) queues.counts[threadIdx.x] = 0;
  __syncthreads();  // the region is there, too
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < count; i += kRegionBlock) {
    Item item;
    if (!load(i, item)) continue;
    if (kSparse) {
      queues.push(1, i);
      continue;
    }
    const Placed placed = look(item, Probe<Key>(item.key, geometry));
    if (placed.outcome == Outcome::kLeft)
      queues.push(0, i);
    else
      done(i, item, placed.outcome, placed.place);
  }
  int from = kSparse ? 1 : 0;
  for (int hop = kSparse ? -1 : 0; hop < static_cast<int>(kRegionHops); ++hop) {
    __syncthreads();
    const std::uint32_t pending = queues.counts[from];
    if (pending == 0) break;
    for (std::uint32_t j = threadIdx.x; j < pending; j += kRegionBlock) {
      const std::uint32_t i = queues.items[from][j];
      Item item;
      load(i, item);
      Probe<Key> probe(item.key, geometry);
      if (hop >= 0 && probe.bucket() != geometry.bucket_count) {
        probe.move_to(probe.bucket(), static_cast<std::uint32_t>(hop));
        probe.next(geometry);
      }
      const Placed placed = look(item, probe);
      if (placed.outcome == Outcome::kLeft)
        queues.push(1 - from, i);
      else
        done(i, item, placed.outcome, placed.place);
    }
    __syncthreads();
    if (threadIdx.x == 0) queues.counts[from] = 0;
    from = 1 - from;
  }
  static_assert(kRegionHops % 2 == 0, "leavers end in the first queue");
  __syncthreads();
  return queues.counts[0];
}

/// As erase_kernel in erase.cuh; kFound: this thread has erased the key.
template <class View>
__device__ __forceinline__ Outcome erase_in_region(SharedRegion<View>& region, std::uint32_t first_bucket,
                                                   Probe<typename View::Key> probe, const Geometry& geometry) {
  using Key = typename View::Key;
  while (true) {
    const std::uint32_t bucket = probe.bucket() - first_bucket;
    const SharedSeen seen = look_in_region(region, bucket, probe.stored());
    if (seen.hit != 0) {
      const Key mark = seen.empty != 0 ? empty_key<Key>() : erased_key<Key>();
      if (region.swap_key(seen.hit - 1, probe.stored(), mark) != probe.stored()) return Outcome::kAbsent;
      if constexpr (View::kHasValue) region.values[seen.hit - 1] = empty_value<typename View::Value>();
      return Outcome::kFound;
    }
    if (seen.empty != 0 || !region.filter_has(bucket, probe.filter_bit())) return Outcome::kAbsent;
    if (probe.at_last_hop_in_region()) return Outcome::kLeft;
    probe.next(geometry);
  }
}

/// Erases the keys of a chunk; done(i, erased). As insert_in_rounds() in all else, but each thread walks to the end:
/// few walks are long, for the filters stop those of absent keys.
template <class View, class Item, class Load, class Done>
__device__ __forceinline__ std::uint32_t erase_chunk(SharedRegion<View>& region, Queues& queues,
                                                     std::uint32_t first_bucket, const Geometry& geometry,
                                                     std::uint32_t count, Load load, Done done) {
  using Key = typename View::Key;
  if (threadIdx.x == 0) queues.counts[0] = 0;
  Item items[kChunk / kRegionBlock];
#pragma unroll
  for (std::uint32_t k = 0; k < kChunk / kRegionBlock; ++k) {
    const std::uint32_t i = k * kRegionBlock + threadIdx.x;
    if (i < count) load(i, items[k]);
  }
  __syncthreads();
#pragma unroll
  for (std::uint32_t k = 0; k < kChunk / kRegionBlock; ++k) {
    const std::uint32_t i = k * kRegionBlock + threadIdx.x;
    if (i >= count) continue;
    const Probe<Key> probe(items[k].key, geometry);
    Outcome outcome = Outcome::kLeft;
    if (probe.bucket() != geometry.bucket_count) outcome = erase_in_region(region, first_bucket, probe, geometry);
    if (outcome == Outcome::kLeft)
      queues.push(0, i);
    else
      done(i, outcome == Outcome::kFound);
  }
  __syncthreads();
  return queues.counts[0];
}

/// Slots as they are moved, 16 bytes at a time.
template <class View>
struct alignas(16) SlotWord {
  static constexpr std::uint32_t kSlots = 16 / sizeof(typename View::SlotType);
  typename View::SlotType slots[kSlots];
};

/// Calls body(word index, bucket, first slot) for the block's share of a region's words.
template <class View, class Body>
__device__ __forceinline__ void for_each_word(std::uint32_t buckets, Body body) {
  constexpr std::uint32_t kWordsPerBucket = View::kBucketBytes / 16;
  for (std::uint32_t w = threadIdx.x; w < buckets * kWordsPerBucket; w += kRegionBlock)
    body(w, w / kWordsPerBucket, w % kWordsPerBucket * SlotWord<View>::kSlots);
}

/// `vacant`: the value of slots without a key, while they are in shared memory.
template <class View>
__device__ __forceinline__ void make_region_empty(SharedRegion<View>& region,
                                                  [[maybe_unused]] const typename View::Value& vacant) {
  for (std::uint32_t i = threadIdx.x; i < SharedRegion<View>::kSlots; i += kRegionBlock) {
    region.keys[i] = empty_key<typename View::Key>();
    if constexpr (View::kHasValue) region.values[i] = vacant;
  }
  for (std::uint32_t i = threadIdx.x; i < View::kMaxRegionBuckets / 4 + 1; i += kRegionBlock) region.filters[i] = 0;
}

template <class View>
__device__ __forceinline__ void make_region_empty(SharedRegion<View>& region) {
  if constexpr (View::kHasValue)
    make_region_empty(region, empty_value<typename View::Value>());
  else
    make_region_empty(region, {});
}

/// kVacant: slots without a key get the value `vacant`.
template <bool kVacant = false, class View>
__device__ __forceinline__ void load_region(SharedRegion<View>& region, const View& view, std::uint32_t first_bucket,
                                            [[maybe_unused]] const typename View::Value& vacant = {}) {
  const auto* words = reinterpret_cast<const SlotWord<View>*>(view.slots + std::uint64_t{first_bucket} * View::kSlots);
  for_each_word<View>(view.geometry.region_buckets, [&](std::uint32_t w, std::uint32_t bucket, std::uint32_t slot) {
    const SlotWord<View> word = words[w];
#pragma unroll
    for (std::uint32_t s = 0; s < SlotWord<View>::kSlots; ++s) {
      const std::uint32_t at = SharedRegion<View>::place(bucket, slot + s);
      region.keys[at] = word.slots[s].key;
      if constexpr (View::kHasValue)
        region.values[at] = !kVacant || is_live(word.slots[s].key) ? word.slots[s].value : vacant;
    }
  });
  auto* const filters = reinterpret_cast<std::uint8_t*>(region.filters);
  for (std::uint32_t b = threadIdx.x; b < view.geometry.region_buckets; b += kRegionBlock)
    filters[b] = view.filters[first_bucket + b];
}

/// kVacant: slots without a key get the value of empty ones back.
template <bool kVacant = false, class View>
__device__ __forceinline__ void store_region(const SharedRegion<View>& region, const View& view,
                                             std::uint32_t first_bucket) {
  auto* words = reinterpret_cast<SlotWord<View>*>(view.slots + std::uint64_t{first_bucket} * View::kSlots);
  for_each_word<View>(view.geometry.region_buckets, [&](std::uint32_t w, std::uint32_t bucket, std::uint32_t slot) {
    SlotWord<View> word;
#pragma unroll
    for (std::uint32_t s = 0; s < SlotWord<View>::kSlots; ++s) {
      const std::uint32_t at = SharedRegion<View>::place(bucket, slot + s);
      word.slots[s].key = region.keys[at];
      if constexpr (View::kHasValue) {
        const bool vacant = kVacant && !is_live(word.slots[s].key);
        word.slots[s].value = vacant ? empty_value<typename View::Value>() : region.values[at];
      }
    }
    words[w] = word;
  });
  const auto* const filters = reinterpret_cast<const std::uint8_t*>(region.filters);
  for (std::uint32_t b = threadIdx.x; b < view.geometry.region_buckets; b += kRegionBlock)
    view.filters[first_bucket + b] = filters[b];
}

enum class RegionWork : std::uint8_t {
  kInsert,
  kErase,
  kCount,  // how many keys would be new: changes nothing but control->absent and control->undecided
};

/// The lists of a batch's regions, and what is left of them.
template <class Item>
struct PartitionedBatch {
  Lists<Item> regions;
  std::uint32_t* leavers;  // [regions]: items at the front of each list that are still to be done
  Rest<Item> rest;
};

/// Items that a block of region_kernel takes at a time. New keys find their places much as if they came one after the
/// other when they come in small chunks; in a large one all that fit into their home buckets go there first, and the
/// others, though no more, walk further: lookups of present keys were 6 % slower at load 0.8. Keys that are there find
/// their place in any chunk, and large ones wait less often.
inline constexpr std::uint32_t kNewKeysChunk = 2 * kRegionBlock;

/// A mask that says what was new, or erased. It is filled with what is expected of most keys before, so that few of its
/// bytes have to be written at random places.
struct ExpectedMask {
  bool* data;  // [n] or null
  bool expected;

  __device__ __forceinline__ void set(std::uint32_t position, bool value) const {
    if (value != expected) data[position] = value;
  }
};

/// Moves the chunk's leavers, `left` of them, to the front of region r's list, behind the `all_left` that are there.
template <class Item>
__device__ __forceinline__ void keep_leavers(const PartitionedBatch<Item>& batch, const Queues& queues,
                                             std::uint64_t first_item, std::uint32_t base, std::uint32_t left,
                                             std::uint32_t all_left, bool with_positions) {
  // The chunk's own leavers may lie where these go.
  Item leavers[kChunk / kRegionBlock];
  std::uint32_t positions[kChunk / kRegionBlock];
#pragma unroll
  for (std::uint32_t k = 0; k < kChunk / kRegionBlock; ++k) {
    const std::uint32_t j = k * kRegionBlock + threadIdx.x;
    if (j >= left) continue;
    const std::uint64_t from = first_item + base + queues.items[0][j];
    leavers[k] = batch.regions.items[from];
    if (with_positions) positions[k] = batch.regions.positions[from];
  }
  __syncthreads();
#pragma unroll
  for (std::uint32_t k = 0; k < kChunk / kRegionBlock; ++k) {
    const std::uint32_t j = k * kRegionBlock + threadIdx.x;
    if (j >= left) continue;
    batch.regions.items[first_item + all_left + j] = leavers[k];
    if (with_positions) batch.regions.positions[first_item + all_left + j] = positions[k];
  }
}

template <class View, class Item, RegionWork kWork>
__global__ void __launch_bounds__(kRegionBlock, 3)
    region_kernel(View view, PartitionedBatch<Item> batch, bool table_is_empty, bool assign, ExpectedMask mask,
                  std::uint32_t chunk) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& region = *reinterpret_cast<SharedRegion<View>*>(memory);
  __shared__ Workspace work;
  __shared__ Queues queues;

  if (batch.rest.overflown()) return;
  const std::uint32_t r = blockIdx.x;
  const std::uint32_t count = batch.regions.count(r);
  if (count == 0) return;
  const Geometry& geometry = view.geometry;
  const std::uint32_t first_bucket = r * geometry.region_buckets;
  const std::uint64_t first_item = batch.regions.place(r, 0);
  if (table_is_empty)
    make_region_empty(region);
  else
    load_region(region, view, first_bucket);

  int changed = 0;
  int filter_bits = 0;
  [[maybe_unused]] int undecided = 0;
  std::uint32_t all_left = 0;
  for (std::uint32_t base = 0; base < count; base += chunk) {
    Item* const items = batch.regions.items + first_item + base;
    std::uint32_t* const positions = batch.regions.positions + first_item + base;
    const std::uint32_t length = min(count - base, chunk);
    const auto load = [&](std::uint32_t i, Item& item) {
      item = items[i];
      return true;
    };
    std::uint32_t left;
    if constexpr (kWork == RegionWork::kErase) {
      left = erase_chunk<View, Item>(region, queues, first_bucket, geometry, length, load,
                                     [&](std::uint32_t i, bool erased) {
                                       changed -= erased;
                                       if (mask.data != nullptr) mask.set(positions[i], erased);
                                     });
    } else {
      left =
          insert_in_rounds<View, false>(region, queues, first_bucket, geometry, length, filter_bits, load,
                                        [&](std::uint32_t i, const Item& item, Outcome outcome, std::uint32_t place) {
                                          if constexpr (View::kHasValue)
                                            if (assign || outcome == Outcome::kNew) region.values[place] = item.value;
                                          changed += outcome == Outcome::kNew;
                                          if (mask.data != nullptr) mask.set(positions[i], outcome == Outcome::kNew);
                                        });
    }
    if constexpr (kWork == RegionWork::kCount) {
      if (threadIdx.x == 0) undecided += static_cast<int>(left);
    } else {
      keep_leavers(batch, queues, first_item, base, left, all_left, mask.data != nullptr);
      all_left += left;
    }
    __syncthreads();
  }
  if constexpr (kWork == RegionWork::kCount) {
    std::uint64_t* const counters[3] = {&view.control->absent, &view.control->undecided, nullptr};
    add_to_control(work, counters, {changed, undecided, 0});
  } else {
    if (threadIdx.x == 0) batch.leavers[r] = all_left;
    store_region(region, view, first_bucket);
    std::uint64_t* const counters[3] = {
        &view.control->size, kWork == RegionWork::kErase ? &view.control->erased : &view.control->filter_bits, nullptr};
    add_to_control(work, counters, {changed, kWork == RegionWork::kErase ? -changed : filter_bits, 0});
  }
}

/// Calls body(valid, item, position) in all lanes of the warp for everything that region_kernel has not done: leavers
/// and the rest, or the whole batch. By a grid of any size.
template <class Item, class Body>
__device__ __forceinline__ void for_each_left(const PartitionedBatch<Item>& batch, const BatchItems<Item>& all,
                                              std::uint32_t region_count, Body body) {
  const std::int64_t lane = threadIdx.x % 32;
  const std::int64_t warp = (std::int64_t{blockIdx.x} * kBlock + threadIdx.x) / 32;
  const std::int64_t warps = std::int64_t{gridDim.x} * kWarps;
  if (batch.rest.counters->overflow != 0) {
    for (std::int64_t first = warp * 32; first < all.keys.count; first += warps * 32) {
      const std::int64_t i = first + lane;
      const bool valid = i < all.keys.count;
      body(valid, valid ? all.load(i) : Item{}, static_cast<std::uint32_t>(i));
    }
    return;
  }
  const auto run = [&](const Item* items, const std::uint32_t* positions, std::int64_t first, std::int64_t count) {
    const bool valid = first + lane < count;
    body(valid, valid ? items[first + lane] : Item{}, valid && positions != nullptr ? positions[first + lane] : 0);
  };
  const std::int64_t rest = batch.rest.counters->rest;
  for (std::int64_t first = warp * 32; first < rest; first += warps * 32)
    run(batch.rest.items, batch.rest.positions, first, rest);
  if (batch.leavers == nullptr) return;
  for (std::int64_t base = warp * 32; base < region_count; base += warps * 32) {
    const std::uint32_t mine = base + lane < region_count ? batch.leavers[base + lane] : 0;
    for (unsigned some = __ballot_sync(kAllLanes, mine != 0); some != 0; some &= some - 1) {
      const int source = __ffs(some) - 1;
      const std::uint32_t count = __shfl_sync(kAllLanes, mine, source);
      const std::uint64_t place = batch.regions.place(static_cast<std::uint32_t>(base) + source, 0);
      const std::uint32_t* positions = batch.regions.positions;
      for (std::uint32_t first = 0; first < count; first += 32)
        run(batch.regions.items + place, positions == nullptr ? nullptr : positions + place, first, count);
    }
  }
}

/// Of a skewed batch, which ends here, most keys are duplicates of a few. Whose value stays is open, so each block
/// stores one for a key, remembers the slot for a while, and stores no other meanwhile: stores to one word stand in
/// line.
template <class View, class Item>
__global__ void __launch_bounds__(kBlock)
    insert_left_kernel(View view, PartitionedBatch<Item> batch, BatchItems<Item> all, bool assign, bool* mask) {
  using SlotType = typename View::SlotType;
  constexpr std::uint32_t kRemembered = 256;
  __shared__ Workspace work;
  __shared__ const SlotType* assigned[kRemembered];
  for (std::uint32_t i = threadIdx.x; i < kRemembered; i += kBlock) assigned[i] = nullptr;
  __syncthreads();
  Counts counts;
  for_each_left(batch, all, view.geometry.region_count, [&](bool valid, const Item& item, std::uint32_t position) {
    typename View::Value value{};
    if constexpr (View::kHasValue) value = item.value;
    bool is_new = false;
    find_or_insert<View, true>(
        view, work.owners[threadIdx.x / 32], item.key, value, valid, counts,
        [&](SlotType* slot) {
          if (!assign) return;
          const auto* volatile* const place = assigned + (slot - view.slots) % kRemembered;
          if (*place == slot) return;
          assign_value(slot, value);
          *place = slot;
        },
        [&](SlotType*) { is_new = true; });
    if (valid && mask != nullptr) mask[position] = is_new;
  });
  counts.add_to(view, work);
}

template <class View, class Item>
__global__ void __launch_bounds__(kBlock)
    erase_left_kernel(View view, PartitionedBatch<Item> batch, BatchItems<Item> all, bool* mask) {
  __shared__ Workspace work;
  int erased = 0;
  for_each_left(batch, all, view.geometry.region_count, [&](bool valid, const Item& item, std::uint32_t position) {
    const bool gone = erase_one(view, work.owners[threadIdx.x / 32], item.key, valid, [](const auto&) {});
    erased += gone;
    if (valid && mask != nullptr) mask[position] = gone;
  });
  std::uint64_t* const counters[3] = {&view.control->size, &view.control->erased, nullptr};
  add_to_control(work, counters, {-erased, erased, 0});
}

/// What is left over is undecided. One thread.
template <class View, class Item>
__global__ void count_left_kernel(View view, PartitionedBatch<Item> batch, std::int64_t keys) {
  const PartitionCounters& counters = *batch.rest.counters;
  if (counters.overflow != 0) view.control->absent = 0;
  view.control->undecided = counters.overflow != 0 ? keys : view.control->undecided + counters.rest;
}

/// Builds one region of `to` per block from what `from` holds for it. The order of the buckets follows the order of the
/// hashes in both tables, so those keys lie in one region of `from`, or in a few neighbours.
///
/// Keys that lie outside of their region of `from`, or would in `to`, and stray keys go to the rest.
template <class View>
__global__ void __launch_bounds__(kRegionBlock, 3)
    rehash_region_kernel(View from, View to, Rest<typename View::SlotType> rest) {
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& region = *reinterpret_cast<SharedRegion<View>*>(memory);
  __shared__ Workspace work;
  __shared__ Queues queues;
  if (rest.overflown()) return;

  const std::uint32_t r = blockIdx.x;
  const std::uint32_t first_bucket = r * to.geometry.region_buckets;
  make_region_empty(region);
  __syncthreads();
  // Hashes [low, high] belong to region r of `to`.
  const std::uint64_t regions = to.geometry.region_count;
  const auto low = static_cast<std::uint32_t>(((std::uint64_t{r} << 32) + regions - 1) / regions);
  const auto high = static_cast<std::uint32_t>((((std::uint64_t{r} + 1) << 32) + regions - 1) / regions - 1);
  const std::uint32_t old_regions = from.geometry.region_count;
  int inserted = 0;
  int filter_bits = 0;

  for (std::uint32_t g = multiply_high(low, old_regions); g <= multiply_high(high, old_regions); ++g) {
    // Of the blocks that see this region of `from`, the first takes care of its guests.
    const auto old_low = static_cast<std::uint32_t>(((std::uint64_t{g} << 32) + old_regions - 1) / old_regions);
    const bool first_to_see = multiply_high(old_low, to.geometry.region_count) == r;
    const std::uint32_t slots = from.geometry.region_buckets * View::kSlots;
    for (std::uint32_t base = 0; base < slots; base += kChunk) {
      const SlotType* const items = from.slots + std::uint64_t{g} * slots + base;
      const auto load = [&](std::uint32_t i, SlotType& item) {
        item = items[i];
        if (!is_live(item.key)) return false;
        const Probe<Key> probe(item.key, to.geometry);
        if (probe.home_region(from.geometry) != g) {
          if (first_to_see) rest.push_one(item);
          return false;
        }
        return probe.home_region(to.geometry) == r;
      };
      const std::uint32_t length = min(slots - base, kChunk);
      const std::uint32_t left =
          insert_in_rounds<View, true>(region, queues, first_bucket, to.geometry, length, filter_bits, load,
                                       [&](std::uint32_t, const SlotType& slot, Outcome outcome, std::uint32_t place) {
                                         if constexpr (View::kHasValue) region.values[place] = slot.value;
                                         inserted += outcome == Outcome::kNew;
                                       });
      for (std::uint32_t j = threadIdx.x; j - threadIdx.x < left; j += kRegionBlock)
        rest.push(j < left, j < left ? items[queues.items[0][j]] : SlotType{}, 0);
      __syncthreads();
    }
  }
  if (r == 0) {
    SlotType slot{};
    slot.key = empty_key<Key>();
    if (threadIdx.x < View::kSlots)
      slot = from.slots[std::uint64_t{from.geometry.bucket_count} * View::kSlots + threadIdx.x];
    const bool live = is_live(slot.key);
    if (live) slot.key = key_of_slot(slot.key, true);
    rest.push(live, slot, 0);
  }
  __syncthreads();
  store_region(region, to, first_bucket);
  std::uint64_t* const counters[3] = {&to.control->size, &to.control->filter_bits, nullptr};
  add_to_control(work, counters, {inserted, filter_bits, 0});
}

}  // namespace gpuhash::cuda
