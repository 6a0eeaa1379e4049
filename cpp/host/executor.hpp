#pragma once

#include "table/executor.hpp"

namespace gpuhash::host {

/// The algorithms on the host.
struct HostAlgorithms {
  /// Instantiated in one source file per key width, which compile side by side.
  template <class Key, class Value>
  static const Executor<Key, Value>& executor();
  static const Factorizer& factorizer();
  static const Splitter& splitter();
  static const RowOptimizer& row_optimizer();
  static const WideKeys& wide_keys();
};

}  // namespace gpuhash::host
