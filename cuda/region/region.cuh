#pragma once

#include <cstdint>

#include "cuda/partition/partition.cuh"

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
  __device__ __forceinline__ void exchange_key(std::uint32_t at, Key key) {
    if constexpr (sizeof(Key) == 4)
      atomicExch(&keys[at], key);
    else
      atomicExch(reinterpret_cast<unsigned long long*>(&keys[at]), static_cast<unsigned long long>(key));
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

enum class Outcome : std::uint8_t {
  kFound,
  kNew,
  kFull,  // not in this bucket, which has no free slot
  kLeft,  // its walk leaves the region
};

/// What became of an item, and, of one that is in the table, where its slot is.
struct Placed {
  Outcome outcome;
  std::uint32_t place;
};

/// As find_or_insert() in cuda/insert.cuh, by one thread and in one region. Puts the key there, and leaves the value to
/// the caller.
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

/// Items that a block works on at a time.
inline constexpr std::uint32_t kChunk = 8 * kRegionBlock;

/// The items of a chunk that are not done at once, by their index.
struct Queue {
  static constexpr std::uint32_t kBucketWords = kRegionBytes / 64 / 32;

  std::uint16_t items[kChunk];
  std::uint32_t pending;
  std::uint32_t leavers;
  unsigned leaves[kChunk / 32];  // a bit per item
  unsigned taken[kBucketWords];  // a bit per bucket: an item of this round makes room there
  unsigned stuck[kBucketWords];  // a bit per bucket: no key of it can move any more

  /// All threads of the block call it, and wait for each other afterwards.
  __device__ __forceinline__ void reset() {
    if (threadIdx.x == 0) pending = leavers = 0;
    if (threadIdx.x < kChunk / 32) leaves[threadIdx.x] = 0;
    if (threadIdx.x < kBucketWords) taken[threadIdx.x] = stuck[threadIdx.x] = 0;
  }
  __device__ __forceinline__ void push(std::uint32_t index) {
    items[atomicAdd(&pending, 1u)] = static_cast<std::uint16_t>(index);
  }
  __device__ __forceinline__ void push_leaver(std::uint32_t index) {
    atomicOr(&leaves[index / 32], 1u << (index % 32));
    atomicAdd(&leavers, 1u);
  }
  __device__ __forceinline__ bool is_leaver(std::uint32_t index) const {
    return leaves[index / 32] >> (index % 32) & 1;
  }
  __device__ __forceinline__ std::uint32_t leavers_before(std::uint32_t index) const {
    std::uint32_t count = __popc(leaves[index / 32] & ((1u << (index % 32)) - 1));
    for (std::uint32_t word = 0; word < index / 32; ++word) count += __popc(leaves[word]);
    return count;
  }

  /// True for one item per bucket until end_round(), which all threads call.
  __device__ __forceinline__ bool take(std::uint32_t bucket) {
    const unsigned bit = 1u << (bucket % 32);
    return (atomicOr(&taken[bucket / 32], bit) & bit) == 0;
  }
  __device__ __forceinline__ void end_round() {
    if (threadIdx.x < kBucketWords) taken[threadIdx.x] = 0;
  }
  __device__ __forceinline__ void set_stuck(std::uint32_t bucket) {
    atomicOr(&stuck[bucket / 32], 1u << (bucket % 32));
  }
  __device__ __forceinline__ bool is_stuck(std::uint32_t bucket) const {
    return stuck[bucket / 32] >> (bucket % 32) & 1;
  }
};

template <class View>
__device__ __forceinline__ std::uint32_t count_empty(const SharedRegion<View>& region, std::uint32_t bucket) {
  std::uint32_t count = 0;
#pragma unroll
  for (std::uint32_t s = 0; s < View::kSlots; ++s)
    count += region.key(SharedRegion<View>::place(bucket, s)) == empty_key<typename View::Key>();
  return count;
}

/// Puts a key into an empty slot of the bucket; its place + 1, or 0 where other threads have filled the bucket.
template <class View>
__device__ __forceinline__ std::uint32_t claim_in_region(SharedRegion<View>& region, std::uint32_t bucket,
                                                         const typename View::Key& key) {
  constexpr auto kEmpty = empty_key<typename View::Key>();
#pragma unroll
  for (std::uint32_t s = 0; s < View::kSlots; ++s) {
    const std::uint32_t at = SharedRegion<View>::place(bucket, s);
    if (region.key(at) == kEmpty && region.swap_key(at, kEmpty, key) == kEmpty) return at + 1;
  }
  return 0;
}

/// Calls body(i, item) for those of the block's items [0, count) for which load(i, item) is true, and loads each
/// thread's next one ahead.
template <class Item, class Load, class Body>
__device__ __forceinline__ void for_each_ahead(std::uint32_t count, Load load, Body body) {
  Item item{};
  bool there = threadIdx.x < count && load(threadIdx.x, item);
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < count; i += kRegionBlock) {
    Item ahead{};
    const bool more = i + kRegionBlock < count && load(i + kRegionBlock, ahead);
    if (there) body(i, item);
    item = ahead;
    there = more;
  }
}

/// Puts a new key into its full bucket, where one of the keys there can move on to that key's next bucket; its place
/// + 1, or 0 where none can. For a key whose filter bit is not set, so that it lies nowhere behind; by the one thread
/// that has taken the bucket.
template <class View>
__device__ __forceinline__ std::uint32_t displace_in_region(SharedRegion<View>& region, std::uint32_t first_bucket,
                                                            std::uint32_t bucket, const typename View::Key& key,
                                                            const Geometry& geometry, int& filter_bits) {
  using Key = typename View::Key;
  using Region = SharedRegion<View>;
  constexpr std::uint32_t kMovableHops = 4;  // a key further from home stays
  constexpr std::uint32_t kEnough = 2;       // empty slots: no need to look for a bucket with more
  while (true) {
    std::uint32_t most_empty = 0;
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    std::uint8_t bit = 0;
#pragma unroll 1
    for (std::uint32_t s = 0; s < View::kSlots && most_empty < kEnough; ++s) {
      const std::uint32_t at = Region::place(bucket, s);
      Probe<Key> resident(region.key(at), geometry);
      if (resident.bucket() - first_bucket >= geometry.region_buckets) continue;
      while (resident.bucket() - first_bucket != bucket && resident.hop() < kMovableHops) resident.next(geometry);
      if (resident.bucket() - first_bucket != bucket) continue;
      resident.next(geometry);
      const std::uint32_t empty = count_empty(region, resident.bucket() - first_bucket);
      if (empty <= most_empty) continue;
      most_empty = empty;
      from = at;
      to = resident.bucket() - first_bucket;
      bit = resident.filter_bit();
    }
    if (most_empty == 0) return 0;
    const std::uint32_t claimed = claim_in_region(region, to, region.key(from));
    if (claimed == 0) continue;
    filter_bits += region.set_filter(bucket, bit);
    if constexpr (View::kHasValue) {
      // An exchange, for a caller may rely on what empty slots hold.
      const auto value = region.values[from];
      region.values[from] = region.values[claimed - 1];
      region.values[claimed - 1] = value;
    }
    region.exchange_key(from, key);
    return from + 1;
  }
}

/// Inserts the keys of items [0, count) of a chunk; all threads of the block call it. load(i, item) gets item i and is
/// false where there is none; done(i, item, outcome, place) hears what became of it and writes the value, and is not
/// called for leavers, which the queue then knows, and of which there are as many as the result says.
///
/// Nearly all items find their key or an empty slot in their home bucket. The others are packed together and go on in
/// rounds, so that lanes do not wait for the longest walk among them. Placed where they first find an empty slot, they
/// would walk far at high load, and with them all searches for their keys: so a key that finds neither its bucket nor
/// the next one free takes the place of one that can move on (R. P. Brent, "Reducing the retrieval time of scatter
/// storage techniques", CACM 16, 1973). Each round has three parts:
///
///   1. Look into the bucket: the key may be there, or an empty slot.
///   2. Pass buckets that are full, where the key may lie behind them, or the next one has room, or no key can move.
///   3. Else displace a key; one item per bucket and round does, and the others look again.
///
/// Two duplicates never both place their key. In 1, keys only take empty slots, and the first one that two duplicates
/// both try decides. In 2 nothing changes but filter bits, and whoever passes a bucket sets the key's bit there; in 3
/// the bit keeps all duplicates from displacing, and those that wait find it, or the key, afterwards. What is full or
/// stuck stays so: where one has passed, the others will.
///
/// kSparse: load() is false for many items, and the home buckets, too, are looked into by items packed together.
template <class View, bool kSparse = false, class Load, class Done>
__device__ __forceinline__ std::uint32_t insert_in_rounds(SharedRegion<View>& region, Queue& queue,
                                                          std::uint32_t first_bucket, const Geometry& geometry,
                                                          std::uint32_t count, int& filter_bits, Load load, Done done) {
  using Key = typename View::Key;
  using Item = typename View::SlotType;
  using Region = SharedRegion<View>;

  const auto look = [&](auto may_walk, const Probe<Key>& probe) -> Placed {
    if (probe.bucket() == geometry.bucket_count) return {Outcome::kLeft, 0};
    const std::uint32_t bucket = probe.bucket() - first_bucket;
    const SharedSeen seen = look_in_region(region, bucket, probe.stored());
    if (seen.hit != 0) return {Outcome::kFound, seen.hit - 1};
    if (seen.erased != 0) {
      if constexpr (!may_walk) return {Outcome::kFull, 0};
      return find_or_insert_in_region(region, first_bucket, Probe<Key>(probe.stored(), geometry), geometry,
                                      filter_bits);
    }
    for (std::uint32_t free = seen.empty; free != 0; free &= free - 1) {
      const std::uint32_t at = Region::place(bucket, __ffs(free) - 1);
      const Key was = region.swap_key(at, empty_key<Key>(), probe.stored());
      if (was == empty_key<Key>()) return {Outcome::kNew, at};
      if (was == probe.stored()) return {Outcome::kFound, at};
    }
    return {Outcome::kFull, 0};
  };

  queue.reset();
  __syncthreads();  // the region is there, too
  for_each_ahead<Item>(count, load, [&](std::uint32_t i, const Item& item) {
    if constexpr (kSparse) return queue.push(i);
    const Placed placed = look(std::false_type{}, Probe<Key>(item.key, geometry));
    if (placed.outcome == Outcome::kFound || placed.outcome == Outcome::kNew)
      done(i, item, placed.outcome, placed.place);
    else
      queue.push(i);
  });
  __syncthreads();
  const std::uint32_t pending = queue.pending;
  if (pending == 0) return 0;

  bool open = false;
  std::uint32_t at = threadIdx.x;  // in the queue
  std::uint32_t i = 0;
  Item item{};
  Probe<Key> probe;
  const auto close = [&](const Placed& placed) {
    if (placed.outcome == Outcome::kFull || !open) return;
    open = false;
    if (placed.outcome == Outcome::kLeft)
      queue.push_leaver(i);
    else
      done(i, item, placed.outcome, placed.place);
  };
  do {
    if (!open && at < pending) {
      i = queue.items[at];
      load(i, item);
      probe = Probe<Key>(item.key, geometry);
      open = true;
      at += kRegionBlock;
    }
    if (open) close(look(std::true_type{}, probe));
    __syncthreads();
    bool stays = false;
    while (open && !stays) {
      const std::uint32_t bucket = probe.bucket() - first_bucket;
      const bool must_pass = region.filter_has(bucket, probe.filter_bit()) || queue.is_stuck(bucket);
      const bool last = probe.at_last_hop_in_region();
      Probe<Key> next = probe;
      if (!last) next.next(geometry);
      const SharedSeen seen = look_in_region(region, next.bucket() - first_bucket, probe.stored());
      if (!must_pass && seen.empty == 0) break;
      filter_bits += region.set_filter(bucket, probe.filter_bit());
      probe = next;
      stays = seen.empty != 0 || seen.erased != 0;
      if (last) close({Outcome::kLeft, 0});
      if (seen.hit != 0) close({Outcome::kFound, seen.hit - 1});
    }
    __syncthreads();
    const std::uint32_t bucket = probe.bucket() - first_bucket;
    if (open && !stays && !region.filter_has(bucket, probe.filter_bit()) && queue.take(bucket)) {
      const std::uint32_t place =
          displace_in_region(region, first_bucket, bucket, probe.stored(), geometry, filter_bits);
      if (place != 0)
        close({Outcome::kNew, place - 1});
      else
        queue.set_stuck(bucket);
    }
    if (!__syncthreads_or(open || at < pending)) return queue.leavers;
    queue.end_round();
  } while (true);
}

enum class Erasure : std::uint8_t { kErased, kAbsent, kLeft };

/// As erase_kernel in cuda/erase.cuh; kErased: by this thread.
template <class View>
__device__ __forceinline__ Erasure erase_in_region(SharedRegion<View>& region, std::uint32_t first_bucket,
                                                   Probe<typename View::Key> probe, const Geometry& geometry) {
  using Key = typename View::Key;
  while (true) {
    const std::uint32_t bucket = probe.bucket() - first_bucket;
    const SharedSeen seen = look_in_region(region, bucket, probe.stored());
    if (seen.hit != 0) {
      const Key mark = seen.empty != 0 ? empty_key<Key>() : erased_key<Key>();
      if (region.swap_key(seen.hit - 1, probe.stored(), mark) != probe.stored()) return Erasure::kAbsent;
      if constexpr (View::kHasValue) region.values[seen.hit - 1] = empty_value<typename View::Value>();
      return Erasure::kErased;
    }
    if (seen.empty != 0 || !region.filter_has(bucket, probe.filter_bit())) return Erasure::kAbsent;
    if (probe.at_last_hop_in_region()) return Erasure::kLeft;
    probe.next(geometry);
  }
}

/// Erases the keys of a chunk; done(i, erased). As insert_in_rounds() in all else, but each thread walks to the end:
/// few walks are long, for the filters stop those of absent keys.
template <class View, class Item, class Load, class Done>
__device__ __forceinline__ std::uint32_t erase_chunk(SharedRegion<View>& region, Queue& queue,
                                                     std::uint32_t first_bucket, const Geometry& geometry,
                                                     std::uint32_t count, Load load, Done done) {
  queue.reset();
  __syncthreads();
  for_each_ahead<Item>(count, load, [&](std::uint32_t i, const Item& item) {
    const Probe<typename View::Key> probe(item.key, geometry);
    Erasure erasure = Erasure::kLeft;
    if (probe.bucket() != geometry.bucket_count) erasure = erase_in_region(region, first_bucket, probe, geometry);
    if (erasure == Erasure::kLeft)
      queue.push_leaver(i);
    else
      done(i, erasure == Erasure::kErased);
  });
  __syncthreads();
  return queue.leavers;
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

/// A mask that says what was new, or erased. It is filled with what is expected of most keys before, so that few of its
/// bytes have to be written at random places.
struct ExpectedMask {
  bool* data;  // [n] or null
  bool expected;

  __device__ __forceinline__ void set(std::uint32_t position, bool value) const {
    if (value != expected) data[position] = value;
  }
};

/// Moves the chunk's leavers to the front of the region's list, behind the `all_left` that are there.
template <class Item>
__device__ __forceinline__ void keep_leavers(const PartitionedBatch<Item>& batch, const Queue& queue,
                                             std::uint64_t first_item, std::uint32_t base, std::uint32_t all_left,
                                             bool with_positions) {
  if (queue.leavers == 0) return;
  // In their order, so that none is overwritten before it has moved.
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < kChunk; i += kRegionBlock) {
    const bool leaves = queue.is_leaver(i);
    Item item{};
    std::uint32_t position = 0;
    if (leaves) {
      item = batch.regions.items[first_item + base + i];
      if (with_positions) position = batch.regions.positions[first_item + base + i];
    }
    __syncthreads();
    if (leaves) {
      const std::uint64_t to = first_item + all_left + queue.leavers_before(i);
      batch.regions.items[to] = item;
      if (with_positions) batch.regions.positions[to] = position;
    }
  }
}

template <class View, class Item, RegionWork kWork>
__global__ void __launch_bounds__(kRegionBlock, 3)
    region_kernel(View view, PartitionedBatch<Item> batch, bool table_is_empty, bool assign, ExpectedMask mask) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& region = *reinterpret_cast<SharedRegion<View>*>(memory);
  __shared__ Workspace work;
  __shared__ Queue queue;

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
  for (std::uint32_t base = 0; base < count; base += kChunk) {
    Item* const items = batch.regions.items + first_item + base;
    std::uint32_t* const positions = batch.regions.positions + first_item + base;
    const std::uint32_t length = min(count - base, kChunk);
    const auto load = [&](std::uint32_t i, Item& item) {
      item = items[i];
      return true;
    };
    std::uint32_t left;
    if constexpr (kWork == RegionWork::kErase) {
      left = erase_chunk<View, Item>(region, queue, first_bucket, geometry, length, load,
                                     [&](std::uint32_t i, bool erased) {
                                       changed -= erased;
                                       if (mask.data != nullptr) mask.set(positions[i], erased);
                                     });
    } else {
      left = insert_in_rounds<View>(region, queue, first_bucket, geometry, length, filter_bits, load,
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
      keep_leavers(batch, queue, first_item, base, all_left, mask.data != nullptr);
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
  __shared__ Queue queue;
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
          insert_in_rounds<View, true>(region, queue, first_bucket, to.geometry, length, filter_bits, load,
                                       [&](std::uint32_t, const SlotType& slot, Outcome outcome, std::uint32_t place) {
                                         if constexpr (View::kHasValue) region.values[place] = slot.value;
                                         inserted += outcome == Outcome::kNew;
                                       });
      if (left != 0) {
        for (std::uint32_t i = threadIdx.x; i < kChunk; i += kRegionBlock) {
          const bool leaves = queue.is_leaver(i);
          rest.push(leaves, leaves ? items[i] : SlotType{}, 0);
        }
      }
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
