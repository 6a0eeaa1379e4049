#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "host/rows/combine.hpp"
#include "shared/layout.hpp"
#include "table/orders.hpp"

/// Columns of rows on the host.
namespace gpuhash::host {

/// Writes the rows of a batch's keys, each in the thread that has found it.
class RowWriter {
 public:
  /// The order has to outlive it.
  explicit RowWriter(const ColumnsOrder& order);

  /// The row of key i, which is new.
  void begin(std::byte* row, std::int64_t i) const;
  /// One that was there before, or is a duplicate's.
  void meet(std::byte* row, std::int64_t i) const;
  /// What meet() reads and writes of a row lies in bytes [touched_begin(), touched_end()).
  std::int64_t touched_begin() const { return touched_begin_; }
  std::int64_t touched_end() const { return touched_end_; }

 private:
  struct Given {
    std::int64_t offset;
    std::int64_t bytes;
    std::int64_t elements;
    const std::byte* values;
    std::int64_t stride;  // bytes from a key's value to the next
    Action action;
    CombineFn combine;  // null where the action is none of arithmetic
    const ColumnChange* change;
  };

  /// False where the column is none of WideValues.
  static bool write_wide(const Given& column, std::byte* row, std::int64_t i, bool is_new) {
    const ColumnChange& change = *column.change;
    if (change.wide.combined == nullptr) return false;
    if (const float* const all = change.wide.at(i, column.elements))
      combine_wide(change.place.dtype, change.action, row + column.offset, all, column.elements, is_new);
    return true;
  }

  const ColumnsOrder* order_;
  std::vector<Given> given_;
  std::int64_t touched_begin_ = 0;
  std::int64_t touched_end_ = 0;
};

/// Values of rows [count], or their fallbacks where the numbers are of no rows: negative, or beyond the capacity, as
/// the table may have become smaller since they were given.
void read_columns(const RowView& rows, const std::int64_t* numbers, std::int64_t count,
                  std::span<const ColumnRead> columns);
/// Of a few of them, [begin, end), which are on their way into the caches.
void read_columns_now(const RowView& rows, const std::int64_t* numbers, std::int64_t begin, std::int64_t end,
                      std::span<const ColumnRead> columns);

}  // namespace gpuhash::host
