#pragma once

#include <cstdint>

#include <gpuhash/export.hpp>

namespace gpuhash {

/// For tests, which would need tens of gigabytes to see a batch taken in parts: of at most this many keys. -1, the
/// default: as cpp/table/hash_table.cpp has it.
GPUHASH_API std::int64_t test_batch_limit() noexcept;
GPUHASH_API void set_test_batch_limit(std::int64_t keys) noexcept;

}  // namespace gpuhash
