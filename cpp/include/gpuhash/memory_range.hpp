#pragma once

#include <cstdint>

namespace gpuhash {

/// Some bytes of a device's memory.
struct MemoryRange {
  const void* data = nullptr;
  std::int64_t bytes = 0;
};

/// Do they have a byte in common? Both in the memory of one device.
inline bool overlap(const MemoryRange& a, const MemoryRange& b) {
  const auto from_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto from_b = reinterpret_cast<std::uintptr_t>(b.data);
  return from_a < from_b + static_cast<std::uintptr_t>(b.bytes) &&
         from_b < from_a + static_cast<std::uintptr_t>(a.bytes) && a.bytes > 0 && b.bytes > 0;
}

}  // namespace gpuhash
