#pragma once

#include <cstdint>
#include <optional>

#include <gpuhash/device_context.hpp>
#include "cuda/apply/cells.hpp"
#include "cuda/apply/short_floats.hpp"
#include "shared/combines_in_float.hpp"
#include "table/orders.hpp"

namespace gpuhash::cuda {

/// Combines a batch's values with the cells of their keys.
class CellUpdate {
 public:
  /// Sets memory aside for batches of `count` values of at most `short_elements` 16-bit floats that are combined in
  /// float, with indices in [0, cell_count). short_elements = 0: of none.
  CellUpdate(DeviceContext& context, std::int64_t count, std::int64_t cell_count, std::int64_t short_elements,
             Stream stream)
      : count_(count), stream_(stream) {
    if (short_elements != 0 && count > 1) short_floats_.emplace(context, count, cell_count, short_elements, stream);
  }

  /// cell = combine(cell, value) for every value of the batch.
  void apply(const Cells& cells, const ValueBatch& values, Action op, DType dtype) const {
    if (short_floats_ && combines_in_float(dtype, op))
      short_floats_->apply(cells, values, op, dtype);
    else
      apply_to_cells(cells, values, count_, op, dtype, stream_);
  }

 private:
  std::int64_t count_;
  Stream stream_;
  std::optional<ShortFloatCells> short_floats_;
};

}  // namespace gpuhash::cuda
