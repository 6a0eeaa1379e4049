// What the GPU's memory allows to anything that looks up random places: the figures that tables are compared with.
// Built by limits.py with nvcc into a shared library; not part of gpuhash.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <vector>

#include "device.cuh"

namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kTimedRuns = 7;
constexpr int kTrialRuns = 3;

using device::check;
using device::DeviceArray;

/// Median seconds of `runs` runs after one that is not timed; prepare() runs before each, outside the time.
template <class Prepare, class Run>
double median(device::Stopwatch& watch, int runs, Prepare prepare, Run run) {
  std::vector<double> seconds;
  for (int r = 0; r <= runs; ++r) {
    prepare();
    const double taken = watch.seconds(nullptr, run);
    if (r > 0) seconds.push_back(taken);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// The finisher of splitmix64 (https://prng.di.unimi.it/splitmix64.c): a bijection.
__device__ std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__global__ void fill_random(std::uint64_t* words, std::int64_t n, std::uint64_t seed) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride)
    words[i] = mix(static_cast<std::uint64_t>(i) + seed);
}

/// kAllocate: L1 gives it a place.
template <bool kAllocate>
__device__ uint4 load(const uint4* from) {
  uint4 v;
  if constexpr (kAllocate)
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
  else
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
  return v;
}

/// Reads a key, all kBytes at the place it names, and writes 8 bytes: the least that a lookup does.
/// kLanes lanes share the load of one key; a warp has 32 * kRounds keys in flight.
template <bool kAllocate, int kBytes, int kLanes, int kRounds>
__global__ void random_load(const std::uint64_t* __restrict__ keys, const uint4* __restrict__ lines,
                            std::uint64_t line_count, std::uint64_t* __restrict__ out, std::int64_t n) {
  constexpr int kUnits = kBytes / 16;
  constexpr int kLoads = kUnits / kLanes;    // of 16 bytes, per lane and key
  constexpr int kKeysPerStep = 32 / kLanes;  // of a warp
  const int lane = threadIdx.x % 32;
  const std::int64_t warp = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  const std::int64_t first = warp * 32 * kRounds + lane;
  std::uint64_t place[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t i = first + round * 32;
    place[round] = __umul64hi(i < n ? __ldcs(keys + i) : 0, line_count);
  }
  uint4 part[kRounds][kLanes][kLoads];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int step = 0; step < kLanes; ++step) {
      const std::uint64_t line = __shfl_sync(kAllLanes, place[round], step * kKeysPerStep + lane / kLanes);
#pragma unroll
      for (int unit = 0; unit < kLoads; ++unit)
        part[round][step][unit] = load<kAllocate>(lines + line * kUnits + lane % kLanes * kLoads + unit);
    }
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    std::uint64_t mine = 0;
#pragma unroll
    for (int step = 0; step < kLanes; ++step) {
      std::uint64_t word = 0;
#pragma unroll
      for (int unit = 0; unit < kLoads; ++unit) {
        const uint4 v = part[round][step][unit];
        word ^= (std::uint64_t{v.x ^ v.z} << 32) | (v.y ^ v.w);
      }
#pragma unroll
      for (int other = kLanes / 2; other > 0; other /= 2) word ^= __shfl_xor_sync(kAllLanes, word, other);
      word = __shfl_sync(kAllLanes, word, lane % kKeysPerStep * kLanes);
      if (lane / kKeysPerStep == step) mine = word;
    }
    const std::int64_t i = first + round * 32;
    if (i < n) __stcs(out + i, mine);
  }
}

/// Reads a key and compare-and-swaps it into the 16-byte slot that it names: the least that an insertion does.
template <int kRounds>
__global__ void random_cas(const std::uint64_t* __restrict__ keys, unsigned long long* slots, std::uint64_t slot_count,
                           std::uint64_t* out, std::int64_t n) {
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x * kRounds + threadIdx.x;
  std::uint64_t key[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t i = first + std::int64_t{round} * blockDim.x;
    key[round] = i < n ? __ldcs(keys + i) : 0;
  }
  std::int64_t taken = 0;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (first + std::int64_t{round} * blockDim.x < n)
      taken += atomicCAS(slots + 2 * __umul64hi(key[round], slot_count), 0ull, key[round]) == 0;
  }
  // Never true; without it the compiler could drop what the compare-and-swap returns, which a table cannot.
  if (taken > kRounds) *out = static_cast<std::uint64_t>(taken);
}

struct Problem {
  DeviceArray<std::uint64_t> keys, out;  // [n]
  DeviceArray<uint4> array;              // [bytes / 16]
  std::int64_t n;
  std::uint64_t bytes;
  device::Stopwatch watch;

  Problem(std::uint64_t array_bytes, std::int64_t key_count)
      : keys(key_count), out(key_count), array(array_bytes / 16), n(key_count), bytes(array_bytes) {
    fill_random<<<4096, 256>>>(keys.get(), n, 1);
    fill_array();
    check(cudaDeviceSynchronize(), "filling arrays");
  }
  void fill_array() {
    fill_random<<<4096, 256>>>(reinterpret_cast<std::uint64_t*>(array.get()), static_cast<std::int64_t>(bytes / 8), 77);
  }
  unsigned blocks(std::int64_t keys_per_block) const {
    return static_cast<unsigned>((n + keys_per_block - 1) / keys_per_block);
  }
};

constexpr int kBlockSizes[] = {128, 256, 512};
const auto kNothing = [] {};

/// Seconds of the best block size; tries few times, then measures the best one properly.
template <class Prepare, class Launch>
double best_of_blocks(Problem& problem, Prepare prepare, Launch launch, double best_so_far) {
  double best = std::numeric_limits<double>::infinity();
  int best_block = kBlockSizes[0];
  for (const int block : kBlockSizes) {
    const double seconds = median(problem.watch, kTrialRuns, prepare, [&] { launch(block); });
    if (seconds < best) {
      best = seconds;
      best_block = block;
    }
  }
  if (best > best_so_far * 1.02) return best_so_far;
  return std::min(best_so_far, median(problem.watch, kTimedRuns, prepare, [&] { launch(best_block); }));
}

template <bool kAllocate, int kBytes, int kLanes, int kRounds>
void try_load(Problem& problem, double& best) {
  best = best_of_blocks(
      problem, kNothing,
      [&](int block) {
        random_load<kAllocate, kBytes, kLanes, kRounds><<<problem.blocks(std::int64_t{block} * kRounds), block>>>(
            problem.keys.get(), problem.array.get(), problem.bytes / kBytes, problem.out.get(), problem.n);
      },
      best);
}

template <int kRounds>
void try_cas(Problem& problem, double& best) {
  best = best_of_blocks(
      problem, [&] { check(cudaMemsetAsync(problem.array.get(), 0, problem.bytes), "cudaMemsetAsync"); },
      [&](int block) {
        random_cas<kRounds><<<problem.blocks(std::int64_t{block} * kRounds), block>>>(
            problem.keys.get(), reinterpret_cast<unsigned long long*>(problem.array.get()), problem.bytes / 16,
            problem.out.get(), problem.n);
      },
      best);
}

template <bool kAllocate, int kBytes>
void try_loads(Problem& problem, double& best) {
  try_load<kAllocate, kBytes, 1, 1>(problem, best);
  try_load<kAllocate, kBytes, 1, 2>(problem, best);
  try_load<kAllocate, kBytes, 2, 1>(problem, best);
  try_load<kAllocate, kBytes, 2, 2>(problem, best);
  try_load<kAllocate, kBytes, 4, 1>(problem, best);
  try_load<kAllocate, kBytes, 4, 2>(problem, best);
  try_load<kAllocate, kBytes, 4, 4>(problem, best);
}

/// Loads of kBytes per second, in the best way.
template <int kBytes>
double load_rate(Problem& problem) {
  double seconds = std::numeric_limits<double>::infinity();
  try_loads<false, kBytes>(problem, seconds);
  try_loads<true, kBytes>(problem, seconds);
  return static_cast<double>(problem.n) / seconds;
}

}  // namespace

/// Rates of this GPU: loads_per_second of random aligned 64 bytes, wide_loads_per_second of 128 bytes and
/// cas_per_second of random 64-bit compare-and-swaps, all over an array of array_bytes, and copy_bytes_per_second, read
/// and written bytes together. Returns 0, or 1 with the cause in message [message_bytes].
extern "C" int measure_limits(std::uint64_t array_bytes, std::int64_t key_count, double* loads_per_second,
                              double* wide_loads_per_second, double* cas_per_second, double* copy_bytes_per_second,
                              char* message, std::size_t message_bytes) {
  try {
    Problem problem(array_bytes, key_count);

    const std::size_t half = array_bytes / 2;
    const double copy = median(problem.watch, kTimedRuns, kNothing, [&] {
      check(cudaMemcpyAsync(problem.array.get(), problem.array.get() + half / 16, half, cudaMemcpyDeviceToDevice),
            "cudaMemcpyAsync");
    });
    *copy_bytes_per_second = 2.0 * static_cast<double>(half) / copy;

    problem.fill_array();
    *loads_per_second = load_rate<64>(problem);
    *wide_loads_per_second = load_rate<128>(problem);

    double cas = std::numeric_limits<double>::infinity();
    try_cas<1>(problem, cas);
    try_cas<2>(problem, cas);
    try_cas<4>(problem, cas);
    try_cas<8>(problem, cas);
    *cas_per_second = static_cast<double>(key_count) / cas;
    check(cudaDeviceSynchronize(), "measuring limits");
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, message_bytes, "%s", error.what());
    return 1;
  }
}
