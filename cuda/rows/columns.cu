#include "cuda/rows/columns.hpp"

#include <algorithm>
#include <cstring>

#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows/initial_rows.hpp"
#include "cuda/rows/rows.cuh"

namespace gpuhash::cuda {
namespace {

/// A column as it lies in the rows, in words.
template <class Word>
struct StridedColumn {
  Word* first;
  std::int64_t stride;  // words from a row to the next

  __device__ __forceinline__ Word* of(std::int64_t row) const { return first + row * stride; }
};

/// Calls run(column, shape) with the widest word that divides value and row and all addresses. `arrays` may be null.
template <class Run>
void with_column_words(const RowView& rows, const ColumnPlace& place, std::initializer_list<const void*> arrays,
                       Run run) {
  std::byte* const first = rows.data + place.offset;
  // A row's length decides as an address would: it is the distance of two values.
  const void* const second = first + rows.bytes;
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(first) | reinterpret_cast<std::uintptr_t>(second);
  for (const void* array : arrays) bits |= reinterpret_cast<std::uintptr_t>(array);
  const void* const all = reinterpret_cast<const void*>(bits);
  with_row_words(place.bytes(), {all}, [&](auto word, RowShape shape) {
    using Word = decltype(word);
    run(StridedColumn<Word>{reinterpret_cast<Word*>(first), rows.bytes / static_cast<std::int64_t>(sizeof(Word))},
        shape);
  });
}

/// out[i] = column of row numbers[i], or the fallback (null: zeros) where that is not in [0, capacity).
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    gather_column_kernel(StridedColumn<const Word> column, std::int64_t capacity, const std::int64_t* numbers,
                         const Word* fallback, bool fallback_per_key, Word* out, std::int64_t count, RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = numbers[i];
  const bool is_row = row >= 0 && row < capacity;
  const Word* const from = is_row ? column.of(row) : fallback_per_key ? fallback + i * shape.words : fallback;
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes)
    __stcs(out + i * shape.words + w, from != nullptr ? load_row_word(from + w) : Word{});
}

/// column of row numbers[i] = values[i] for numbers[i] >= 0, where `only` (null: everywhere) says so.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    scatter_column_kernel(StridedColumn<Word> column, const std::int64_t* numbers, const bool* only, const Word* values,
                          bool broadcast, std::int64_t count, RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count || (only != nullptr && !only[i])) return;
  const std::int64_t row = numbers[i];
  if (row < 0) return;
  const Word* const from = broadcast ? values : values + i * shape.words;
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes)
    __stcs(column.of(row) + w, load_row_word(from + w));
}

__global__ void __launch_bounds__(kRowBlock)
    elect_any_kernel(std::uint32_t* tags, const Control* control, const std::int64_t* numbers, std::int64_t* writers,
                     std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count) return;
  const std::int64_t row = numbers[i];
  const auto epoch = static_cast<std::uint32_t>(control->row_epoch) + 1;
  writers[i] = row >= 0 && atomicExch(tags + row, epoch) != epoch ? row : -1;
}

void scatter(const RowView& rows, const ColumnPlace& place, const ValueBatch& values, const std::int64_t* numbers,
             const bool* only, std::int64_t count, Stream stream) {
  with_column_words(
      rows, place, {values.data}, [&]<class Word>(const StridedColumn<Word>& column, const RowShape& shape) {
        launch("scattering a column", scatter_column_kernel<Word>, count * shape.lanes, kRowBlock, stream, column,
               numbers, only, static_cast<const Word*>(values.data), values.broadcast, count, shape);
      });
}

ColumnPlace whole_row(const RowView& rows) { return {0, DType::kUInt8, rows.bytes}; }

}  // namespace

void read_columns(const RowView& rows, const std::int64_t* numbers, std::int64_t count,
                  std::span<const ColumnRead> columns, Stream stream) {
  for (const ColumnRead& read : columns)
    with_column_words(rows, read.place, {read.values, read.fallback},
                      [&]<class Word>(const StridedColumn<Word>& column, const RowShape& shape) {
                        launch("gathering a column", gather_column_kernel<Word>, count * shape.lanes, kRowBlock, stream,
                               StridedColumn<const Word>{column.first, column.stride}, rows.capacity, numbers,
                               static_cast<const Word*>(read.fallback), read.fallback_per_key,
                               static_cast<Word*>(read.values), count, shape);
                      });
}

void read_rows(const RowView& rows, const std::int64_t* numbers, std::int64_t count, void* values, Stream stream) {
  const ColumnRead all{whole_row(rows), values, nullptr, false};
  read_columns(rows, numbers, count, {&all, 1}, stream);
}

void write_rows(const RowView& rows, const std::int64_t* numbers, std::int64_t count, const ValueBatch& values,
                Stream stream) {
  scatter(rows, whole_row(rows), values, numbers, nullptr, count, stream);
}

void elect_any(const RowView& rows, const Control* control, const std::int64_t* numbers, std::int64_t* writers,
               std::int64_t count, Stream stream) {
  launch("electing writers", elect_any_kernel, count, kRowBlock, stream, rows.tags, control, numbers, writers, count);
}

std::int64_t most_short_elements(const ColumnsOrder& order) {
  std::int64_t most = 0;
  for (const ColumnChange& change : order.given)
    if (combines(change.action) && combines_in_float(change.place.dtype, change.action))
      most = std::max(most, change.place.elements);
  return most;
}

/// Columns that are combined hold the operation's identity first, so that a new key's duplicates may come in any order.
void write_columns(const RowView& rows, const ColumnsOrder& order, const InsertedRows& inserted,
                   const CellUpdate& update, Stream stream) {
  const std::int64_t n = order.keys.count;
  for (const ColumnInitial& column : order.initial)
    initialise_rows(rows, column.rows, column.offset, order.drawn_from, inserted.is_new, inserted.numbers, stream);
  for (const ColumnChange& change : order.given) {
    const ColumnPlace& place = change.place;
    switch (change.action) {
      case Action::kKeep:
        scatter(rows, place, change.values, inserted.numbers, inserted.is_new, n, stream);
        break;
      case Action::kAssign:
        scatter(rows, place, change.values, inserted.writers, nullptr, n, stream);
        break;
      default: {
        Initializer identity;
        const Uint128 bits = identity_bits(change.action, place.dtype);
        static_assert(sizeof bits == sizeof identity.constant);
        std::memcpy(identity.constant.data(), &bits, sizeof bits);
        initialise_rows(rows, {identity, place.dtype, place.elements}, place.offset, order.keys, inserted.is_new,
                        inserted.numbers, stream);
        const Cells cells{rows.data + place.offset, rows.bytes, inserted.numbers, place.elements};
        update.apply(cells, change.values, change.action, place.dtype);
        break;
      }
    }
  }
}

}  // namespace gpuhash::cuda
