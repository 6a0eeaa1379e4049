#pragma once

#include <cstdint>

#include <gpuhash/export.hpp>

namespace gpuhash {

/// Another number each time, which nobody outside of the process can tell. From any thread; a forked child goes on with
/// the numbers that its parent would have got.
GPUHASH_API std::uint64_t random_seed();

}  // namespace gpuhash
