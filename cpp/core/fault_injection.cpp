#include "core/fault_injection.hpp"

#include <atomic>
#include <cstddef>

namespace gpuhash {
namespace {

/// Points to pass before the one that fails; below zero: none fails. One for each kind.
std::atomic<std::int64_t> countdowns[] = {-1, -1, -1};

std::atomic<std::int64_t>& countdown_of(Fault kind) noexcept { return countdowns[static_cast<std::size_t>(kind)]; }

}  // namespace

bool inject_fault(Fault kind, std::int64_t after) noexcept {
  return countdown_of(kind).exchange(after, std::memory_order_relaxed) >= 0;
}

bool fails_here(Fault kind) noexcept {
  std::atomic<std::int64_t>& countdown = countdown_of(kind);
  if (countdown.load(std::memory_order_relaxed) < 0) return false;
  return countdown.fetch_sub(1, std::memory_order_relaxed) == 0;
}

}  // namespace gpuhash
