#pragma once

#include "table/executor.hpp"

namespace gpuhash::cuda {

/// The algorithms on CUDA GPUs.
struct CudaAlgorithms {
  /// Instantiated in one source file per key width, which compile side by side.
  template <class Key, class Value>
  static const Executor<Key, Value>& executor();
  static const Factorizer& factorizer();
  static const Splitter& splitter();
  static const RowOptimizer& row_optimizer();
};

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
void apply_to_cells(const Cells& cells, const ValueBatch& values, std::int64_t count, ApplyOp op, DType dtype,
                    Stream stream);

/// One element of the op's identity, in the low bytes of a 16-byte word.
Uint128 identity_bits(ApplyOp op, DType dtype);

}  // namespace gpuhash::cuda
