#pragma once

#include <cstdint>

#include "cuda/factorize/batch_table.cuh"
#include "cuda/partition/partition.cuh"

/// Factorization of large batches by *part*: the batch is partitioned by the hash of its keys (cuda/partition), so that
/// the table of a part fits the shared memory of a block, and no access to a table in memory is made at random.
///
/// Duplicates within a tile are dropped on the way, so that keys that come often do not fill their lists. A list that
/// is full all the same sets `overflow`; then the batch table of the whole batch has to do it.
namespace gpuhash::cuda {

/// Keys of a part on average; its list has room for kMaxPartItems at most.
inline constexpr std::uint32_t kMeanPartItems = 2048;
inline constexpr std::uint32_t kMaxPartItems = 3072;
inline constexpr std::uint32_t kPartSlots = 8192;
inline constexpr unsigned kPartBlock = 384;
inline constexpr std::uint32_t kItemsPerPartThread = kMaxPartItems / kPartBlock;
/// Items that a thread reads before it looks at the first one.
inline constexpr std::uint32_t kPartUnroll = 4;
static_assert(kMaxPartItems % kPartBlock == 0 && kItemsPerPartThread % kPartUnroll == 0);

template <class Key>
using KeyItem = Slot<Key, NoValue>;

/// A batch of keys in their canonical form.
template <class Key>
struct CanonicalBatch {
  using Item = KeyItem<Key>;
  KeySource<Key> keys;
  std::int64_t keys_count;

  __host__ __device__ __forceinline__ std::int64_t count() const { return keys_count; }
  /// Have they the width and the alignment of a Key, and is each bit pattern a key of its own?
  __device__ __forceinline__ bool is_plain() const { return keys.is_whole() && keys.format.compares_bits(); }
  __device__ __forceinline__ Item load_plain(std::int64_t i) const {
    return {load_streaming(static_cast<const Key*>(keys.data) + i)};
  }
  __device__ __forceinline__ Item load(std::int64_t i) const { return {keys[i]}; }
};

/// The part that a key belongs to: the highest bits of its hash.
struct PartOf {
  std::uint64_t seed;
  std::uint32_t parts;

  template <class Key>
  __device__ __forceinline__ std::uint32_t operator()(const Key& key) const {
    return __umulhi(static_cast<std::uint32_t>(hash_key(key, seed) >> 32), parts);
  }
};

/// Where first occurrences are noted: as the bits of those positions that are set in the end, either one by one, or all
/// at the start and those of other positions cleared, whichever are fewer.
struct FirstMarks {
  std::uint32_t* firsts;  // [ceil(n / 32)]
  std::uint32_t* links;   // [n], or null
  bool clears;

  __device__ __forceinline__ void link(std::uint32_t position, std::uint32_t before) const {
    if (links != nullptr) links[position] = before;
  }
  /// The key of `position` occurs at `before`, too.
  __device__ __forceinline__ void drop(std::uint32_t position, std::uint32_t before) const {
    if (clears) atomicAnd(firsts + position / 32, ~(1u << position % 32));
    link(position, before);
  }
  __device__ __forceinline__ void keep(std::uint32_t position) const {
    if (!clears) atomicOr(firsts + position / 32, 1u << position % 32);
  }
};

/// Drops duplicates in the pass over the batch, whose tiles are 32 positions and their multiples: writes all bits.
struct DropInBatch {
  std::uint64_t seed;
  FirstMarks marks;

  __device__ __forceinline__ void drop(std::uint32_t position, std::uint32_t before) const {
    marks.link(position, before);
  }
  __device__ __forceinline__ void end_item(bool valid, std::uint32_t position, bool kept) const {
    const unsigned bits = __ballot_sync(kAllLanes, valid && kept);
    if (threadIdx.x % 32 == 0 && valid) marks.firsts[position / 32] = marks.clears ? bits : 0;
  }
};

/// Drops duplicates in the second pass.
struct DropInBin {
  std::uint64_t seed;
  FirstMarks marks;

  __device__ __forceinline__ void drop(std::uint32_t position, std::uint32_t before) const {
    marks.drop(position, before);
  }
  __device__ __forceinline__ void end_item(bool, std::uint32_t, bool) const {}
};

/// Drops duplicates of keys whose positions nobody asks for.
struct DropAnywhere {
  std::uint64_t seed;
};

/// The table of a part, in shared memory: a slot holds the number of an item in the part's list, and some bits of its
/// hash, so that other keys are hardly ever looked at. Linear probing. Every key is legal.
struct PartMemory {
  alignas(16) std::uint32_t slots[kPartSlots];
  std::uint16_t losers[kMaxPartItems];  // numbers of items whose home slot another key has got
  std::uint32_t loser_count;
};

template <class Key>
struct PartTable {
  static constexpr std::uint32_t kVacant = ~0u;
  static constexpr std::uint32_t kNumberBits = 12;
  static constexpr std::uint32_t kNumber = (1u << kNumberBits) - 1;
  static_assert(kMaxPartItems <= kNumber);  // no slot that is taken has the bits of a vacant one
  static_assert(kMaxPartItems < kPartSlots && (kPartSlots & (kPartSlots - 1)) == 0);

  PartMemory& memory;
  const KeyItem<Key>* items;  // the part's list
  std::uint64_t seed;

  /// Before insert_all, with a barrier between them. All threads of the block call it.
  __device__ __forceinline__ void clear() const {
    auto* const words = reinterpret_cast<uint4*>(memory.slots);
    for (std::uint32_t w = threadIdx.x; w < kPartSlots / 4; w += kPartBlock)
      words[w] = make_uint4(kVacant, kVacant, kVacant, kVacant);
    if (threadIdx.x == 0) memory.loser_count = 0;
  }

  /// Inserts `count` items; all threads of the block call it. begin(number) is called for each of them, and then, after
  /// a barrier, repeat(number, holder) for those whose key another item holds.
  ///
  /// Every item puts itself into its home slot, whatever is there; who stands there in the end holds its key. Only
  /// those whose slot then holds another key, one in nine of 2048 distinct ones, claim a slot by compare-and-swap,
  /// behind it. (Plain stores would do instead of the exchanges, and are what racecheck reports.)
  template <class Begin, class Repeat>
  __device__ __forceinline__ void insert_all(std::uint32_t count, Begin begin, Repeat repeat) const {
    std::uint32_t marks[kItemsPerPartThread];
#pragma unroll
    for (std::uint32_t first = 0; first < kItemsPerPartThread; first += kPartUnroll) {
      Key keys[kPartUnroll];
#pragma unroll
      for (std::uint32_t u = 0; u < kPartUnroll; ++u) {
        const std::uint32_t j = (first + u) * kPartBlock + threadIdx.x;
        if (j >= count) continue;
        keys[u] = items[j].key;
        begin(j);
      }
#pragma unroll
      for (std::uint32_t u = 0; u < kPartUnroll; ++u) {
        const std::uint32_t j = (first + u) * kPartBlock + threadIdx.x;
        if (j >= count) continue;
        marks[first + u] = mark_of(keys[u]);
        atomicExch(memory.slots + home(marks[first + u]), word(marks[first + u], j));
      }
    }
    __syncthreads();
#pragma unroll
    for (std::uint32_t k = 0; k < kItemsPerPartThread; ++k) {
      const std::uint32_t j = k * kPartBlock + threadIdx.x;
      if (j >= count) continue;
      const std::uint32_t mine = word(marks[k], j);
      const std::uint32_t seen = memory.slots[home(marks[k])];
      if (seen == mine) continue;
      if (same_tag(seen, mine) && items[seen & kNumber].key == items[j].key)
        repeat(j, seen & kNumber);
      else
        memory.losers[atomicAdd(&memory.loser_count, 1u)] = static_cast<std::uint16_t>(j);
    }
    __syncthreads();
    for (std::uint32_t l = threadIdx.x; l < memory.loser_count; l += kPartBlock) {
      const std::uint32_t j = memory.losers[l];
      const Key key = items[j].key;
      const std::uint32_t mark = mark_of(key);
      const std::uint32_t mine = word(mark, j);
      for (std::uint32_t at = (home(mark) + 1) % kPartSlots;; at = (at + 1) % kPartSlots) {
        const std::uint32_t seen = atomicCAS(memory.slots + at, kVacant, mine);
        if (seen == kVacant) break;
        if (!same_tag(seen, mine) || !(items[seen & kNumber].key == key)) continue;
        repeat(j, seen & kNumber);
        break;
      }
    }
  }

  /// Calls found(position) for each of `count` elements whose key is in the table; all threads of the block call it, a
  /// barrier after insert_all.
  template <class Found>
  __device__ __forceinline__ void look_up_all(const KeyItem<Key>* elements, const std::uint32_t* positions,
                                              std::uint32_t count, Found found) const {
    for (std::uint32_t base = threadIdx.x; base < count; base += kPartUnroll * kPartBlock) {
      Key keys[kPartUnroll];
      Key held[kPartUnroll];
      std::uint32_t at[kPartUnroll];
      std::uint32_t seen[kPartUnroll];
#pragma unroll
      for (std::uint32_t u = 0; u < kPartUnroll; ++u) {
        const std::uint32_t j = base + u * kPartBlock;
        if (j >= count) continue;
        keys[u] = load_streaming(&elements[j].key);
        at[u] = load_streaming(positions + j);
      }
#pragma unroll
      for (std::uint32_t u = 0; u < kPartUnroll; ++u) {
        if (base + u * kPartBlock >= count) continue;
        const std::uint32_t mark = mark_of(keys[u]);
        seen[u] = memory.slots[home(mark)];
        if (may_be(seen[u], mark)) held[u] = items[seen[u] & kNumber].key;
      }
#pragma unroll
      for (std::uint32_t u = 0; u < kPartUnroll; ++u) {
        if (base + u * kPartBlock >= count || seen[u] == kVacant) continue;
        const std::uint32_t mark = mark_of(keys[u]);
        bool is_there = may_be(seen[u], mark) && held[u] == keys[u];
        for (std::uint32_t slot = home(mark); !is_there && seen[u] != kVacant;) {
          slot = (slot + 1) % kPartSlots;
          seen[u] = memory.slots[slot];
          is_there = may_be(seen[u], mark) && items[seen[u] & kNumber].key == keys[u];
        }
        if (is_there) found(at[u]);
      }
    }
  }

 private:
  /// The bits of the hash between those that choose the part, above, and those that tiles drop duplicates by, below.
  __device__ __forceinline__ std::uint32_t mark_of(const Key& key) const {
    return static_cast<std::uint32_t>(hash_key(key, seed) >> 14);
  }
  __device__ __forceinline__ static std::uint32_t home(std::uint32_t mark) {
    return mark / (~0u / kPartSlots + 1);  // the high bits
  }
  __device__ __forceinline__ static std::uint32_t word(std::uint32_t mark, std::uint32_t number) {
    return mark << kNumberBits | number;
  }
  __device__ __forceinline__ static bool same_tag(std::uint32_t a, std::uint32_t b) {
    return ((a ^ b) & ~kNumber) == 0;
  }
  __device__ __forceinline__ static bool may_be(std::uint32_t seen, std::uint32_t mark) {
    return seen != kVacant && same_tag(seen, word(mark, 0));
  }
};

/// Shared memory of a block that finds first occurrences.
struct MarkMemory {
  PartMemory table;
  // The least position of an item's key, if that item holds it; else kRepeats and the number of the one that does.
  std::uint32_t least[kMaxPartItems];
};

/// Finds the first occurrences of each part's keys. One block per part.
template <class Key>
__global__ void __launch_bounds__(kPartBlock, 4)
    mark_part_kernel(Lists<KeyItem<Key>> parts, const PartitionCounters* counters, std::uint64_t seed,
                     FirstMarks marks) {
  constexpr std::uint32_t kRepeats = 1u << 31;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<MarkMemory*>(memory);
  std::uint32_t* const least = shared.least;
  if (counters->overflow != 0) return;
  const std::uint64_t from = parts.offset(blockIdx.x, 0);
  const std::uint32_t count = parts.count(blockIdx.x);
  const std::uint32_t* const positions = parts.positions + from;
  const PartTable<Key> table{shared.table, parts.items + from, seed};
  table.clear();
  __syncthreads();
  bool repeats = false;
  table.insert_all(
      count, [&](std::uint32_t j) { least[j] = positions[j]; },
      [&](std::uint32_t j, std::uint32_t holder) {
        atomicMin(least + holder, least[j]);
        least[j] = kRepeats | holder;  // which nobody else looks at before the barrier
        repeats = true;
      });
  if (!__syncthreads_or(repeats) && marks.clears) return;  // all bits are as they should be
  for (std::uint32_t j = threadIdx.x; j < count; j += kPartBlock) {
    const std::uint32_t position = positions[j];
    std::uint32_t first = least[j];
    if (first < kRepeats)
      marks.keep(first);
    else
      first = least[first - kRepeats];
    if (first != position) marks.drop(position, first);
  }
}

/// Sets the bits of the positions of each part's elements that are among its tests. One block per part.
template <class Key>
__global__ void __launch_bounds__(kPartBlock, 4)
    find_members_of_part_kernel(Lists<KeyItem<Key>> tests, Lists<KeyItem<Key>> elements,
                                const PartitionCounters* counters, std::uint64_t seed, std::uint32_t* members) {
  __shared__ PartMemory memory;
  if (counters->overflow != 0) return;
  const std::uint64_t from = elements.offset(blockIdx.x, 0);
  const PartTable<Key> table{memory, tests.items + tests.offset(blockIdx.x, 0), seed};
  table.clear();
  __syncthreads();
  table.insert_all(tests.count(blockIdx.x), [](std::uint32_t) {}, [](std::uint32_t, std::uint32_t) {});
  __syncthreads();
  table.look_up_all(elements.items + from, elements.positions + from, elements.count(blockIdx.x),
                    [&](std::uint32_t position) { atomicOr(members + position / 32, 1u << position % 32); });
}

/// Positions that a thread of write_mask_kernel writes.
inline constexpr std::int64_t kMaskItems = 8;

/// mask[i] = (the bit of i among the members is set) != invert; for positions that were dropped, whose bit in `kept` is
/// not set, that of the position that the links lead to.
static __global__ void __launch_bounds__(kBatchBlock)
    write_mask_kernel(const PartitionCounters* counters, const std::uint32_t* members, const std::uint32_t* kept,
                      const std::uint32_t* links, std::int64_t count, bool invert, bool* mask) {
  if (counters->overflow != 0) return;
  const std::int64_t first = (std::int64_t{blockIdx.x} * kBatchBlock + threadIdx.x) * kMaskItems;
  if (first >= count) return;
  const auto is_set = [](const std::uint32_t* bits, std::uint32_t i) { return (bits[i / 32] >> i % 32 & 1) != 0; };
  std::uint64_t bytes = 0;
#pragma unroll
  for (std::uint32_t k = 0; k < kMaskItems; ++k) {
    auto i = static_cast<std::uint32_t>(first) + k;
    if (i >= count) break;
    while (!is_set(kept, i)) i = links[i];
    bytes |= std::uint64_t{is_set(members, i) != invert} << (8 * k);
  }
  if (first + kMaskItems <= count && reinterpret_cast<std::uintptr_t>(mask) % kMaskItems == 0)
    *reinterpret_cast<std::uint64_t*>(mask + first) = bytes;
  else
    for (std::int64_t k = 0; k < kMaskItems && first + k < count; ++k) mask[first + k] = (bytes >> (8 * k) & 1) != 0;
}

}  // namespace gpuhash::cuda
