#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <gpuhash/key_columns.hpp>
#include "cuda/columns/entries.cuh"
#include "shared/key_numbers.hpp"

/// The words of rows that a packing tells apart. A thread reads several rows, whose loads are on their way at once.
namespace gpuhash::cuda {

/// Rows of a thread, a block's width apart.
inline constexpr int kRows = 4;

__device__ __forceinline__ void rows_from(std::int64_t first, std::int64_t count, std::int64_t (&rows)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t row = first + r * std::int64_t{kColumnBlock};
    rows[r] = row < count ? row : -1;
  }
}

/// The first of a thread's rows. Blocks have kRows * kColumnBlock.
__device__ __forceinline__ std::int64_t first_row_of_thread() {
  return std::int64_t{blockIdx.x} * (kRows * kColumnBlock) + threadIdx.x;
}

inline std::int64_t threads_of(std::int64_t rows) { return (rows + kRows - 1) / kRows; }

/// A number of each row that has a digit.
struct DigitColumn {
  const std::byte* first;
  std::int64_t stride;  // bytes from a row's to the next one's
  int width;
  NumberFormat format;
  const bool* valid;
  Digit digit;

  static DigitColumn of(const KeyRows& rows, const Digit& digit) {
    const KeyColumn& column = rows.columns[static_cast<std::size_t>(digit.column)];
    const auto width = static_cast<std::int64_t>(itemsize(column.dtype));
    return {static_cast<const std::byte*>(column.data) + digit.element * width,
            column.bytes(),
            static_cast<int>(width),
            number_format(column.dtype, 1),
            column.valid,
            digit};
  }

  /// The bytes of numbers that lie side by side and compare as their bits, without nulls; else 0.
  __device__ __forceinline__ int plain_width() const {
    return valid == nullptr && stride == width && format.compares_bits() ? width : 0;
  }
  /// Of kRows rows, whose loads are on their way at once; 0 for rows that are -1.
  __device__ __forceinline__ void read_orders(const std::int64_t (&rows)[kRows], std::uint64_t (&orders)[kRows]) const {
    if (width == 8)
      load<std::uint64_t>(rows, orders);
    else if (width == 4)
      load<std::uint32_t>(rows, orders);
    else if (width == 2)
      load<std::uint16_t>(rows, orders);
    else
      load<std::uint8_t>(rows, orders);
#pragma unroll
    for (int r = 0; r < kRows; ++r) orders[r] = detail::ordered(canonical(orders[r], format), format);
  }
  __device__ __forceinline__ void read_valid(const std::int64_t (&rows)[kRows], bool (&is_valid)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) is_valid[r] = rows[r] >= 0 && (valid == nullptr || valid[rows[r]]);
  }

 private:
  template <class Number>
  __device__ __forceinline__ void load(const std::int64_t (&rows)[kRows], std::uint64_t (&numbers)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      numbers[r] = rows[r] < 0 ? 0 : *reinterpret_cast<const Number*>(first + rows[r] * stride);
  }
};

/// Rows of any columns, whose formats each number is looked up in.
struct PackedRows {
  Several<DigitColumn> digits;
  std::uint64_t outside;
  const bool* is_key;
  std::int64_t count;

  static PackedRows of(const KeyRows& rows, const Packing& packing) {
    PackedRows packed{};
    for (const Digit& digit : packing.digits) packed.digits.items[packed.digits.count++] = DigitColumn::of(rows, digit);
    packed.outside = packing.outside;
    packed.is_key = rows.is_key;
    packed.count = rows.count;
    return packed;
  }

  /// Calls body(row, word) for a thread's rows, of which this is the first.
  template <class Word, class Body>
  __device__ __forceinline__ void visit(std::int64_t first, Body body) const {
    std::int64_t rows[kRows];
    std::uint64_t words[kRows];
    rows_from(first, count, rows);
    read_words(rows, words);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (rows[r] >= 0) body(rows[r], static_cast<Word>(words[r]));
  }

 private:
  /// `outside` for rows that are -1.
  __device__ __forceinline__ void read_words(const std::int64_t (&rows)[kRows], std::uint64_t (&words)[kRows]) const {
    bool is_inside[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      is_inside[r] = rows[r] >= 0 && (is_key == nullptr || is_key[rows[r]]);
      words[r] = 0;
    }
    for (int d = 0; d < digits.count; ++d) {
      const DigitColumn& column = digits.items[d];
      const Digit& digit = column.digit;
      bool is_valid[kRows];
      std::uint64_t orders[kRows];
      column.read_valid(rows, is_valid);
      column.read_orders(rows, orders);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        is_inside[r] &= is_valid[r] ? orders[r] >= digit.least && orders[r] <= digit.most : digit.has_null;
        words[r] += (is_valid[r] ? digit.base + (orders[r] - digit.least) : digit.null) * digit.factor;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (!is_inside[r]) words[r] = outside;
  }
};

/// Rows of integers of one width that lie side by side, without nulls, all of them keys: a digit is a difference of
/// bits.
template <class Number>
struct IntegerRows {
  struct Column {
    const Number* numbers;
    Number least;
    Number span;  // the greatest digit
    std::uint64_t factor;
  };

  Several<Column> columns;
  std::uint64_t begin;  // a part of all words
  std::uint64_t outside;
  std::int64_t count;

  static bool fit(const KeyRows& rows, const Packing& packing) {
    return rows.is_key == nullptr && std::ranges::all_of(packing.digits, [&](const Digit& digit) {
             const KeyColumn& column = rows.columns[static_cast<std::size_t>(digit.column)];
             return is_integer(column.dtype) && itemsize(column.dtype) == sizeof(Number) && column.elements == 1 &&
                    column.valid == nullptr && digit.least <= digit.most;
           });
  }

  static IntegerRows of(const KeyRows& rows, const Packing& packing) {
    IntegerRows packed{};
    for (const Digit& digit : packing.digits) {
      const KeyColumn& column = rows.columns[static_cast<std::size_t>(digit.column)];
      packed.columns.items[packed.columns.count++] = {
          static_cast<const Number*>(column.data),
          static_cast<Number>(key_of_order(digit.least, number_format(column.dtype, 1))),
          static_cast<Number>(digit.most - digit.least), digit.factor};
      packed.begin += digit.base * digit.factor;
    }
    packed.outside = packing.outside;
    packed.count = rows.count;
    return packed;
  }

  /// As that of PackedRows. Words that have no more bits than `outside`.
  template <class Word, class Body>
  __device__ __forceinline__ void visit(std::int64_t first, Body body) const {
    std::int64_t rows[kRows];
    Word words[kRows];
    bool is_inside[kRows];
    rows_from(first, count, rows);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      words[r] = static_cast<Word>(begin);
      is_inside[r] = true;
    }
    for (int c = 0; c < columns.count; ++c) {
      const Column& column = columns.items[c];
      Number digits[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        digits[r] = static_cast<Number>((rows[r] < 0 ? 0 : __ldcs(column.numbers + rows[r])) - column.least);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        is_inside[r] &= digits[r] <= column.span;
        words[r] += static_cast<Word>(digits[r]) * static_cast<Word>(column.factor);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (rows[r] >= 0) body(rows[r], is_inside[r] ? words[r] : static_cast<Word>(outside));
  }
};

/// Calls run(rows) with the rows in the form whose words take the fewest instructions.
template <class Run>
void with_rows(const KeyRows& rows, const Packing& packing, const Run& run) {
  if (IntegerRows<unsigned>::fit(rows, packing)) return run(IntegerRows<unsigned>::of(rows, packing));
  if (IntegerRows<unsigned long long>::fit(rows, packing))
    return run(IntegerRows<unsigned long long>::of(rows, packing));
  run(PackedRows::of(rows, packing));
}

}  // namespace gpuhash::cuda
