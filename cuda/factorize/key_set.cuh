#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/atomics.cuh"
#include "cuda/factorize/key_source.cuh"
#include "shared/first_occurrence.hpp"
#include "shared/hash.hpp"
#include "shared/layout.hpp"

/// The set in which `isin` looks keys up: keys alone, without positions, in buckets of 16 bytes, which one thread reads
/// at once. Two buckets share a sector of 32 bytes, which a key goes through before it comes to the next one: whoever
/// looks into both has one access to memory, and the second look meets L1.
///
/// Slots of a bucket fill one after the other, so a bucket is full if its last slot is. The key that looks like an
/// empty slot has a place of its own behind the buckets, with another key in it if it is there; so every key is legal.
namespace gpuhash::cuda {

template <class Key>
struct KeySetView {
  using Slot = gpuhash::Slot<Key, NoValue>;
  static constexpr std::int64_t kBucketBytes = 16;
  static constexpr std::int64_t kBucketSlots = kBucketBytes / sizeof(Slot);
  static constexpr std::int64_t kSectorSlots = 2 * kBucketSlots;

  Slot* slots;           // [kBucketSlots * buckets + 1]
  std::int64_t buckets;  // an even number
  std::uint64_t seed;

  /// The place of the key that looks like an empty slot.
  __device__ __forceinline__ std::int64_t stray() const { return kBucketSlots * buckets; }

  /// Inserts a key. False if give_up(number of full buckets that it has passed) says so.
  template <class GiveUp>
  __device__ __forceinline__ bool insert(const Key& key, GiveUp give_up) const {
    if (key == empty_key<Key>()) {
      if (slots[stray()].key == empty_key<Key>()) slots[stray()].key = erased_key<Key>();
      return true;
    }
    std::int64_t bucket = home(key);
    for (std::int64_t probes = 1;; ++probes) {
      Key held[kBucketSlots];
      load<false>(bucket, held);
#pragma unroll
      for (std::int64_t s = 0; s < kBucketSlots; ++s) {
        // A slot that was empty a moment ago may have been taken since; the claim tells by whom.
        if (held[s] == empty_key<Key>())
          held[s] = claim(slots + kBucketSlots * bucket + s, empty_key<Key>(), key, NoValue{});
        if (held[s] == key || held[s] == empty_key<Key>()) return true;
      }
      if (give_up(probes)) return false;
      bucket = next(bucket, probes);
    }
  }

  /// The number of the slot that holds the key, or -1. No key is inserted meanwhile.
  __device__ __forceinline__ std::int64_t find(const Key& key) const {
    if (key == empty_key<Key>()) return slots[stray()].key == empty_key<Key>() ? -1 : stray();
    std::int64_t bucket = home(key);
    for (std::int64_t probes = 1;; ++probes) {
      Key held[kBucketSlots];
      load<true>(bucket, held);
#pragma unroll
      for (std::int64_t s = 0; s < kBucketSlots; ++s)
        if (held[s] == key) return kBucketSlots * bucket + s;
      if (held[kBucketSlots - 1] == empty_key<Key>() || probes == buckets) return -1;  // all may be full
      bucket = next(bucket, probes);
    }
  }

 private:
  __device__ __forceinline__ std::int64_t home(const Key& key) const {
    return static_cast<std::int64_t>(multiply_high(hash_key(key, seed), static_cast<std::uint64_t>(buckets)));
  }

  /// The bucket to look into after so many: the other one of the sector, or that in the next sector where the key
  /// would have begun.
  __device__ __forceinline__ std::int64_t next(std::int64_t bucket, std::int64_t probes) const {
    bucket ^= 1;
    if (probes % 2 == 0) bucket += 2;
    return bucket < buckets ? bucket : bucket - buckets;
  }

  /// What is in a bucket; while keys are inserted, what was there at some time since the kernel began.
  template <bool kUnchanging>
  __device__ __forceinline__ void load(std::int64_t bucket, Key (&held)[kBucketSlots]) const {
    const auto* const from = slots + kBucketSlots * bucket;
    Words words;
    if constexpr (kUnchanging)
      words = load_unchanging(from);
    else if constexpr (sizeof(Key) == sizeof(Words))
      words = load_contended(from);  // the key has to be whole
    else
      words = load_aged(from);
    std::memcpy(held, &words, sizeof held);
  }
};

/// What the host reads back after insertion, if it does not know that all keys have room.
struct KeySetStatus {
  unsigned long long full;      // a probe sequence was too long
  unsigned long long given_up;  // keys that are not in the set, because of that
};

template <class Key>
__global__ void __launch_bounds__(kBatchBlock)
    insert_keys_kernel(KeySetView<Key> set, KeySource<Key> keys, std::int64_t count, std::int64_t max_probes,
                       KeySetStatus* status) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBatchBlock + threadIdx.x;
  if (i >= count) return;
  auto* const full = static_cast<volatile unsigned long long*>(&status->full);
  const bool inserted = set.insert(keys[i], [&](std::int64_t probes) {
    if (probes < max_probes) return probes % batch_size::kPatience == 0 && *full != 0;
    *full = 1;
    return true;
  });
  if (!inserted) atomicAdd(&status->given_up, 1ull);
}

/// Calls visit(i, number of the slot that holds key i, or -1).
template <class Key, class Visit>
__global__ void __launch_bounds__(kBatchBlock)
    look_up_keys_kernel(KeySetView<Key> set, KeySource<Key> keys, std::int64_t count, Visit visit) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBatchBlock + threadIdx.x;
  if (i < count) visit(i, set.find(keys[i]));
}

/// mask[i] = (key i is in the set) != invert.
struct WriteMask {
  bool* mask;
  bool invert;

  __device__ __forceinline__ void operator()(std::int64_t i, std::int64_t slot) const {
    mask[i] = (slot >= 0) != invert;
  }
};

/// met[slot of the key] = 1.
struct MarkMet {
  std::uint8_t* met;

  __device__ __forceinline__ void operator()(std::int64_t, std::int64_t slot) const {
    if (slot >= 0 && met[slot] == 0) met[slot] = 1;
  }
};

/// mask[i] = (the key, which is in the set, has been met) != invert.
struct ReadMet {
  const std::uint8_t* met;
  bool* mask;
  bool invert;

  __device__ __forceinline__ void operator()(std::int64_t i, std::int64_t slot) const {
    mask[i] = (met[slot] != 0) != invert;
  }
};

}  // namespace gpuhash::cuda
