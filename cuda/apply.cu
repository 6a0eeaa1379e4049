#include "apply.hpp"

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "atomics.cuh"
#include "cuda_check.hpp"
#include "cuda_executor.hpp"
#include "probe.cuh"

/// The second half of insert_or_apply: the keys are in the table, and each value is combined with its key's cell.
namespace gpuhash::cuda {
namespace {

constexpr unsigned kApplyBlock = 256;
constexpr unsigned kRounds = 16;        // per warp: values of a hot key met within them are combined before they go out
constexpr unsigned kCacheEntries = 32;  // per warp

/// cell = combine(cell, value) by compare-and-swap of the word that holds the cell.
template <class T>
__device__ void swap_in(T* cell, ApplyOp op, T value) {
  if constexpr (sizeof(T) == 16) {
    Words seen = load_contended(cell);
    for (;;) {
      const T next = combine(op, cast_bits<T>(seen), value);
      const Words was = cas128(cell, seen, cast_bits<Words>(next));
      if (was.low == seen.low && was.high == seen.high) return;
      seen = was;
    }
  } else if constexpr (sizeof(T) == 1) {
    // The hardware swaps no single bytes: swap the aligned word around it.
    const auto address = reinterpret_cast<std::uintptr_t>(cell);
    auto* word = reinterpret_cast<unsigned*>(address & ~std::uintptr_t{3});
    const unsigned shift = 8 * (address & 3);
    unsigned seen = *reinterpret_cast<volatile unsigned*>(word);
    for (;;) {
      const auto old = cast_bits<T>(static_cast<std::uint8_t>(seen >> shift));
      const unsigned next = cast_bits<std::uint8_t>(combine(op, old, value));
      const unsigned was = atomicCAS(word, seen, (seen & ~(0xffu << shift)) | next << shift);
      if (was == seen) return;
      seen = was;
    }
  } else {
    using Word = std::conditional_t<sizeof(T) == 8, unsigned long long,
                                    std::conditional_t<sizeof(T) == 4, unsigned, unsigned short>>;
    auto* word = reinterpret_cast<Word*>(cell);
    Word seen = *const_cast<volatile Word*>(word);
    for (;;) {
      const Word next = cast_bits<Word>(combine(op, cast_bits<T>(seen), value));
      if (next == seen) return;  // idempotent operations are mostly done here
      const Word was = atomicCAS(word, seen, next);
      if (was == seen) return;
      seen = was;
    }
  }
}

/// cell = combine(cell, value), by one instruction where the hardware has it.
template <class T>
__device__ __forceinline__ void update(T* cell, ApplyOp op, T value) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    if (op == ApplyOp::kAdd) {
      atomicAdd(cell, value);
      return;
    }
  } else if constexpr (std::is_integral_v<T> && sizeof(T) >= 4) {
    using Unsigned = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;
    using Signed = std::conditional_t<sizeof(T) == 8, long long, int>;
    using Native = std::conditional_t<std::is_signed_v<T>, Signed, Unsigned>;
    auto* bits = reinterpret_cast<Unsigned*>(cell);
    auto* number = reinterpret_cast<Native*>(cell);
    switch (op) {
      case ApplyOp::kAdd:
        atomicAdd(bits, static_cast<Unsigned>(value));
        return;
      case ApplyOp::kMin:
        atomicMin(number, static_cast<Native>(value));
        return;
      case ApplyOp::kMax:
        atomicMax(number, static_cast<Native>(value));
        return;
      case ApplyOp::kBitAnd:
        atomicAnd(bits, static_cast<Unsigned>(value));
        return;
      case ApplyOp::kBitOr:
        atomicOr(bits, static_cast<Unsigned>(value));
        return;
      case ApplyOp::kBitXor:
        atomicXor(bits, static_cast<Unsigned>(value));
        return;
      case ApplyOp::kMultiply:
        break;
    }
  } else if constexpr (std::is_same_v<T, Complex<double>> || std::is_same_v<T, Complex<float>>) {
    if (op == ApplyOp::kAdd) {
      atomicAdd(&cell->real, value.real);
      atomicAdd(&cell->imag, value.imag);
      return;
    }
  }
  swap_in(cell, op, value);
}

template <class T>
__device__ __forceinline__ T shuffle_element(const T& value, int lane) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  unsigned words[kWords] = {};
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int w = 0; w < kWords; ++w) words[w] = __shfl_sync(kAllLanes, words[w], lane);
  T out;
  memcpy(&out, words, sizeof(T));
  return out;
}

/// Combines the values of lanes with equal places into the lowest of them, in a logarithmic number of steps; true in
/// that lane. place < 0: the lane has no value.
template <class T>
__device__ __forceinline__ bool combine_peers(std::int64_t place, ApplyOp op, T& value) {
  const int lane = threadIdx.x % 32;
  unsigned peers = __match_any_sync(kAllLanes, static_cast<unsigned long long>(place));
  const bool leads = place >= 0 && __ffs(peers) - 1 == lane;
  if (place < 0) peers = 0;
  int rank = __popc(peers & ((1u << lane) - 1));  // among the peers
  peers &= ~1u << lane;                           // those above
  while (__any_sync(kAllLanes, peers != 0)) {
    const int next = __ffs(peers);
    const T other = shuffle_element(value, next == 0 ? lane : next - 1);
    if (next != 0) value = combine(op, value, other);
    const bool merged = (rank & 1) != 0;
    peers &= ~__ballot_sync(kAllLanes, merged);
    rank >>= 1;
  }
  return leads;
}

/// One element per cell. Each warp keeps a few partial results in a small cache, so that keys that come again and again
/// cost few atomics: 10^8 draws over 10 keys would otherwise wait in line for ten words.
template <class T>
__global__ void __launch_bounds__(kApplyBlock)
    apply_scalars_kernel(Cells cells, const T* values, bool broadcast, std::int64_t count, ApplyOp op) {
  struct Entry {
    std::int64_t place;
    T value;
  };
  __shared__ Entry caches[kApplyBlock / 32][kCacheEntries];
  Entry* const cache = caches[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  cache[lane].place = -1;
  __syncwarp();
  const auto cell = [&](std::int64_t place) { return reinterpret_cast<T*>(cells.base + place * cells.stride); };

  const std::int64_t warp = std::int64_t{blockIdx.x} * (kApplyBlock / 32) + threadIdx.x / 32;
  for (unsigned round = 0; round < kRounds; ++round) {
    const std::int64_t i = (warp * kRounds + round) * 32 + lane;
    const std::int64_t place = i < count ? cells.index[i] : -1;
    T value = place >= 0 ? values[broadcast ? 0 : i] : T{};
    const bool leads = combine_peers(place, op, value);

    // Of the leaders with one cache entry, the lowest uses it; an entry of another place goes out first.
    const unsigned slot = static_cast<unsigned>((static_cast<std::uint64_t>(place) * detail::kHashWhiten) >> 59);
    const unsigned rivals = __match_any_sync(kAllLanes, leads ? slot : kCacheEntries + lane);
    if (leads) {
      if (__ffs(rivals) - 1 == lane) {
        Entry& entry = cache[slot];
        if (entry.place == place) {
          entry.value = combine(op, entry.value, value);
        } else {
          if (entry.place >= 0) update(cell(entry.place), op, entry.value);
          entry = {place, value};
        }
      } else {
        update(cell(place), op, value);
      }
    }
    __syncwarp();
  }
  if (cache[lane].place >= 0) update(cell(cache[lane].place), op, cache[lane].value);
}

/// Several elements per cell: neighbouring threads take neighbouring elements of one value.
template <class T>
__global__ void __launch_bounds__(kApplyBlock)
    apply_rows_kernel(Cells cells, const T* values, bool broadcast, std::int64_t count, ApplyOp op, int lanes) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kApplyBlock + threadIdx.x;
  const std::int64_t i = t / lanes;
  if (i >= count) return;
  const std::int64_t place = cells.index[i];
  if (place < 0) return;
  T* const cell = reinterpret_cast<T*>(cells.base + place * cells.stride);
  const T* const from = broadcast ? values : values + i * cells.elements;
  for (std::int64_t e = t % lanes; e < cells.elements; e += lanes) update(cell + e, op, from[e]);
}

unsigned blocks_for(std::int64_t threads) { return static_cast<unsigned>((threads + kApplyBlock - 1) / kApplyBlock); }

}  // namespace

void apply_to_cells(const Cells& cells, const ValueBatch& values, std::int64_t count, ApplyOp op, DType dtype,
                    Stream stream) {
  if (count == 0) return;
  const auto queue = static_cast<cudaStream_t>(stream);
  dispatch_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    const T* const from = static_cast<const T*>(values.data);
    if (cells.elements == 1) {
      const std::int64_t warps = (count + 32 * kRounds - 1) / (32 * kRounds);
      apply_scalars_kernel<T>
          <<<blocks_for(warps * 32), kApplyBlock, 0, queue>>>(cells, from, values.broadcast, count, op);
    } else {
      int lanes = 1;
      while (lanes < 32 && lanes < cells.elements) lanes *= 2;
      apply_rows_kernel<T>
          <<<blocks_for(count * lanes), kApplyBlock, 0, queue>>>(cells, from, values.broadcast, count, op, lanes);
    }
  });
  check(cudaGetLastError(), "applying values");
}

Uint128 identity_bits(ApplyOp op, DType dtype) {
  Uint128 bits{0, 0};
  dispatch_dtype(dtype, [&](auto element) {
    element = identity<decltype(element)>(op);
    std::memcpy(&bits, &element, sizeof element);
  });
  return bits;
}

}  // namespace gpuhash::cuda
