#pragma once

#include <cstdint>

#include <gpuhash/device_context.hpp>
#include "cuda/apply/cells.hpp"
#include "cuda/sorted_batch.hpp"

namespace gpuhash::cuda {

/// Combines 16-bit floats with their cells as WideBatch does on the host: what a batch has for a cell is combined in
/// float first, and meets the stored value once. The positions are sorted by cell. A group of threads combines those of
/// a *chunk*; what a cell has in several chunks meets in one float per element, which belongs to the first of them.
class ShortFloatCells {
 public:
  /// Sets all memory aside, for batches of `count` values of at most `elements` and indices in [0, cell_count).
  ShortFloatCells(DeviceContext& context, std::int64_t count, std::int64_t cell_count, std::int64_t elements,
                  Stream stream);

  /// cell = combine(cell, what the batch has for it). Of sums over several chunks, which order they are made in depends
  /// on timing.
  void apply(const Cells& cells, const ValueBatch& values, Action op, DType dtype) const;

 private:
  std::int64_t count_;
  std::int64_t cell_count_;
  Stream stream_;
  BatchSorter sorter_;
  Allocation shared_;  // [chunks, elements], float
};

}  // namespace gpuhash::cuda
