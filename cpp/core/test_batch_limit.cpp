#include "core/test_batch_limit.hpp"

#include <atomic>

namespace gpuhash {
namespace {

std::atomic<std::int64_t> limit{-1};

}  // namespace

std::int64_t test_batch_limit() noexcept { return limit.load(std::memory_order_relaxed); }
void set_test_batch_limit(std::int64_t keys) noexcept { limit.store(keys, std::memory_order_relaxed); }

}  // namespace gpuhash
