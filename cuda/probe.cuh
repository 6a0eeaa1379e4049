#pragma once

#include <cstdint>

#include "atomics.cuh"
#include "layout.hpp"

/// Probing by warps: probe together, act alone, wait for nobody.
///
/// A warp works off a chunk of the batch, 32 keys at a time, one per lane. To look into buckets, four lanes load one
/// bucket, 16 bytes each, so that a warp looks into eight buckets with one load instruction, and into the buckets of
/// all 32 lanes with four loads that are in flight together. Ballots then tell each lane what its own key's bucket
/// holds, and all 32 lanes swap, read filters or erase in one instruction. Keys that have to go on to another bucket
/// wait in a queue until there are 32 of them, so that lanes neither idle nor load for the sake of others.
///
/// Other ways were slower (docs/performance.md has the figures): one group of lanes per key throughout; one key per
/// lane until the longest walk of the 32 ends; and a new key for each lane that is done, which spoils the order of keys
/// and results in memory.
#ifndef PREFETCH
#define PREFETCH 0
#endif
#ifndef CHUNK
#define CHUNK 1024
#endif
#ifndef FIND_BLOCKS
#define FIND_BLOCKS 12
#endif
#ifndef INSERT_BLOCKS
#define INSERT_BLOCKS 1
#endif
namespace gpuhash::cuda {

inline constexpr unsigned kAllLanes = ~0u;
inline constexpr unsigned kBlock = 128;  // threads per block of the probing kernels
inline constexpr unsigned kWarps = kBlock / 32;

/// Scratch of a block in shared memory.
struct Workspace {
  unsigned long long sums[3];  // of add_to_control
};

/// What one lane's bucket held, each a bit set; bit p stands for slot slot_of_bit<View>(p).
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

/// The slots that one lane loads.
template <class View, bool kConstant>
struct LaneSlots {
  typename View::SlotType slots[Lanes<View>::kSlots];

  __device__ __forceinline__ void load(const typename View::SlotType* from) {
    auto* words = reinterpret_cast<Words*>(slots);
    const auto* source = reinterpret_cast<const Words*>(from);
    constexpr int kLoads = sizeof(slots) / sizeof(Words);
#pragma unroll
    for (int w = 0; w < kLoads; ++w) words[w] = kConstant ? load_unchanging(source + w) : load_contended(source + w);
  }
};

template <class Key>
__device__ __forceinline__ Key shuffle(const Key& key, int lane) {
  if constexpr (sizeof(Key) == 16)
    return {__shfl_sync(kAllLanes, key.low, lane), __shfl_sync(kAllLanes, key.high, lane)};
  else
    return __shfl_sync(kAllLanes, key, lane);
}

/// Keys that a warp works off, at most: enough that the last ones in the queue, with fewer than 32 lanes, do not count.
inline constexpr std::uint32_t kMaxChunk = CHUNK;

/// A warp's part of the batch.
struct Chunk {
  std::int64_t first;
  std::uint32_t count;

  /// Part number `warp of the grid` of `items`, in parts of `length`.
  __device__ __forceinline__ static Chunk of_warp(std::int64_t items, std::uint32_t length) {
    const std::int64_t first = (std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * length;
    const std::int64_t left = items - first;
    return {first, left <= 0 ? 0 : static_cast<std::uint32_t>(left < length ? left : length)};
  }
};

/// Nothing goes with a key.
struct NoLoad {};

/// Keys on their way to another bucket.
template <class Key, class Load>
struct Queue {
  static constexpr std::uint32_t kCapacity = 64;  // up to 31 wait, and 32 may join them
  struct Entry {
    Key key;
    std::uint32_t position;  // in the chunk
    std::uint32_t bucket;    // to look into
    std::uint32_t hop;
  };
  Entry entries[kCapacity];
  [[no_unique_address]] Load loads[kCapacity];
};

/// Looks into the bucket of every lane in `active` (the same in all lanes). on_hit(slot, lane) runs in a lane that
/// loaded the key of `lane`.
template <class View, bool kConstant, class OnHit>
__device__ __forceinline__ Seen look(const View& view, unsigned active, const typename View::Key& key,
                                     std::uint32_t bucket, OnHit on_hit) {
  using Key = typename View::Key;
  using L = Lanes<View>;
  constexpr int kSteps = L::kPerBucket;
  const int lane = threadIdx.x % 32;
  const int group = lane / L::kPerBucket;
  const int part = lane % L::kPerBucket;

  LaneSlots<View, kConstant> loaded[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int source = step * static_cast<int>(L::kKeysPerStep) + group;
    const std::uint64_t at = __shfl_sync(kAllLanes, bucket, source);
    if (active >> source & 1) loaded[step].load(view.slots + at * View::kSlots + part * L::kSlots);
  }
  Seen seen{0, 0, 0};
  const int shift = lane % static_cast<int>(L::kKeysPerStep) * static_cast<int>(L::kPerBucket);
  constexpr unsigned kMask = (1u << L::kPerBucket) - 1;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int source = step * static_cast<int>(L::kKeysPerStep) + group;
    const Key wanted = shuffle(key, source);
    const bool on = active >> source & 1;
    const bool told = lane / static_cast<int>(L::kKeysPerStep) == step;
#pragma unroll
    for (int s = 0; s < static_cast<int>(L::kSlots); ++s) {
      const auto& slot = loaded[step].slots[s];
      const bool hit = on && slot.key == wanted;
      const unsigned hits = __ballot_sync(kAllLanes, hit);
      const unsigned empties = __ballot_sync(kAllLanes, on && slot.key == empty_key<Key>());
      const unsigned erasures = kConstant ? 0 : __ballot_sync(kAllLanes, on && slot.key == erased_key<Key>());
      if (hit) on_hit(slot, source);
      if (told) {
        seen.hit |= (hits >> shift & kMask) << (s * L::kPerBucket);
        seen.empty |= (empties >> shift & kMask) << (s * L::kPerBucket);
        seen.erased |= (erasures >> shift & kMask) << (s * L::kPerBucket);
      }
    }
  }
  return seen;
}

/// Walks the keys of a warp's chunk. read(position, key, load) reads a key and what goes with it, and is false where
/// there is none; it runs ahead. step(on, position, probe, load, seen) is called by all lanes after each look, `on` in
/// those that have a key; it is true where the key goes on, to the bucket that it has moved the probe to. on_hit(slot,
/// position) runs before that, in a lane that holds a key's slot.
template <class View, bool kConstant, class Load, class Read, class OnHit, class Step>
__device__ __forceinline__ void walk_chunk(const View& view, std::uint32_t count,
                                           Queue<typename View::Key, Load>& queue, Read read, OnHit on_hit, Step step) {
  using Key = typename View::Key;
  const std::uint32_t lane = threadIdx.x % 32;
  std::uint32_t first = 0;   // of the chunk's keys that nobody has looked for yet
  std::uint32_t queued = 0;  // in the queue
#if PREFETCH
  Key next_key{};
  Load next_load{};
  bool next_on = lane < count && read(lane, next_key, next_load);
#endif
  while (true) {
    Probe<Key> probe;
    Load load;
    std::uint32_t position;
    bool on;
    const bool resume = queued >= 32 || first >= count;
    if (resume) {
      if (queued == 0) break;
      const std::uint32_t taken = min(queued, 32u);
      queued -= taken;
      on = lane < taken;
      const auto& entry = queue.entries[queued + (on ? lane : 0)];
      position = entry.position;
      load = queue.loads[queued + (on ? lane : 0)];
      probe = Probe<Key>(entry.key, view.geometry);
      probe.move_to(entry.bucket, entry.hop);
    } else {
      position = first + lane;
#if PREFETCH
      on = next_on;
      probe = Probe<Key>(next_key, view.geometry);
      load = next_load;
      next_on = position + 32 < count && read(position + 32, next_key, next_load);
#else
      Key key{};
      on = position < count && read(position, key, load);
      probe = Probe<Key>(key, view.geometry);
#endif
      first += 32;
    }
    const Seen seen =
        look<View, kConstant>(view, __ballot_sync(kAllLanes, on), probe.stored(), probe.bucket(),
                              [&](const typename View::SlotType& slot, int source) {
                                on_hit(slot, resume ? queue.entries[queued + source].position : first - 32 + source);
                              });
    const bool goes_on = step(on, position, probe, load, seen);
    const unsigned going = __ballot_sync(kAllLanes, goes_on);
    __syncwarp();
    if (goes_on) {
      // Stray keys never pass a bucket, so the stored pattern is the key.
      const std::uint32_t at = queued + __popc(going & ((1u << lane) - 1));
      queue.entries[at] = {probe.stored(), position, probe.bucket(), probe.hop()};
      queue.loads[at] = load;
    }
    queued += __popc(going);
    __syncwarp();
  }
}

/// kConstant: no one sets filter bits while the kernel runs.
template <bool kConstant = false>
__device__ __forceinline__ bool filter_has(const std::uint8_t* filters, std::uint32_t bucket, std::uint8_t bit) {
  const std::uint8_t filter =
      kConstant ? __ldg(filters + bucket) : *static_cast<const volatile std::uint8_t*>(filters + bucket);
  return (filter & bit) != 0;
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

/// One place in a list for each lane of `active` that wants one, by one atomic per warp.
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
