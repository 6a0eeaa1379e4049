#pragma once

#include <cstdint>

#include <gpuhash/pairing.hpp>
#include "cuda/factorize/key_source.cuh"
#include "shared/first_occurrence.hpp"
#include "shared/hash.hpp"

/// A table of a join's right keys, with linear probing: a slot says where its key is, and how many rows have it.
namespace gpuhash::cuda {

inline constexpr unsigned kPairBlock = 256;

/// All zeros: empty.
struct alignas(8) KeySlot {
  std::uint32_t place;  // a right row of the key, and 1
  std::uint32_t count;  // right rows of the key
};

template <class Key>
struct KeyTable {
  KeySlot* slots;  // [count + 1], more than there are keys; the last one's count says whether keys repeat
  std::int64_t count;
  std::uint64_t seed;
  KeySource<Key> keys;

  /// Calls visit(slot) from the key's home on, until it says that the search is over.
  template <class Visit>
  __device__ __forceinline__ void search(const Key& key, Visit visit) const {
    auto slot = static_cast<std::int64_t>(multiply_high(hash_key(key, seed), static_cast<std::uint64_t>(count)));
    while (!visit(slot))
      if (++slot == count) slot = 0;
  }
  __device__ __forceinline__ bool holds(std::uint32_t place, const Key& key) const {
    return keys[static_cast<std::int64_t>(place) - 1] == key;
  }
  __device__ __forceinline__ std::uint32_t& repeats() const { return slots[count].count; }
};

/// How many pairs a left row has whose key has so many right rows.
__device__ __forceinline__ std::int64_t pairs_with(std::int64_t partners, PairKind kind) {
  if (partners == 0) return kind == PairKind::kLeft || kind == PairKind::kAnti ? 1 : 0;
  if (kind == PairKind::kAnti) return 0;
  return kind == PairKind::kSemi ? 1 : partners;
}

/// codes [count], the slot of each right row.
template <class Key>
__global__ void __launch_bounds__(kPairBlock)
    insert_keys_kernel(KeyTable<Key> table, std::int64_t count, std::int64_t* codes) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kPairBlock + threadIdx.x;
  if (row >= count) return;
  const Key key = table.keys[row];
  table.search(key, [&](std::int64_t slot) {
    unsigned* const place = &table.slots[slot].place;
    unsigned seen = __ldcg(place);
    if (seen == 0) seen = atomicCAS(place, 0u, static_cast<unsigned>(row) + 1);
    if (seen != 0) {
      if (!table.holds(seen, key)) return false;
      table.repeats() = 1;
    }
    atomicAdd(&table.slots[slot].count, 1u);
    codes[row] = slot;
    return true;
  });
}

/// codes [count], the slot of each left row's key, or its right row where no keys repeat; -1: there is none. ends
/// [count + 1], the pairs of each left row, and whether keys repeat.
template <class Key>
__global__ void __launch_bounds__(kPairBlock)
    match_keys_kernel(KeyTable<Key> table, KeySource<Key> left, std::int64_t count, PairKind kind, std::int64_t* codes,
                      std::int64_t* ends) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kPairBlock + threadIdx.x;
  if (row >= count) return;
  const bool repeats = table.repeats() != 0;
  if (row == 0) ends[count] = repeats ? 1 : 0;
  const Key key = left[row];
  table.search(key, [&](std::int64_t slot) {
    const uint2 found = __ldg(reinterpret_cast<const uint2*>(table.slots + slot));  // place and count
    if (found.x != 0 && !table.holds(found.x, key)) return false;
    codes[row] = found.x == 0 ? -1 : repeats ? slot : static_cast<std::int64_t>(found.x) - 1;
    ends[row] = pairs_with(found.y, kind);
    return true;
  });
}

}  // namespace gpuhash::cuda
