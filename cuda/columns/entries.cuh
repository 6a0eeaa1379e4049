#pragma once

#include <cstddef>
#include <cstdint>

#include <gpuhash/key_columns.hpp>
#include "cuda/units.cuh"
#include "shared/key_numbers.hpp"

/// How kernels of this room read columns: an argument has up to kColumns of them, and more take several launches.
namespace gpuhash::cuda {

inline constexpr unsigned kColumnBlock = 256;
inline constexpr int kColumns = 16;

/// Bytes, 1, 2, 4 or 8, to whose multiples all of these are aligned.
inline int alignment_of(std::uint64_t bits) {
  int bytes = 1;
  while (bytes < 8 && bits % (2 * static_cast<unsigned>(bytes)) == 0) bytes *= 2;
  return bytes;
}

/// `count` in [1, 8] bytes as the low ones of a word, by loads of `alignment` bytes.
__device__ __forceinline__ std::uint64_t load_aligned(const std::byte* from, std::int64_t count, int alignment) {
  if (alignment == 8 && count == 8) return __ldg(reinterpret_cast<const unsigned long long*>(from));
  std::uint64_t word = 0;
  for (int at = 0; at < static_cast<int>(count);) {
    const int left = static_cast<int>(count) - at;
    if (alignment >= 4 && left >= 4) {
      word |= std::uint64_t{__ldg(reinterpret_cast<const unsigned*>(from + at))} << (8 * at);
      at += 4;
    } else if (alignment >= 2 && left >= 2) {
      word |= std::uint64_t{__ldg(reinterpret_cast<const unsigned short*>(from + at))} << (8 * at);
      at += 2;
    } else {
      word |= std::uint64_t{__ldg(reinterpret_cast<const unsigned char*>(from + at))} << (8 * at);
      at += 1;
    }
  }
  return word;
}

/// A column as kernels read it.
struct EntryColumn {
  const std::byte* data;
  std::int64_t bytes;  // per entry
  NumberFormat format;
  int alignment;
  bool is_integer;
  const bool* valid;
  const std::int64_t* offsets;

  static EntryColumn of(const KeyColumn& column) {
    return {static_cast<const std::byte*>(column.data),
            column.bytes(),
            number_format(column.dtype, 1),
            column.offsets != nullptr
                ? 1
                : alignment_of(address_bits(column.data) | static_cast<std::uint64_t>(column.bytes())),
            gpuhash::is_integer(column.dtype),
            column.valid,
            column.offsets};
  }

  __device__ __forceinline__ bool is_valid(std::int64_t row) const { return valid == nullptr || valid[row]; }
  __device__ __forceinline__ const std::byte* entry(std::int64_t row) const {
    return data + (offsets == nullptr ? row * bytes : offsets[row]);
  }
  __device__ __forceinline__ std::int64_t length(std::int64_t row) const {
    return offsets == nullptr ? bytes : offsets[row + 1] - offsets[row];
  }
  /// Bytes [begin, begin + count) of an entry.
  __device__ __forceinline__ std::uint64_t load(const std::byte* entry, std::int64_t begin, std::int64_t count) const {
    return load_aligned(entry + begin, count, alignment);
  }
};

template <class Item>
struct Several {
  Item items[kColumns];
  int count;
};

__device__ __forceinline__ std::int64_t row_of_thread() {
  return std::int64_t{blockIdx.x} * kColumnBlock + threadIdx.x;
}

}  // namespace gpuhash::cuda
