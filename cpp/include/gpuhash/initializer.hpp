#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gpuhash {

enum class Distribution : std::uint8_t { kConstant, kUniform, kNormal, kTruncatedNormal };

/// What the row of a new key is filled with where the caller gives it no value. Each element is a function of the seed,
/// the key's bytes and the element's number: so a key gets the same row in every batch, order and table, on any device.
/// By default zeros.
struct Initializer {
  Distribution distribution = Distribution::kConstant;
  double first = 0;   // uniform: the least number; else the mean
  double second = 0;  // uniform: the largest number; else the standard deviation
  std::uint64_t seed = 0;
  std::array<std::byte, 16> constant{};  // an element of the value dtype, in its first bytes
};

}  // namespace gpuhash
