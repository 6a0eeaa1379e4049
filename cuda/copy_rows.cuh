#pragma once

#include <cstdint>
#include <cstring>

#include <gpuhash/dtype.hpp>
#include "cuda/launch.cuh"
#include "cuda/rows.cuh"
#include "shared/layout.hpp"
#include "table/executor.hpp"

/// Rows of storage by their numbers: out of it, into it, and filled with one element.
namespace gpuhash::cuda {

/// out[i] = storage[rows[i]], or the fallback (null: zeros) where rows[i] < 0.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    gather_rows_kernel(Word* out, const Word* storage, const std::int64_t* rows, const Word* fallback,
                       std::int64_t count, RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = rows[i];
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes) {
    const Word* const from = row >= 0 ? storage + row * shape.words : fallback;
    __stcs(out + i * shape.words + w, from != nullptr ? load_row_word(from + w) : Word{});
  }
}

/// storage[rows[i]] = values[i] for the writers, which are the i with rows[i] >= 0.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    scatter_rows_kernel(Word* storage, const std::int64_t* rows, const Word* values, bool broadcast, std::int64_t count,
                        RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = rows[i];
  if (row < 0) return;
  const Word* from = broadcast ? values : values + i * shape.words;
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes)
    __stcs(storage + row * shape.words + w, load_row_word(from + w));
}

/// storage[rows[i]] = `element` over and over, for rows[i] >= 0.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    fill_rows_kernel(Word* storage, const std::int64_t* rows, Word element, std::int64_t count, RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = rows[i];
  if (row < 0) return;
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes) storage[row * shape.words + w] = element;
}

inline void gather_rows(const RowView& rows, const std::int64_t* numbers, std::int64_t count, void* out,
                        const void* fallback, Stream stream) {
  with_row_words(rows.bytes, {rows.data, out, fallback}, [&](auto word, RowShape shape) {
    using Word = decltype(word);
    launch("gathering rows", gather_rows_kernel<Word>, count * shape.lanes, kRowBlock, stream, static_cast<Word*>(out),
           reinterpret_cast<const Word*>(rows.data), numbers, static_cast<const Word*>(fallback), count, shape);
  });
}

inline void scatter_rows(const RowView& rows, const std::int64_t* numbers, std::int64_t count, const ValueBatch& values,
                         Stream stream) {
  with_row_words(rows.bytes, {rows.data, values.data}, [&](auto word, RowShape shape) {
    using Word = decltype(word);
    launch("scattering rows", scatter_rows_kernel<Word>, count * shape.lanes, kRowBlock, stream,
           reinterpret_cast<Word*>(rows.data), numbers, static_cast<const Word*>(values.data), values.broadcast, count,
           shape);
  });
}

template <class View>
void fill_rows(const View& view, const std::int64_t* rows, std::int64_t count, const Uint128& element,
               const ApplyOrder& batch, Stream stream) {
  const auto fill = [&](auto word) {
    using Word = decltype(word);
    RowShape shape{view.rows.bytes / static_cast<std::int64_t>(sizeof(Word)), 1};
    while (shape.lanes < 32 && shape.lanes < shape.words) shape.lanes *= 2;
    memcpy(&word, &element, sizeof word);
    launch("filling rows", fill_rows_kernel<Word>, count * shape.lanes, kRowBlock, stream,
           reinterpret_cast<Word*>(view.rows.data), rows, word, count, shape);
  };
  switch (itemsize(batch.dtype)) {
    case 1:
      return fill(std::uint8_t{});
    case 2:
      return fill(std::uint16_t{});
    case 4:
      return fill(std::uint32_t{});
    case 8:
      return fill(std::uint64_t{});
    default:
      return fill(Uint128{});
  }
}

}  // namespace gpuhash::cuda
