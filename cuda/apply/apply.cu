#include "shared/arithmetic.hpp"

#include <cuda_runtime.h>

#include <cstring>

#include "cuda/apply/cell.cuh"
#include "cuda/apply/cells.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"

/// The second half of insert_or_apply: the keys are in the table, and each value is combined with its key's cell.
namespace gpuhash::cuda {
namespace {

constexpr unsigned kApplyBlock = 256;
constexpr unsigned kRounds = 16;        // per warp: values of a hot key met within them are combined before they go out
constexpr unsigned kCacheEntries = 32;  // per warp

/// One element per cell. Each warp keeps a few partial results in a small cache, so that keys that come again and again
/// cost few atomics: 10^8 draws over 10 keys would otherwise wait in line for ten words.
template <class T>
__global__ void __launch_bounds__(kApplyBlock)
    apply_scalars_kernel(Cells cells, const T* values, bool broadcast, std::int64_t count, Action op) {
  struct Entry {
    std::int64_t index;
    T value;
  };
  if (cells.left != nullptr && *cells.left != 0) return;
  __shared__ Entry caches[kApplyBlock / 32][kCacheEntries];
  Entry* const cache = caches[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  cache[lane].index = -1;
  __syncwarp();
  const auto cell = [&](std::int64_t index) { return reinterpret_cast<T*>(cells.base + index * cells.stride); };

  const std::int64_t warp = std::int64_t{blockIdx.x} * (kApplyBlock / 32) + threadIdx.x / 32;
  for (unsigned round = 0; round < kRounds; ++round) {
    const std::int64_t i = (warp * kRounds + round) * 32 + lane;
    const std::int64_t index = i < count ? cells.index[i] : -1;
    T value = index >= 0 ? values[broadcast ? 0 : i] : T{};
    const bool leads = combine_peers(index, value, [op](const T& a, const T& b) { return combine(op, a, b); });

    // Of the leaders with one cache entry, the lowest uses it; an entry of another index goes out first.
    const unsigned slot = static_cast<unsigned>((static_cast<std::uint64_t>(index) * detail::kHashWhiten) >> 59);
    const unsigned rivals = __match_any_sync(kAllLanes, leads ? slot : kCacheEntries + lane);
    if (leads) {
      if (__ffs(rivals) - 1 == lane) {
        Entry& entry = cache[slot];
        if (entry.index == index) {
          entry.value = combine(op, entry.value, value);
        } else {
          if (entry.index >= 0) update(cell(entry.index), op, entry.value);
          entry = {index, value};
        }
      } else {
        update(cell(index), op, value);
      }
    }
    __syncwarp();
  }
  if (cache[lane].index >= 0) update(cell(cache[lane].index), op, cache[lane].value);
}

/// Several elements per cell: neighbouring threads take neighbouring elements of one value.
template <class T>
__global__ void __launch_bounds__(kApplyBlock)
    apply_rows_kernel(Cells cells, const T* values, bool broadcast, std::int64_t count, Action op, int lanes) {
  if (cells.left != nullptr && *cells.left != 0) return;
  const std::int64_t t = std::int64_t{blockIdx.x} * kApplyBlock + threadIdx.x;
  const std::int64_t i = t / lanes;
  if (i >= count) return;
  const std::int64_t index = cells.index[i];
  if (index < 0) return;
  T* const cell = reinterpret_cast<T*>(cells.base + index * cells.stride);
  const T* const from = broadcast ? values : values + i * cells.elements;
  for (std::int64_t e = t % lanes; e < cells.elements; e += lanes) update(cell + e, op, from[e]);
}

}  // namespace

void apply_to_cells(const Cells& cells, const ValueBatch& values, std::int64_t count, Action op, DType dtype,
                    Stream stream) {
  if (count == 0) return;
  dispatch_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    const T* const from = static_cast<const T*>(values.data);
    if (cells.elements == 1) {
      const std::int64_t warps = (count + 32 * kRounds - 1) / (32 * kRounds);
      launch("applying values", apply_scalars_kernel<T>, warps * 32, kApplyBlock, stream, cells, from, values.broadcast,
             count, op);
    } else {
      int lanes = 1;
      while (lanes < 32 && lanes < cells.elements) lanes *= 2;
      launch("applying values", apply_rows_kernel<T>, count * lanes, kApplyBlock, stream, cells, from, values.broadcast,
             count, op, lanes);
    }
  });
}

Uint128 identity_bits(Action op, DType dtype) {
  Uint128 bits{0, 0};
  dispatch_dtype(dtype, [&](auto element) {
    element = identity<decltype(element)>(op);
    std::memcpy(&bits, &element, sizeof element);
  });
  return bits;
}

}  // namespace gpuhash::cuda
