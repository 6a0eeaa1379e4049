#pragma once

#include <cstddef>
#include <cstdint>

#include <gpuhash/device_context.hpp>
#include "shared/host_device.hpp"

namespace gpuhash::cuda {

/// The number of a row, or of a slot.
using Row = std::uint32_t;

/// Positions of a batch in the order of their rows, those of one row in the order of the batch.
struct SortedBatch {
  const Row* rows;                 // [n]; `none` and above: no row's
  const std::uint32_t* positions;  // [n]
  std::int64_t count;
  Row none;

  GPUHASH_HD bool continues_before(std::int64_t i) const { return i != 0 && rows[i - 1] == rows[i]; }
};

/// Sorts batches of `count` positions. All memory is set aside by the constructor.
class BatchSorter {
 public:
  /// What one sort can tell apart: 2^32 - 1 rows.
  static constexpr std::int64_t kMostRows = 0xffffffff;

  /// Row numbers lie in [0, row_count), at most kMostRows of which are told apart at a time. count: at most 2^32 - 1.
  BatchSorter(DeviceContext& context, std::int64_t count, std::int64_t row_count, Stream stream);

  /// The batch of numbers [count] with those in [first, first + row_count) less `first`; all others are no row's. Good
  /// until the next call.
  SortedBatch sort(const std::int64_t* numbers, std::int64_t first, std::int64_t row_count) const;

 private:
  std::int64_t count_;
  Stream stream_;
  Allocation rows_;       // [2 count]
  Allocation positions_;  // [2 count]
  std::size_t workspace_bytes_ = 0;
  Allocation workspace_;
};

}  // namespace gpuhash::cuda
