#pragma once

#include <cstdint>
#include <vector>

#include <gpuhash/device_context.hpp>
#include "table/orders.hpp"

namespace gpuhash {

/// Combines in float what a batch has for a key, in the batch's order, on the host. See combines_in_float().
class WideBatch {
 public:
  /// Finds the batch's distinct keys.
  WideBatch(const KeyBatch& keys, Stream stream);

  /// Values of the batch, combined by key. Those of a batch without duplicates are none: each goes in as it is.
  WideValues combine(const ValueBatch& values, Action op, DType dtype, std::int64_t elements);

 private:
  DeviceContext& context_;
  Stream stream_;
  std::int64_t count_;
  std::int64_t distinct_ = 0;
  Allocation codes_;                  // [count], int64
  Allocation firsts_;                 // [distinct], int64
  std::vector<Allocation> combined_;  // each [distinct, elements], float
};

}  // namespace gpuhash
