#pragma once

#include <cstddef>

#include <gpuhash/export.hpp>

namespace gpuhash {

/// Bytes of memory that this machine has; 0: nobody knows.
GPUHASH_API std::size_t machine_memory();
/// Likewise, but no more than a container's control group lets its processes have.
GPUHASH_API std::size_t memory_of_container();

}  // namespace gpuhash
