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
  static const WideKeys& wide_keys();
};

/// One element of the op's identity, in the low bytes of a 16-byte word.
Uint128 identity_bits(Action op, DType dtype);

}  // namespace gpuhash::cuda
