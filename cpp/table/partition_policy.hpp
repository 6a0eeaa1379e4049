#pragma once

#include <cstdint>

#include <gpuhash/export.hpp>

namespace gpuhash {

/// Batches of at least this many keys are partitioned before they are inserted or erased, whatever the size of the
/// table; -1, the default: as it pays. For tests, which would need gigabytes otherwise.
GPUHASH_API std::int64_t partition_threshold() noexcept;
GPUHASH_API void set_partition_threshold(std::int64_t keys) noexcept;

}  // namespace gpuhash
