#pragma once

#include <cstdint>
#include <span>

#include <gpuhash/device_context.hpp>
#include "cuda/apply/cell_update.hpp"
#include "shared/layout.hpp"
#include "table/orders.hpp"

/// Columns of rows whose numbers are known. No kernel here knows of keys' places, so that there is one of each for all
/// slot types.
namespace gpuhash::cuda {

/// values[i] = the column of row numbers[i], or its fallback (null: zeros) where that is of no row: negative, or beyond
/// the capacity, as the table may have become smaller since it was given.
void read_columns(const RowView& rows, const std::int64_t* numbers, std::int64_t count,
                  std::span<const ColumnRead> columns, Stream stream);

/// Whole rows of given numbers: values[i], zeros where there is no row.
void read_rows(const RowView& rows, const std::int64_t* numbers, std::int64_t count, void* values, Stream stream);

/// And the reverse, where numbers[i] >= 0.
void write_rows(const RowView& rows, const std::int64_t* numbers, std::int64_t count, const ValueBatch& values,
                Stream stream);

/// writers[i] = numbers[i] for one position i of each row, and -1 for the others, by an epoch of the tags that nobody
/// else has: it has to be counted off afterwards.
void elect_any(const RowView& rows, const Control* control, const std::int64_t* numbers, std::int64_t* writers,
               std::int64_t count, Stream stream);

/// What an insertion of the batch's keys has given; each [n].
struct InsertedRows {
  const std::int64_t* numbers;  // of all keys' rows, -1 where there is none
  const bool* is_new;
  const std::int64_t* writers;  // those of the positions whose values are assigned, -1 elsewhere; null: none is
};

/// The elements of the widest column whose changes are combined in float: see CellUpdate.
std::int64_t most_short_elements(const ColumnsOrder& order);

/// Gives the columns of the rows what the order says.
void write_columns(const RowView& rows, const ColumnsOrder& order, const InsertedRows& inserted,
                   const CellUpdate& update, Stream stream);

}  // namespace gpuhash::cuda
