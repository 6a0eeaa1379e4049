#pragma once

#include <cstdint>

#include <gpuhash/dtype.hpp>

namespace gpuhash {

/// What becomes of the value of a key that is there: it stays, is overwritten, or is combined with the given one.
/// Integers wrap, float minima and maxima pass NaN on (as numpy.minimum does), booleans add as "or" and multiply as
/// "and".
enum class Action : std::uint8_t { kKeep, kAssign, kAdd, kMultiply, kMin, kMax, kBitAnd, kBitOr, kBitXor };

constexpr bool combines(Action action) { return action >= Action::kAdd; }

constexpr bool is_bit_op(Action action) { return action >= Action::kBitAnd; }

/// Bit operations are of integers and booleans; complex numbers have no order.
inline bool has_op(DType dtype, Action action) {
  if (is_bit_op(action)) return is_integer(dtype) || dtype == DType::kBool;
  return !is_complex(dtype) || (action != Action::kMin && action != Action::kMax);
}

}  // namespace gpuhash
