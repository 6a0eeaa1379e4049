#pragma once

#include <cstdint>
#include <cstring>

#include "shared/host_device.hpp"

/// Floats of 16 bits, one definition for host and device.
namespace gpuhash {

/// Like std::bit_cast, which device code cannot call.
template <class To, class From>
GPUHASH_HD To cast_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

/// IEEE 754 binary16. Arithmetic is done in float and rounded to nearest, ties to even.
struct Float16 {
  std::uint16_t bits;

  GPUHASH_HD static Float16 from_float(float value) {
    const auto word = cast_bits<std::uint32_t>(value);
    const std::uint32_t sign = word >> 16 & 0x8000u;
    const std::uint32_t magnitude = word & 0x7fffffffu;
    std::uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u | (magnitude >> 13 & 0x3ffu);  // NaN, made quiet
    } else if (magnitude >= 0x477ff000u) {
      half = 0x7c00u;  // 65520 and above are nearer to infinity, or as near
    } else if (magnitude >= 0x38800000u) {
      const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
      half = (rounded - 0x38000000u) >> 13;
    } else if (magnitude > 0x33000000u) {  // subnormal: a multiple of 2^-24
      const std::uint32_t shift = 126u - (magnitude >> 23);
      const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
      const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
      const std::uint32_t tie = 1u << (shift - 1u);
      half = mantissa >> shift;
      half += rest > tie || (rest == tie && (half & 1u) != 0) ? 1u : 0u;
    } else {
      half = 0;  // 2^-25 and below: zero is nearer, or even
    }
    return {static_cast<std::uint16_t>(sign | half)};
  }

  GPUHASH_HD float to_float() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16;
    const std::uint32_t exponent = bits >> 10 & 0x1fu;
    const std::uint32_t mantissa = bits & 0x3ffu;
    std::uint32_t word;
    if (exponent == 31)
      word = 0x7f800000u | mantissa << 13;
    else if (exponent == 0)
      word = cast_bits<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
    else
      word = (exponent + 112u) << 23 | mantissa << 13;
    return cast_bits<float>(sign | word);
  }
};

/// The upper half of a float. Rounds like Float16.
struct BFloat16 {
  std::uint16_t bits;

  GPUHASH_HD static BFloat16 from_float(float value) {
    std::uint32_t word = cast_bits<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u)
      word |= 0x400000u;  // NaN, made quiet: rounding could carry it to infinity
    else
      word += 0x7fffu + (word >> 16 & 1u);
    return {static_cast<std::uint16_t>(word >> 16)};
  }

  GPUHASH_HD float to_float() const { return cast_bits<float>(static_cast<std::uint32_t>(bits) << 16); }
};

}  // namespace gpuhash
