#pragma once

#include "table/executor.hpp"

namespace gpuhash::cuda {

/// The algorithms on CUDA GPUs.
struct CudaAlgorithms {
  /// Instantiated in one source file per key width, which compile side by side.
  template <class Key, class Value>
  static const Executor<Key, Value>& executor();
  static const Factorizer& factorizer();
  static const Hasher& hasher();
  static const Aggregator& aggregator();
  static const Splitter& splitter();
  static const RowOptimizer& row_optimizer();
  static const Pairing& pairing();
  static const RunChains& run_chains();
  static const ColumnKeys& column_keys();
  static const WideKeys& wide_keys();
};

/// One element of the op's identity, in the low bytes of a 16-byte word.
Uint128 identity_bits(Action op, DType dtype);

}  // namespace gpuhash::cuda
