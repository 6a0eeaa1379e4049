#pragma once

#include <gpuhash/action.hpp>
#include <gpuhash/dtype.hpp>

namespace gpuhash {

/// Added or multiplied one by one, floats of 16 bits are rounded each time, and a sum of ones stops at 256 or 2048. So
/// what a batch has for a key is combined in float first, and meets the stored value once.
inline bool combines_in_float(DType dtype, Action op) {
  return (dtype == DType::kFloat16 || dtype == DType::kBFloat16) && (op == Action::kAdd || op == Action::kMultiply);
}

}  // namespace gpuhash
