#include "core/reservation.hpp"

#include <atomic>

namespace gpuhash {
namespace {

std::atomic<std::int64_t> limit{-1};

}  // namespace

std::int64_t test_reservation_limit() noexcept { return limit.load(std::memory_order_relaxed); }
void set_test_reservation_limit(std::int64_t bytes) noexcept { limit.store(bytes, std::memory_order_relaxed); }

}  // namespace gpuhash
