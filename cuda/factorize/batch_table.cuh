#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/atomics.cuh"
#include "cuda/factorize/key_source.cuh"
#include "shared/first_occurrence.hpp"
#include "shared/layout.hpp"

/// The batch table on the GPU: one thread per key, and one 8- or 16-byte load per slot that it looks at, which tells
/// both whether the slot holds the key and where the key has been met. Linear probing, so that the next slot mostly
/// lies in the memory that was just read.
namespace gpuhash::cuda {

/// What a slot holds: `mark` is the key, or the hash of a 16-byte key; `first` the least position met so far, all ones
/// in an empty slot. So every key is legal.
template <class Key>
struct Entry {
  using Mark = std::conditional_t<sizeof(Key) == 4, std::uint32_t, std::uint64_t>;
  using FirstPosition = Mark;

  Mark mark;
  FirstPosition first;

  __device__ __forceinline__ bool empty() const { return first == ~FirstPosition{0}; }
};

template <class Key>
struct BatchTableView {
  using EntryType = Entry<Key>;
  using Mark = typename EntryType::Mark;
  using FirstPosition = typename EntryType::FirstPosition;

  EntryType* entries;  // [slots]
  std::int64_t slots;
  std::uint64_t seed;

  __device__ __forceinline__ std::int64_t home(std::uint64_t hash) const {
    return static_cast<std::int64_t>(multiply_high(hash, static_cast<std::uint64_t>(slots)));
  }

  __device__ __forceinline__ static Mark mark_of(const Key& key, std::uint64_t hash) {
    if constexpr (sizeof(Key) == 16)
      return hash;
    else
      return key;
  }

  __device__ __forceinline__ EntryType load(std::int64_t slot) const {
    if constexpr (sizeof(Key) == 4) {
      std::uint64_t word;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(entries + slot) : "memory");
      return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
    } else {
      const Words words = load_contended(entries + slot);
      return {words.low, words.high};
    }
  }

  /// What was there; the slot was empty iff it has been taken.
  __device__ __forceinline__ EntryType claim(std::int64_t slot, const EntryType& entry) const {
    if constexpr (sizeof(Key) == 4) {
      const std::uint64_t was = cas64(entries + slot, ~std::uint64_t{0}, join(entry.mark, entry.first));
      return {static_cast<std::uint32_t>(was), static_cast<std::uint32_t>(was >> 32)};
    } else {
      const Words was = cas128(entries + slot, {~std::uint64_t{0}, ~std::uint64_t{0}}, {entry.mark, entry.first});
      return {was.low, was.high};
    }
  }

  /// Lowers the first position of a slot that is taken; the one that was there.
  __device__ __forceinline__ FirstPosition lower(std::int64_t slot, FirstPosition position) const {
    using Word = std::conditional_t<sizeof(Key) == 4, unsigned, unsigned long long>;
    return atomicMin(reinterpret_cast<Word*>(&entries[slot].first), static_cast<Word>(position));
  }

  /// Equal hashes of 16-byte keys are followed up in the batch that the positions are of.
  __device__ __forceinline__ bool holds(const EntryType& entry, Mark mark, const Key& key,
                                        const KeySource<Key>& batch) const {
    if constexpr (sizeof(Key) == 16)
      return entry.mark == mark && batch[static_cast<std::int64_t>(entry.first)] == key;
    else
      return entry.mark == mark;
  }
};

/// What the host reads back after insertion.
struct BatchStatus {
  unsigned long long full;      // a probe sequence was too long
  unsigned long long given_up;  // keys that are not in the table, because of that
  unsigned long long distinct;  // first bits
};

/// Inserts all keys. firsts [ceil(n / 32)], zeros; links [n] or null.
template <class Key, class Position>
__global__ void __launch_bounds__(kBatchBlock)
    insert_batch_kernel(BatchTableView<Key> table, KeySource<Key> keys, std::int64_t count, std::uint32_t* firsts,
                        Position* links, BatchStatus* status, std::int64_t max_probes) {
  using EntryType = typename BatchTableView<Key>::EntryType;
  using FirstPosition = typename BatchTableView<Key>::FirstPosition;
  const std::int64_t i = std::int64_t{blockIdx.x} * kBatchBlock + threadIdx.x;
  bool first = false;
  if (i < count) {
    const Key key = keys[i];
    const std::uint64_t hash = hash_key(key, table.seed);
    const auto mark = BatchTableView<Key>::mark_of(key, hash);
    const auto mine = static_cast<FirstPosition>(i);
    std::int64_t slot = table.home(hash);
    for (std::int64_t probes = 1;; ++probes) {
      EntryType entry = table.load(slot);
      if (entry.empty()) {
        entry = table.claim(slot, {mark, mine});
        if (entry.empty()) {
          first = true;
          break;
        }
      }
      if (table.holds(entry, mark, key, keys)) {
        const FirstPosition before = entry.first > mine ? table.lower(slot, mine) : entry.first;
        if (before > mine) {
          first = true;
          atomicXor(firsts + before / 32, 1u << (before % 32));
          if (links != nullptr) links[before] = static_cast<Position>(i);
        } else if (links != nullptr) {
          __stcs(links + i, static_cast<Position>(before));
        }
        break;
      }
      const bool too_long = probes >= max_probes;
      if (too_long ||
          (probes % batch_size::kPatience == 0 && *static_cast<volatile unsigned long long*>(&status->full) != 0)) {
        if (too_long) *static_cast<volatile unsigned long long*>(&status->full) = 1;
        atomicAdd(&status->given_up, 1ull);
        break;
      }
      if (++slot == table.slots) slot = 0;
    }
  }
  const unsigned bits = __ballot_sync(~0u, first);
  if (threadIdx.x % 32 == 0 && bits != 0) atomicXor(firsts + i / 32, bits);
}

/// out[j] = the key at the sample's position j.
template <class Key>
__global__ void __launch_bounds__(kBatchBlock)
    take_sample_kernel(KeySource<Key> keys, std::int64_t count, std::int64_t samples, void* out) {
  const std::int64_t j = std::int64_t{blockIdx.x} * kBatchBlock + threadIdx.x;
  if (j >= samples) return;
  store_bytes(out, j, keys.bytes, keys.raw(batch_size::sample_position(j, samples, count)));
}

}  // namespace gpuhash::cuda
