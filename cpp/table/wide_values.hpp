#pragma once

#include <cstdint>
#include <vector>

#include <gpuhash/device_context.hpp>
#include "table/orders.hpp"

namespace gpuhash {

/// Floats of 16 bits that are added or multiplied: one by one they are rounded each time, and a sum of ones stops at
/// 256 or 2048. So what a batch has for a key is combined in float first, in the batch's order, and meets the stored
/// value once. On the host.
class WideBatch {
 public:
  /// Are such values combined in float?
  static bool widens(DType dtype, ApplyOp op) {
    return (dtype == DType::kFloat16 || dtype == DType::kBFloat16) && (op == ApplyOp::kAdd || op == ApplyOp::kMultiply);
  }

  /// Finds the batch's distinct keys.
  WideBatch(const KeyBatch& keys, Stream stream);

  /// Values of the batch, combined by key. Those of a batch without duplicates are none: each goes in as it is.
  WideValues combine(const ValueBatch& values, ApplyOp op, DType dtype, std::int64_t elements);

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
