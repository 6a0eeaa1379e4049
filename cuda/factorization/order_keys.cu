#include "cuda/factorization/order_keys.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "cuda/check.hpp"
#include "cuda/launch.cuh"

namespace gpuhash::cuda {
namespace {

constexpr unsigned kOrderBlock = 256;

template <class Id>
__global__ void __launch_bounds__(kOrderBlock) number_kernel(Id* ids, std::int64_t count) {
  const std::int64_t j = std::int64_t{blockIdx.x} * kOrderBlock + threadIdx.x;
  if (j < count) ids[j] = static_cast<Id>(j);
}

/// out[j] = words[ids[j]].
template <class Id>
__global__ void __launch_bounds__(kOrderBlock)
    gather_words_kernel(const std::uint64_t* words, const Id* ids, std::int64_t count, std::uint64_t* out) {
  const std::int64_t j = std::int64_t{blockIdx.x} * kOrderBlock + threadIdx.x;
  if (j < count) out[j] = words[ids[j]];
}

/// places[ids[j]] = j.
template <class Id>
__global__ void __launch_bounds__(kOrderBlock) invert_kernel(const Id* ids, std::int64_t count, std::int64_t* places) {
  const std::int64_t j = std::int64_t{blockIdx.x} * kOrderBlock + threadIdx.x;
  if (j < count) places[ids[j]] = j;
}

/// Sorts by `bits` low bits, stable; moves words and ids to their second buffers and back as the sort likes.
template <class Id>
void sort_pairs(DeviceContext& context, cub::DoubleBuffer<std::uint64_t>& words, cub::DoubleBuffer<Id>& ids,
                std::int64_t count, std::uint32_t bits, Stream stream) {
  std::size_t bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, words, ids, count, 0, static_cast<int>(bits), handle(stream)),
        "planning a sort of keys");
  const Allocation workspace(context, std::max<std::size_t>(bytes, 1), stream);
  launch_may_fail("sorting keys");
  check(cub::DeviceRadixSort::SortPairs(workspace.get(), bytes, words, ids, count, 0, static_cast<int>(bits),
                                        handle(stream)),
        "sorting keys");
}

template <class Id>
void order_keys_as(DeviceContext& context, std::uint64_t* low, std::uint64_t* high, std::uint32_t bits,
                   std::int64_t count, std::int64_t* places, Stream stream) {
  const Allocation spare = scratch<std::uint64_t>(context, count, stream);
  const Allocation numbers = scratch<Id>(context, 2 * count, stream);
  cub::DoubleBuffer<Id> ids(numbers.as<Id>(), numbers.as<Id>() + count);
  launch("numbering keys", number_kernel<Id>, count, kOrderBlock, stream, ids.Current(), count);

  cub::DoubleBuffer<std::uint64_t> words(low, spare.as<std::uint64_t>());
  sort_pairs(context, words, ids, count, std::min(bits, 64u), stream);
  if (bits > 64) {
    // Least significant word first: the second sort keeps the order of the first among equals.
    std::uint64_t* const gathered = words.Current();
    launch("gathering keys", gather_words_kernel<Id>, count, kOrderBlock, stream, high, ids.Current(), count, gathered);
    cub::DoubleBuffer<std::uint64_t> high_words(gathered, high);
    sort_pairs(context, high_words, ids, count, bits - 64, stream);
  }
  launch("ordering keys", invert_kernel<Id>, count, kOrderBlock, stream, ids.Current(), count, places);
}

}  // namespace

void order_keys(DeviceContext& context, std::uint64_t* low, std::uint64_t* high, std::uint32_t bits, std::int64_t count,
                std::int64_t* places, Stream stream) {
  if (count == 0) return;
  if (count <= std::numeric_limits<std::uint32_t>::max())
    order_keys_as<std::uint32_t>(context, low, high, bits, count, places, stream);
  else
    order_keys_as<std::uint64_t>(context, low, high, bits, count, places, stream);
}

}  // namespace gpuhash::cuda
