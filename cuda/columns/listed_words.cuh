#pragma once

#include <cstdint>

#include "cuda/columns/packed_rows.cuh"
#include "shared/first_occurrence.hpp"

/// Numbers of words of which there are few, by lists of all of them. `first_rows` [words] says where a word occurs
/// first, kNoRow: nowhere.
namespace gpuhash::cuda {

using Counter = unsigned long long;

inline constexpr Counter kNoRow = ~Counter{0};
/// Words of which each block has a list of its own, in shared memory.
inline constexpr std::int64_t kWordsOfBlock = 1 << 12;

/// One row of each lane of a warp, some of them first ones as far as is known: of equal words the least row counts,
/// which the lowest lane has.
__device__ __forceinline__ void lower_first_rows(bool is_first, std::uint32_t word, std::int64_t row,
                                                 Counter* first_rows) {
  const unsigned lanes = __ballot_sync(~0u, is_first);
  if (!is_first) return;
  const unsigned equal = __match_any_sync(lanes, word);
  if ((equal & ((1u << threadIdx.x % 32) - 1)) != 0) return;
  const auto here = static_cast<Counter>(row);
  if (here < *const_cast<const volatile Counter*>(first_rows + word)) atomicMin(first_rows + word, here);
}

/// Of rows [begin, end). What a thread reads of `first_rows` may be old, and then it is too large. kOfBlock: of up to
/// kWordsOfBlock words, since rows of one word that many blocks look up in memory would wait for each other.
template <bool kOfBlock>
__global__ void __launch_bounds__(kColumnBlock)
    find_first_rows_kernel(const std::uint32_t* words, std::int64_t begin, std::int64_t end, std::uint32_t outside,
                           Counter* first_rows) {
  extern __shared__ Counter of_block[];
  Counter* const known = kOfBlock ? of_block : first_rows;
  if constexpr (kOfBlock) {
    for (std::uint32_t word = threadIdx.x; word < outside; word += kColumnBlock) of_block[word] = kNoRow;
    __syncthreads();
  }
  const std::int64_t stride = std::int64_t{gridDim.x} * (kRows * kColumnBlock);
  // By warps: all lanes have to be there for each other.
  for (std::int64_t first = begin + first_row_of_thread(); first - threadIdx.x % 32 < end; first += stride) {
    std::int64_t rows[kRows];
    std::uint32_t read[kRows];
    Counter before[kRows];
    rows_from(first, end, rows);
#pragma unroll
    for (int r = 0; r < kRows; ++r) read[r] = rows[r] < 0 ? outside : __ldcs(words + rows[r]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) before[r] = read[r] == outside ? 0 : known[read[r]];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      lower_first_rows(static_cast<Counter>(rows[r]) < before[r], read[r], rows[r], known);
  }
  if constexpr (kOfBlock) {
    __syncthreads();
    for (std::uint32_t word = threadIdx.x; word < outside; word += kColumnBlock)
      if (of_block[word] < __ldcg(first_rows + word)) atomicMin(first_rows + word, of_block[word]);
  }
}

/// Sets the bit of each word's first row, or of each word that occurs.
static __global__ void __launch_bounds__(kColumnBlock)
    mark_listed_kernel(const Counter* first_rows, std::int64_t words, bool sorted, std::uint32_t* bits) {
  const std::int64_t word = row_of_thread();
  if (word >= words || first_rows[word] == kNoRow) return;
  const auto position = sorted ? static_cast<Counter>(word) : first_rows[word];
  atomicOr(bits + position / 32, 1u << (position % 32));
}

/// The ranks of these bits are the words' numbers, which are put in place of the first rows: -1 where there is none.
static __global__ void __launch_bounds__(kColumnBlock)
    rank_listed_kernel(Counter* first_rows, std::int64_t words, bool sorted, const Rank<std::uint64_t>* ranks,
                       std::int64_t* firsts) {
  const std::int64_t word = row_of_thread();
  if (word >= words || first_rows[word] == kNoRow) return;
  const auto row = static_cast<std::int64_t>(first_rows[word]);
  const std::int64_t position = sorted ? word : row;
  std::int64_t number = 0;
  (void)rank_of(ranks[position / 32], position, number);
  firsts[number] = row;
  first_rows[word] = static_cast<Counter>(number);
}

/// codes[i] = numbers[words[i]], -1 for `outside`.
static __global__ void __launch_bounds__(kColumnBlock)
    number_rows_kernel(const std::uint32_t* words, std::int64_t count, std::uint32_t outside,
                       const std::int64_t* numbers, std::int64_t* codes) {
  std::int64_t rows[kRows];
  std::uint32_t read[kRows];
  rows_from(first_row_of_thread(), count, rows);
#pragma unroll
  for (int r = 0; r < kRows; ++r) read[r] = rows[r] < 0 ? outside : __ldcs(words + rows[r]);
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (rows[r] >= 0) codes[rows[r]] = read[r] == outside ? -1 : __ldg(numbers + read[r]);
}

}  // namespace gpuhash::cuda
