#pragma once

#include <cstdint>

#include <gpuhash/export.hpp>

namespace gpuhash {

/// For tests, which would need gigabytes to see batches partitioned: those of at least this many keys are, whatever the
/// size of the table, and it is searched as if it did not lie in L2. Those of unique, factorize and isin as well, none
/// of which is then too small for it; on the host those that are partitioned anyway are written past the caches. -1,
/// the default: as cuda/partition/plan.cuh, cuda/factorization/part_lists.cuh and cpp/host/simd.cpp have it.
GPUHASH_API std::int64_t test_partition_threshold() noexcept;
GPUHASH_API void set_test_partition_threshold(std::int64_t keys) noexcept;

}  // namespace gpuhash
