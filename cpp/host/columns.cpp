#include "host/columns.hpp"

#include <algorithm>
#include <cstring>

#include "host/initial_rows.hpp"
#include "host/parallel.hpp"
#include "shared/hash.hpp"

namespace gpuhash::host {
namespace {

/// Rows between asking for one and reading it, and the bytes of it that are asked for.
constexpr std::int64_t kRowsAhead = 8;
constexpr std::int64_t kAskedBytes = 512;

void copy_value(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

RowWriter::RowWriter(const ColumnsOrder& order) : order_(&order) {
  given_.reserve(order.given.size());
  for (const ColumnChange& change : order.given)
    given_.push_back({change.place.offset, change.values.bytes, change.place.elements,
                      static_cast<const std::byte*>(change.values.data),
                      change.values.broadcast ? 0 : change.values.bytes, change.mode,
                      change.mode == ColumnMode::kApply ? combine_function(change.place.dtype, change.op) : nullptr});
}

void RowWriter::begin(std::byte* row, std::int64_t i) const {
  for (const Given& column : given_) copy_value(row + column.offset, column.values + i * column.stride, column.bytes);
  if (order_->initial.empty()) return;
  const KeyBatch& keys = order_->keys;
  const auto key = load_bytes<Uint128>(keys.data, i, keys.bytes);
  for (const ColumnInitial& column : order_->initial) initialise_row(column.rows, key, row + column.offset);
}

void RowWriter::meet(std::byte* row, std::int64_t i) const {
  for (const Given& column : given_) {
    const std::byte* const value = column.values + i * column.stride;
    if (column.mode == ColumnMode::kAssign)
      copy_value(row + column.offset, value, column.bytes);
    else if (column.mode == ColumnMode::kApply)
      column.combine(row + column.offset, value, column.elements);
  }
}

void read_columns(const RowView& rows, const std::int64_t* numbers, std::int64_t count,
                  std::span<const ColumnRead> columns) {
  const std::int64_t asked = std::min(rows.bytes, kAskedBytes);
  const auto is_row = [&](std::int64_t number) { return number >= 0 && number < rows.capacity; };
  const auto ask_for = [&](std::int64_t i) {
    if (!is_row(numbers[i])) return;
    const std::byte* const row = rows.data + numbers[i] * rows.bytes;
    for (std::int64_t byte = 0; byte < asked; byte += 64) __builtin_prefetch(row + byte);
  };
  for_each_part(count, reader_parts(count), [&](int, std::int64_t first, std::int64_t last) {
    in_pieces(first, last, kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < std::min(begin + kRowsAhead, end); ++i) ask_for(i);
      for (std::int64_t i = begin; i < end; ++i) {
        if (i + kRowsAhead < end) ask_for(i + kRowsAhead);
        for (const ColumnRead& column : columns) {
          const std::int64_t bytes = column.place.bytes();
          std::byte* const to = static_cast<std::byte*>(column.values) + i * bytes;
          const auto* const fallback = static_cast<const std::byte*>(column.fallback);
          if (is_row(numbers[i]))
            copy_value(to, rows.data + numbers[i] * rows.bytes + column.place.offset, bytes);
          else if (fallback != nullptr)
            copy_value(to, fallback + (column.fallback_per_key ? i * bytes : 0), bytes);
          else
            std::memset(to, 0, static_cast<std::size_t>(bytes));
        }
      }
    });
  });
}

}  // namespace gpuhash::host
