#pragma once

#include <cstdint>

#include <gpuhash/dtype.hpp>
#include "shared/hash.hpp"
#include "shared/host_device.hpp"

/// Keys as numbers: which bit patterns are equal, and in which order numbers come.
namespace gpuhash {

/// The numbers that a key consists of: each `bits` wide, the first one in the lowest bits of the key's word.
struct NumberFormat {
  std::uint32_t bits;
  std::uint32_t elements;  // per key; two for a complex number
  bool is_signed;          // two's complement
  bool is_float;
  std::uint64_t infinity;  // floats: the bits of +infinity; above them lie the NaNs
};

inline NumberFormat number_format(DType dtype, std::int64_t elements) {
  const bool complex = is_complex(dtype);
  NumberFormat format{};
  format.bits = 8 * static_cast<std::uint32_t>(itemsize(dtype)) / (complex ? 2 : 1);
  format.elements = static_cast<std::uint32_t>(elements) * (complex ? 2 : 1);
  format.is_float = dtype >= DType::kFloat16;
  format.is_signed = dtype >= DType::kInt8 && dtype <= DType::kInt64;
  switch (format.bits) {
    case 16:
      format.infinity = dtype == DType::kBFloat16 ? 0x7f80 : 0x7c00;
      break;
    case 32:
      format.infinity = 0x7f800000;
      break;
    default:
      format.infinity = 0x7ff0000000000000;
  }
  return format;
}

namespace detail {

GPUHASH_HD std::uint64_t low_bits(std::uint32_t bits) { return ~std::uint64_t{0} >> (64 - bits); }

GPUHASH_HD std::uint64_t canonical_float(std::uint64_t number, const NumberFormat& format) {
  const std::uint64_t magnitude = number & (low_bits(format.bits) >> 1);
  if (magnitude > format.infinity) return format.infinity | 1;  // a NaN for all
  return magnitude == 0 ? 0 : number;
}

GPUHASH_HD std::uint64_t canonical_floats(std::uint64_t word, const NumberFormat& format) {
  if (format.bits == 64) return canonical_float(word, format);
  std::uint64_t out = 0;
  for (std::uint32_t shift = 0; shift < 64; shift += format.bits)
    out |= canonical_float(word >> shift & low_bits(format.bits), format) << shift;
  return out;
}

}  // namespace detail

/// Equal words for equal keys.
template <class Key>
GPUHASH_HD Key canonical(const Key& key, const NumberFormat& format) {
  if (!format.is_float) return key;
  if constexpr (sizeof(Key) == 16)
    return {detail::canonical_floats(key.low, format), detail::canonical_floats(key.high, format)};
  else
    return static_cast<Key>(detail::canonical_floats(key, format));
}

/// An unsigned number whose order is that of the canonical keys: the first number counts most; NaN comes last.
GPUHASH_HD Uint128 order_word(const Uint128& key, const NumberFormat& format) {
  Uint128 out{0, 0};
  for (std::uint32_t e = 0; e < format.elements; ++e) {
    const std::uint32_t shift = e * format.bits;
    const std::uint64_t sign = std::uint64_t{1} << (format.bits - 1);
    std::uint64_t number = (shift < 64 ? key.low >> shift : key.high >> (shift - 64)) & detail::low_bits(format.bits);
    if (format.is_signed) number ^= sign;
    if (format.is_float) number = (number & sign) != 0 ? number ^ detail::low_bits(format.bits) : number | sign;
    out.high = format.bits == 64 ? out.low : out.high << format.bits | out.low >> (64 - format.bits);
    out.low = format.bits == 64 ? number : out.low << format.bits | number;
  }
  return out;
}

/// Bits of the order word that can be set.
inline std::uint32_t order_bits(const NumberFormat& format) { return format.bits * format.elements; }

template <class Key>
GPUHASH_HD Uint128 to_uint128(const Key& key) {
  if constexpr (sizeof(Key) == 16)
    return key;
  else
    return {key, 0};
}

}  // namespace gpuhash
