#pragma once

#include <cstdint>
#include <vector>

#include <gpuhash/table.hpp>
#include "table/orders.hpp"
#include "table/row_optimizer.hpp"

namespace gpuhash {

/// The columns of a table as its executor is told of them.
class PlacedColumns {
 public:
  explicit PlacedColumns(const TableOptions& options);

  /// Of n keys' rows. The columns are in order: check_reads().
  std::vector<ColumnRead> reads(Span<const Read> reads) const;
  /// Likewise: check_change().
  ColumnsOrder order(const Change& change, bool deterministic) const;
  /// Likewise: check_trained().
  TrainOrder train_order(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
                         const std::vector<std::size_t>& columns, const OptimizerStep& step) const;

 private:
  std::vector<ColumnPlace> places_;
  std::vector<ColumnInitial> initial_;
};

/// ShapeError where there is no such column, or one is given twice; DTypeError where the table has no values at all.
void check_reads(const TableOptions& options, Span<const Read> reads);
/// Likewise of what is read and written, and DTypeError for operations that a column's dtype does not have, and where
/// there have to be rows and are none: for row numbers, and for values that nobody gives.
void check_change(const TableOptions& options, const Change& change);
/// DTypeError where the values lie beside their keys.
void check_has_rows(const TableOptions& options);
/// ShapeError likewise.
void check_row_storage(const TableOptions& options);
/// As check_reads(), of rows by their numbers; DTypeError where there are none.
void check_row_reads(const TableOptions& options, Span<const Read> reads);
/// Likewise; DTypeError where rows of the column cannot be summed up.
void check_pooled(const TableOptions& options, const Read& out);
/// DTypeError or ShapeError where the optimizer cannot train these columns with these gradients.
void check_trained(const TableOptions& options, const std::vector<std::size_t>& columns, const OptimizerStep& step,
                   const Gradients& gradients);

}  // namespace gpuhash
