#pragma once

#include <cstdint>

#include "cuda/factorization/batch_table.cuh"
#include "cuda/partition/partition.cuh"

/// Factorization of large batches by *part*: the batch is partitioned by the hash of its keys (cuda/partition), so that
/// the table of a part fits the shared memory of a block, and no access to a table in memory is made at random.
///
/// Duplicates within a tile are dropped on the way, so that keys that come often do not fill their lists. A list that
/// is full all the same sets `overflow`; then the batch table of the whole batch has to do it.
namespace gpuhash::cuda {

/// Keys of a part on average; its list has room for kMaxPartItems at most, so that the part's table is never full.
inline constexpr std::uint32_t kMeanPartItems = 2048;
inline constexpr std::uint32_t kMaxPartItems = 3072;
inline constexpr std::uint32_t kPartSlots = 4096;
inline constexpr unsigned kPartBlock = 256;
/// Keys that a thread reads before it looks at the first one.
inline constexpr std::uint32_t kPartUnroll = 4;
static_assert(kMaxPartItems < kPartSlots && (kPartSlots & (kPartSlots - 1)) == 0);

template <class Key>
using KeyItem = Slot<Key, NoValue>;

/// A batch of keys in their canonical form.
template <class Key>
struct CanonicalBatch {
  using Item = KeyItem<Key>;
  KeySource<Key> keys;
  std::int64_t keys_count;

  __host__ __device__ __forceinline__ std::int64_t count() const { return keys_count; }
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
template <class Key>
struct PartTable {
  static constexpr std::uint32_t kVacant = ~0u;
  static constexpr std::uint32_t kNumber = kPartSlots - 1;  // the bits of an item's number
  static_assert(kMaxPartItems <= kNumber);                  // no slot that is taken has the bits of a vacant one

  std::uint32_t* slots;       // [kPartSlots], shared
  const KeyItem<Key>* items;  // the part's list
  std::uint64_t seed;

  __device__ __forceinline__ void clear() const {
    for (std::uint32_t s = threadIdx.x; s < kPartSlots; s += kPartBlock) slots[s] = kVacant;
  }

  /// The number of the item that holds the key: `number` if there was none yet.
  __device__ __forceinline__ std::uint32_t insert(const Key& key, std::uint32_t number) const {
    const std::uint64_t hash = hash_key(key, seed);
    const std::uint32_t mine = tag(hash) | number;
    for (std::uint32_t at = home(hash);; at = (at + 1) % kPartSlots) {
      const std::uint32_t seen = atomicCAS(slots + at, kVacant, mine);
      if (seen == kVacant) return number;
      if (holds(seen, mine, key)) return seen & kNumber;
    }
  }

  /// After all insertions.
  __device__ __forceinline__ bool contains(const Key& key) const {
    const std::uint64_t hash = hash_key(key, seed);
    const std::uint32_t mine = tag(hash);
    for (std::uint32_t at = home(hash);; at = (at + 1) % kPartSlots) {
      const std::uint32_t seen = slots[at];
      if (seen == kVacant) return false;
      if (holds(seen, mine, key)) return true;
    }
  }

 private:
  // The bits above these choose the part, those below a slot while tiles drop duplicates.
  __device__ __forceinline__ static std::uint32_t home(std::uint64_t hash) {
    return static_cast<std::uint32_t>(hash >> 32) % kPartSlots;
  }
  __device__ __forceinline__ static std::uint32_t tag(std::uint64_t hash) {
    return static_cast<std::uint32_t>(hash) & ~kNumber;
  }
  __device__ __forceinline__ bool holds(std::uint32_t seen, std::uint32_t mine, const Key& key) const {
    return ((seen ^ mine) & ~kNumber) == 0 && items[seen & kNumber].key == key;
  }
};

/// Calls body(number, key) for each item of a list, by all threads of the block.
template <class Key, class Body>
__device__ __forceinline__ void for_each_key(const KeyItem<Key>* items, std::uint32_t count, Body body) {
  for (std::uint32_t base = threadIdx.x; base < count; base += kPartUnroll * kPartBlock) {
    Key keys[kPartUnroll];
#pragma unroll
    for (std::uint32_t u = 0; u < kPartUnroll; ++u)
      if (base + u * kPartBlock < count) keys[u] = items[base + u * kPartBlock].key;
#pragma unroll
    for (std::uint32_t u = 0; u < kPartUnroll; ++u)
      if (base + u * kPartBlock < count) body(base + u * kPartBlock, keys[u]);
  }
}

/// Finds the first occurrences of each part's keys. One block per part.
template <class Key>
__global__ void __launch_bounds__(kPartBlock, 6)
    mark_part_kernel(Lists<KeyItem<Key>> parts, const PartitionCounters* counters, std::uint64_t seed,
                     FirstMarks marks) {
  constexpr std::uint32_t kRepeats = 1u << 31;
  __shared__ std::uint32_t slots[kPartSlots];
  // The least position of an item's key, if it was the first one in the table; else kRepeats and that item's number.
  __shared__ std::uint32_t least[kMaxPartItems];
  if (counters->overflow != 0) return;
  const std::uint64_t from = parts.offset(blockIdx.x, 0);
  const std::uint32_t count = parts.count(blockIdx.x);
  const std::uint32_t* const positions = parts.positions + from;
  const PartTable<Key> table{slots, parts.items + from, seed};
  table.clear();
  for (std::uint32_t j = threadIdx.x; j < count; j += kPartBlock) least[j] = positions[j];
  __syncthreads();
  for_each_key<Key>(parts.items + from, count, [&](std::uint32_t j, const Key& key) {
    const std::uint32_t holder = table.insert(key, j);
    if (holder == j) return;
    atomicMin(least + holder, least[j]);
    least[j] = kRepeats | holder;  // which nobody else looks at before the others are done
  });
  __syncthreads();
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

/// mask[position] = present for the elements of each part that are among its tests. One block per part.
template <class Key>
__global__ void __launch_bounds__(kPartBlock, 6)
    find_members_of_part_kernel(Lists<KeyItem<Key>> tests, Lists<KeyItem<Key>> elements,
                                const PartitionCounters* counters, std::uint64_t seed, bool* mask, bool present) {
  __shared__ std::uint32_t slots[kPartSlots];
  if (counters->overflow != 0) return;
  const KeyItem<Key>* const test_items = tests.items + tests.offset(blockIdx.x, 0);
  const std::uint64_t from = elements.offset(blockIdx.x, 0);
  const PartTable<Key> table{slots, test_items, seed};
  table.clear();
  __syncthreads();
  for_each_key<Key>(test_items, tests.count(blockIdx.x),
                    [&](std::uint32_t j, const Key& key) { table.insert(key, j); });
  __syncthreads();
  for_each_key<Key>(elements.items + from, elements.count(blockIdx.x), [&](std::uint32_t j, const Key& key) {
    if (table.contains(key)) mask[elements.positions[from + j]] = present;
  });
}

}  // namespace gpuhash::cuda
