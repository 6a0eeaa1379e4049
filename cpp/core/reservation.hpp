#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <gpuhash/export.hpp>

/// How many addresses memory that grows where it lies begins with.
namespace gpuhash {

/// For tests, which would need all memory to see addresses run out: so many bytes at most, but for what the memory
/// begins with; 0: none at all. -1, the default: as reserve_addresses() has it.
GPUHASH_API std::int64_t test_reservation_limit() noexcept;
GPUHASH_API void set_test_reservation_limit(std::int64_t bytes) noexcept;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Calls reserve(n) until it returns true: for all the memory there is, as addresses cost nothing, and then for less,
/// down to `bytes`. Gives the n, a multiple of `unit`; nothing where not even that many addresses are to be had.
template <class Reserve>
std::optional<std::size_t> reserve_addresses(std::size_t bytes, std::size_t all_memory, std::size_t unit,
                                             Reserve reserve) {
  const std::int64_t limit = test_reservation_limit();
  if (limit == 0) return std::nullopt;
  if (limit > 0) all_memory = static_cast<std::size_t>(limit);
  const std::size_t least = round_up(bytes, unit);
  for (std::size_t room = std::max(least, round_up(all_memory, unit));;
       room = std::max(least, round_up(room / 2, unit))) {
    if (reserve(room)) return room;
    if (room == least) return std::nullopt;
  }
}

}  // namespace gpuhash
