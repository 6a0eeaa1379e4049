#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/atomics.cuh"
#include "shared/layout.hpp"
#include "shared/probe_sequence.hpp"

/// Probing by warps: probe together, act alone.
///
/// A warp takes 32 keys, one per lane; each lane walks its own key's probe sequence. To look into buckets, four lanes
/// load one bucket, 16 bytes each, so that a warp looks into eight buckets with one load instruction, and into all 32
/// first buckets with four loads that are in flight together. Ballots then tell each lane what its own key's bucket
/// holds, and all 32 lanes swap, read filters or erase in one instruction. Keys that go on to another bucket are packed
/// together first, so that lanes load only for keys that are still on their way; a lane whose own key is done helps to
/// load for the others.
///
/// In throw-away kernels that only found present keys, one group of lanes per key from beginning to end, the textbook
/// way, reached 25.5 G keys/s at load 0.5 where this reached 32.6 (H200, 2^27 pairs of 8 + 8 bytes): half of the lanes
/// idled while one of the group decided.
namespace gpuhash::cuda {

inline constexpr unsigned kAllLanes = ~0u;
inline constexpr unsigned kBlock =
    128;  // threads per block of the probing kernels; of lookups fewer (cuda/walk/find.cuh)
inline constexpr unsigned kWarps = kBlock / 32;

/// Scratch of a block in shared memory.
struct Workspace {
  std::uint8_t owners[kWarps][32];  // packed keys -> lanes
  unsigned long long sums[3];       // of add_to_control
};

/// What one lane's bucket held. Bit p stands for slot slot_of_bit<View>(p).
struct Seen {
  std::uint32_t hit;
  std::uint32_t empty;
  std::uint32_t erased;
};

template <class View>
struct Lanes {
  static constexpr std::uint32_t kPerBucket = 4;
  static constexpr std::uint32_t kSlots = View::kSlots / kPerBucket;  // per lane
  static constexpr std::uint32_t kKeysPerStep = 32 / kPerBucket;
};

template <class View>
__device__ __forceinline__ std::uint32_t slot_of_bit(std::uint32_t bit) {
  return (bit % Lanes<View>::kPerBucket) * Lanes<View>::kSlots + bit / Lanes<View>::kPerBucket;
}

/// How buckets are read. kContended: others may write meanwhile. kOnce and kCached: nobody does, and the table lies
/// beyond L2, or in it.
enum class Reads { kContended, kOnce, kCached };

/// The slots that one lane loads.
template <class View, Reads kReads>
struct LaneSlots {
  typename View::SlotType slots[Lanes<View>::kSlots];

  __device__ __forceinline__ void load(const typename View::SlotType* from) {
    auto* words = reinterpret_cast<Words*>(slots);
    const auto* source = reinterpret_cast<const Words*>(from);
    constexpr int kLoads = sizeof(slots) / sizeof(Words);
#pragma unroll
    for (int w = 0; w < kLoads; ++w) {
      if constexpr (kReads == Reads::kContended)
        words[w] = load_contended(source + w);
      else if constexpr (kReads == Reads::kOnce)
        words[w] = load_once(source + w);
      else
        words[w] = load_unchanging(source + w);
    }
  }
};

template <class Key>
__device__ __forceinline__ Key shuffle(const Key& key, int lane) {
  if constexpr (sizeof(Key) == 16)
    return {__shfl_sync(kAllLanes, key.low, lane), __shfl_sync(kAllLanes, key.high, lane)};
  else
    return __shfl_sync(kAllLanes, key, lane);
}

/// Any object of another lane, word by word.
template <class T>
__device__ __forceinline__ T shuffle_words(const T& value, int lane) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  unsigned words[kWords] = {};
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = __shfl_sync(kAllLanes, words[w], lane);
  T out;
  memcpy(&out, words, sizeof(T));
  return out;
}

/// Looks into the bucket of every lane in `active` (the same in all lanes). on_hit(slot, lane) runs in a lane that
/// loaded the key of `lane`.
///
/// kErased: erased slots are looked for, too. kDense: all 32 lanes are active.
template <class View, Reads kReads, bool kErased, bool kDense, class OnHit>
__device__ __forceinline__ Seen look(const View& view, unsigned active, const typename View::Key& key,
                                     std::uint32_t bucket, std::uint8_t* owners, OnHit on_hit) {
  using Key = typename View::Key;
  using L = Lanes<View>;
  constexpr int kSteps = kDense ? L::kPerBucket : 1;  // whose loads are in flight together
  const int lane = threadIdx.x % 32;
  const int group = lane / L::kPerBucket;
  const int part = lane % L::kPerBucket;
  const bool mine = active >> lane & 1;
  const int rank = kDense ? lane : __popc(active & ((1u << lane) - 1));
  const int count = kDense ? 32 : __popc(active);
  if constexpr (!kDense) {
    __syncwarp();
    if (mine) owners[rank] = static_cast<std::uint8_t>(lane);
    __syncwarp();
  }

  Seen seen{0, 0, 0};
  for (int base = 0; base < count; base += L::kKeysPerStep * kSteps) {
    LaneSlots<View, kReads> loaded[kSteps];
    int source[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int index = base + step * L::kKeysPerStep + group;
      const bool on = kDense || index < count;
      source[step] = kDense ? index : on ? owners[index] : 0;
      const std::uint64_t at = __shfl_sync(kAllLanes, bucket, source[step]);
      if (on) loaded[step].load(view.slots + at * View::kSlots + part * L::kSlots);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Key wanted = shuffle(key, source[step]);
      const bool on = kDense || base + step * static_cast<int>(L::kKeysPerStep) + group < count;
      const int offset = rank - (base + step * static_cast<int>(L::kKeysPerStep));
      const bool told = mine && offset >= 0 && offset < static_cast<int>(L::kKeysPerStep);
#pragma unroll
      for (int s = 0; s < static_cast<int>(L::kSlots); ++s) {
        const auto& slot = loaded[step].slots[s];
        const bool hit = on && slot.key == wanted;
        const unsigned hits = __ballot_sync(kAllLanes, hit);
        const unsigned empties = __ballot_sync(kAllLanes, on && slot.key == empty_key<Key>());
        const unsigned erasures = !kErased ? 0 : __ballot_sync(kAllLanes, on && slot.key == erased_key<Key>());
        if (hit) on_hit(slot, source[step]);
        if (told) {
          const int shift = offset * L::kPerBucket;
          const unsigned mask = (1u << L::kPerBucket) - 1;
          seen.hit |= (hits >> shift & mask) << (s * L::kPerBucket);
          seen.empty |= (empties >> shift & mask) << (s * L::kPerBucket);
          seen.erased |= (erasures >> shift & mask) << (s * L::kPerBucket);
        }
      }
    }
  }
  return seen;
}

/// kConstant: no one sets filter bits while the kernel runs.
template <bool kConstant = false>
__device__ __forceinline__ bool filter_has(const std::uint8_t* filters, std::uint32_t bucket, std::uint8_t bit) {
  const std::uint8_t filter =
      kConstant ? __ldg(filters + bucket) : *static_cast<const volatile std::uint8_t*>(filters + bucket);
  return (filter & bit) != 0;
}

/// Sets the bit, without waiting for the memory.
__device__ __forceinline__ void add_filter_bit(std::uint8_t* filters, std::uint32_t bucket, std::uint8_t bit) {
  atomicOr(reinterpret_cast<unsigned*>(filters + (bucket & ~3u)), static_cast<unsigned>(bit) << (8 * (bucket & 3)));
}

/// Sets the bit; true if it was not set before.
__device__ __forceinline__ bool set_filter(std::uint8_t* filters, std::uint32_t bucket, std::uint8_t bit) {
  if (filter_has(filters, bucket, bit)) return false;
  auto* word = reinterpret_cast<unsigned*>(filters + (bucket & ~3u));
  const unsigned mask = static_cast<unsigned>(bit) << (8 * (bucket & 3));
  return (atomicOr(word, mask) & mask) == 0;
}

/// Adds each thread's counts to three counters with one atomic each per block. All threads of the block call it. One
/// atomic per warp instead cost insertion a third of its speed.
__device__ __forceinline__ void add_to_control(Workspace& work, std::uint64_t* const (&counters)[3],
                                               const int (&mine)[3]) {
  if (threadIdx.x < 3) work.sums[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    if (counters[c] == nullptr) continue;
    const int sum = __reduce_add_sync(kAllLanes, mine[c]);
    if (threadIdx.x % 32 == 0 && sum != 0)
      atomicAdd(&work.sums[c], static_cast<unsigned long long>(static_cast<long long>(sum)));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int c = 0; c < 3; ++c)
    if (counters[c] != nullptr && work.sums[c] != 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(counters[c]), work.sums[c]);
}

/// A ticket for each lane that wants one, by one atomic per warp. The whole warp calls it.
__device__ __forceinline__ std::uint64_t take_ticket(std::uint64_t* counter, bool wanted) {
  const unsigned takers = __ballot_sync(kAllLanes, wanted);
  if (takers == 0) return 0;
  const int lane = threadIdx.x % 32;
  unsigned long long first = 0;
  if (lane == __ffs(takers) - 1)
    first = atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(__popc(takers)));
  first = __shfl_sync(kAllLanes, first, __ffs(takers) - 1);
  return first + __popc(takers & ((1u << lane) - 1));
}

}  // namespace gpuhash::cuda
