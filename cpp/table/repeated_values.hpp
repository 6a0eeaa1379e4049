#pragma once

#include <cstdint>

#include <gpuhash/action.hpp>
#include <gpuhash/dtype.hpp>

namespace gpuhash {

/// Do values give the same bits in whatever order they are combined? Integers and booleans do. Sums of floats depend on
/// the order, and so do the sign of their least zero and the bits of a NaN.
inline bool combine_in_any_order(DType dtype) { return is_integer(dtype) || dtype == DType::kBool; }

/// Values that came several times for one key, as if one after the other had been applied. Of those that combine in any
/// order.
///
/// to[i] of `count` values of `elements` numbers each = `value`, times[i] >= 1 times. All in host memory; `to` may be
/// `times` where elements is 1.
void repeat_values(DType dtype, Action op, const void* value, std::int64_t elements, const std::int64_t* times,
                   std::int64_t count, void* to);

}  // namespace gpuhash
