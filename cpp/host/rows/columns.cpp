#include "host/rows/columns.hpp"

#include <algorithm>
#include <cstring>

#include "host/parallel.hpp"
#include "host/rows/initial_rows.hpp"
#include "host/short_bytes.hpp"
#include "shared/hash.hpp"

namespace gpuhash::host {
namespace {

/// Of a row; the processor sees by itself that more are read.
constexpr std::int64_t kAskedBytes = 512;
/// Rows are read column by column, as many as this at a time, and those after them asked for meanwhile.
constexpr std::int64_t kMostRows = 32;
constexpr std::int64_t kMostBytes = 8192;
constexpr std::int64_t kFewestRows = 8;

/// Calls body(copy) with what copies so many bytes, known when compiled where they are few.
template <class Body>
void with_copy(std::int64_t bytes, const Body& body) {
  const auto whole = [&]<class Word>(Word) {
    body([](std::byte* to, const std::byte* from) { detail::store_whole(to, detail::load_whole<Word>(from)); });
  };
  if (bytes == 4) return whole(std::uint32_t{});
  if (bytes == 8) return whole(std::uint64_t{});
  if (bytes == 16) return whole(Uint128{});
  body([bytes](std::byte* to, const std::byte* from) { copy_bytes(to, from, bytes); });
}

/// Is it the number of a row that there is? -1 is none, and another thread's call may have made the table smaller.
bool is_row(const RowView& rows, std::int64_t number) { return number >= 0 && number < rows.capacity; }

/// Reads a column of rows [begin, end) of the batch.
void read_column(const RowView& rows, const std::int64_t* numbers, std::int64_t begin, std::int64_t end,
                 const ColumnRead& column) {
  const std::int64_t bytes = column.place.bytes();
  const std::byte* const data = rows.data + column.place.offset;
  const auto* const fallback = static_cast<const std::byte*>(column.fallback);
  const std::int64_t fallback_stride = column.fallback_per_key ? bytes : 0;
  auto* to = static_cast<std::byte*>(column.values) + begin * bytes;
  with_copy(bytes, [&](const auto& copy) {
    for (std::int64_t i = begin; i < end; ++i, to += bytes) {
      if (is_row(rows, numbers[i]))
        copy(to, data + numbers[i] * rows.bytes);
      else if (fallback != nullptr)
        copy(to, fallback + i * fallback_stride);
      else
        std::memset(to, 0, static_cast<std::size_t>(bytes));
    }
  });
}

}  // namespace

RowWriter::RowWriter(const ColumnsOrder& order) : order_(&order) {
  given_.reserve(order.given.size());
  for (const ColumnChange& change : order.given)
    given_.push_back({change.place.offset, change.values.bytes, change.place.elements,
                      static_cast<const std::byte*>(change.values.data),
                      change.values.broadcast ? 0 : change.values.bytes, change.action,
                      combines(change.action) ? combine_function(change.place.dtype, change.action) : nullptr,
                      &change});
  for (const ColumnChange& change : order.given) {
    if (change.action == Action::kKeep) continue;
    const std::int64_t end = change.place.offset + change.place.bytes();
    touched_begin_ = touched_end_ == 0 ? change.place.offset : std::min(touched_begin_, change.place.offset);
    touched_end_ = std::max(touched_end_, end);
  }
}

void RowWriter::begin(std::byte* row, std::int64_t i) const {
  for (const Given& column : given_)
    if (!write_wide(column, row, i, true))
      copy_bytes(row + column.offset, column.values + i * column.stride, column.bytes);
  if (order_->initial.empty()) return;
  const KeyBatch& keys = order_->drawn_from;
  const auto key = load_bytes<Uint128>(keys.data, i, keys.bytes);
  for (const ColumnInitial& column : order_->initial) initialise_row(column.rows, key, row + column.offset);
}

void RowWriter::meet(std::byte* row, std::int64_t i) const {
  for (const Given& column : given_) {
    if (write_wide(column, row, i, false)) continue;
    const std::byte* const value = column.values + i * column.stride;
    if (column.action == Action::kAssign)
      copy_bytes(row + column.offset, value, column.bytes);
    else if (column.combine != nullptr)
      column.combine(row + column.offset, value, column.elements);
  }
}

void read_columns(const RowView& rows, const std::int64_t* numbers, std::int64_t count,
                  std::span<const ColumnRead> columns) {
  const std::int64_t asked = std::min(rows.bytes, kAskedBytes);
  const auto ask_for = [&](std::int64_t i) {
    if (!is_row(rows, numbers[i])) return;
    const std::byte* const row = rows.data + numbers[i] * rows.bytes;
    for (std::int64_t byte = 0; byte < asked; byte += 64) __builtin_prefetch(row + byte);
  };
  const std::int64_t at_once = std::clamp(kMostBytes / std::max<std::int64_t>(rows.bytes, 1), kFewestRows, kMostRows);
  for_each_part(count, reader_parts(count), [&](int, std::int64_t first, std::int64_t last) {
    in_pieces(first, last, kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < std::min(begin + at_once, end); ++i) ask_for(i);
      for (std::int64_t i = begin; i < end; i += at_once) {
        const std::int64_t next = std::min(i + at_once, end);
        for (std::int64_t n = next; n < std::min(next + at_once, end); ++n) ask_for(n);
        read_columns_now(rows, numbers, i, next, columns);
      }
    });
  });
}

void read_columns_now(const RowView& rows, const std::int64_t* numbers, std::int64_t begin, std::int64_t end,
                      std::span<const ColumnRead> columns) {
  for (const ColumnRead& column : columns) read_column(rows, numbers, begin, end, column);
}

}  // namespace gpuhash::host
