#pragma once

#include <cstdint>

#include <gpuhash/factorization.hpp>
#include "bindings/array.hpp"

namespace gpuhash::bindings {

/// Keys of `elements` numbers each, in the context's memory. std::invalid_argument for what they cannot be.
NumberKeys to_number_keys(const DeviceContext& context, const Array& array, std::int64_t elements, const char* role);

}  // namespace gpuhash::bindings
