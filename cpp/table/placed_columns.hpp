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

  /// Of n keys' rows. The columns are in order: check_outputs().
  std::vector<ColumnRead> reads(const std::vector<ColumnOutput>& outputs) const;
  /// Likewise: check_inputs(). Without keys, rows and inserted.
  ColumnsOrder order(const std::vector<ColumnInput>& inputs, bool deterministic) const;
  /// Likewise: check_trained().
  TrainOrder train_order(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
                         const std::vector<std::size_t>& columns, const OptimizerStep& step) const;

 private:
  std::vector<ColumnPlace> places_;
  std::vector<ColumnInitial> initial_;
};

/// DTypeError where the table has no columns, ShapeError where there is no such one, or one is given twice.
void check_outputs(const TableOptions& options, const std::vector<ColumnOutput>& outputs);
/// Likewise, and DTypeError for operations that a column's dtype does not have.
void check_inputs(const TableOptions& options, const std::vector<ColumnInput>& inputs);
/// As check_outputs(); DTypeError where rows of the column cannot be summed up.
void check_pooled(const TableOptions& options, const ColumnOutput& out);
/// DTypeError or ShapeError where the optimizer cannot train these columns with these gradients.
void check_trained(const TableOptions& options, const std::vector<std::size_t>& columns, const OptimizerStep& step,
                   const Gradients& gradients);
/// DTypeError where the table has columns: a value without a name belongs to none of them.
void check_single_value(const TableOptions& options);

}  // namespace gpuhash
