#include "core/test_partition_threshold.hpp"

#include <atomic>

namespace gpuhash {
namespace {

std::atomic<std::int64_t> threshold{-1};

}  // namespace

std::int64_t test_partition_threshold() noexcept { return threshold.load(std::memory_order_relaxed); }
void set_test_partition_threshold(std::int64_t keys) noexcept { threshold.store(keys, std::memory_order_relaxed); }

}  // namespace gpuhash
