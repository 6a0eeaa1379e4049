#pragma once

#include <cstdint>

#include <gpuhash/batches.hpp>
#include <gpuhash/dtype.hpp>

namespace gpuhash {

/// Values that came several times for one key, as if one after the other had been applied. Of integers and booleans,
/// with which any order of combining them gives the same bits.
///
/// to[i] of `count` values of `elements` numbers each = `value`, times[i] >= 1 times. All in host memory; `to` may be
/// `times` where elements is 1.
void repeat_values(DType dtype, ApplyOp op, const void* value, std::int64_t elements, const std::int64_t* times,
                   std::int64_t count, void* to);

}  // namespace gpuhash
