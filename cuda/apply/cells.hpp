#pragma once

#include <cstddef>
#include <cstdint>

#include <gpuhash/action.hpp>
#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include "table/orders.hpp"

namespace gpuhash::cuda {

/// Where the values lie that apply updates: value i belongs to the cell that begins at
/// base + index[i] * stride, `elements` elements of `dtype` long.
struct Cells {
  std::byte* base;
  std::int64_t stride;        // bytes
  const std::int64_t* index;  // [n]
  std::int64_t elements;
  const std::uint64_t* left = nullptr;  // not null: where that is not 0, no value is applied
};

/// cell = combine(cell, value) for every value of the batch, atomically. Duplicates within a warp are combined first.
void apply_to_cells(const Cells& cells, const ValueBatch& values, std::int64_t count, Action op, DType dtype,
                    Stream stream);

}  // namespace gpuhash::cuda
