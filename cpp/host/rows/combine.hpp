#pragma once

#include <cstdint>

#include "table/executor.hpp"

namespace gpuhash::host {

/// to[e] = combine(op, to[e], from[e]) for every element e of [0, elements), of one dtype and one op.
using CombineFn = void (*)(void* to, const void* from, std::int64_t elements);

/// Looked up once per batch, so that the executor's loops need not be compiled for every dtype and op.
CombineFn combine_function(DType dtype, Action op);

/// Combines stored 16-bit floats with others that come as float, and rounds once; or, where is_new, just rounds these.
void combine_wide(DType dtype, Action op, void* to, const float* from, std::int64_t elements, bool is_new);

}  // namespace gpuhash::host
