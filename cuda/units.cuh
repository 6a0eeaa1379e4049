#pragma once

#include <cstdint>

/// How wide the loads are by which kernels read what callers have.
namespace gpuhash::cuda {

/// An address as a number.
inline std::uint64_t address_bits(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

/// Calls run(unit) with the first type whose size divides all of the addresses and lengths in `bits`, or the last one.
template <class Unit, class... Narrower, class Run>
void with_unit(std::uint64_t bits, const Run& run) {
  if constexpr (sizeof...(Narrower) == 0)
    run(Unit{});
  else if (bits % sizeof(Unit) == 0)
    run(Unit{});
  else
    with_unit<Narrower...>(bits, run);
}

}  // namespace gpuhash::cuda
