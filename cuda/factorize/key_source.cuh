#pragma once

#include <cstdint>

#include <gpuhash/factorization.hpp>
#include "cuda/batch.cuh"
#include "shared/key_numbers.hpp"

/// The keys of a batch, as `unique`, `factorize` and `isin` compare them.
namespace gpuhash::cuda {

/// Threads of a block in kernels with one thread per key.
inline constexpr unsigned kBatchBlock = 256;

/// Reads keys in their canonical form; they are read once, and shall not push tables out of the cache.
template <class Key>
struct KeySource {
  const void* data;
  std::uint32_t bytes;
  NumberFormat format;

  /// Have keys the width and the alignment of a Key?
  __device__ __forceinline__ bool is_whole() const {
    return bytes == sizeof(Key) && reinterpret_cast<std::uintptr_t>(data) % sizeof(Key) == 0;
  }
  __device__ __forceinline__ Key raw(std::int64_t i) const { return load_item<Key>(data, i, bytes, is_whole()); }
  __device__ __forceinline__ Key operator[](std::int64_t i) const { return canonical(raw(i), format); }
};

template <class Key>
KeySource<Key> source_of(const NumberKeys& keys) {
  return {keys.data, keys.bytes(), number_format(keys.dtype, keys.elements)};
}

}  // namespace gpuhash::cuda
