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
  bool is_complex;  // each two floats are a number
  bool is_bool;
  std::uint64_t infinity;  // floats: the bits of +infinity; above them lie the NaNs

  /// Is each bit pattern a key of its own?
  GPUHASH_HD bool compares_bits() const { return !is_float && !is_bool; }
};

inline NumberFormat number_format(DType dtype, std::int64_t elements) {
  const bool complex = is_complex(dtype);
  NumberFormat format{};
  format.bits = 8 * static_cast<std::uint32_t>(itemsize(dtype)) / (complex ? 2 : 1);
  format.elements = static_cast<std::uint32_t>(elements) * (complex ? 2 : 1);
  format.is_float = dtype >= DType::kFloat16;
  format.is_complex = complex;
  format.is_bool = dtype == DType::kBool;
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

GPUHASH_HD std::uint64_t canonical_nan(const NumberFormat& format) { return format.infinity | 1; }

GPUHASH_HD std::uint64_t canonical_float(std::uint64_t number, const NumberFormat& format) {
  const std::uint64_t magnitude = number & (low_bits(format.bits) >> 1);
  if (magnitude > format.infinity) return canonical_nan(format);
  return magnitude == 0 ? 0 : number;
}

GPUHASH_HD std::uint64_t canonical_floats(std::uint64_t word, const NumberFormat& format) {
  if (format.bits == 64) return canonical_float(word, format);
  std::uint64_t out = 0;
  for (std::uint32_t shift = 0; shift < 64; shift += format.bits)
    out |= canonical_float(word >> shift & low_bits(format.bits), format) << shift;
  return out;
}

/// 1 for each byte that is not 0: callers' arrays may hold other bytes, and all of them are true.
GPUHASH_HD std::uint64_t canonical_bools(std::uint64_t word) {
  // Each shift brings bits of the next byte along, of which none gets as far as the lowest bit.
  word |= word >> 4;
  word |= word >> 2;
  word |= word >> 1;
  return word & 0x0101010101010101;
}

GPUHASH_HD std::uint64_t canonical_word(std::uint64_t word, const NumberFormat& format) {
  return format.is_bool ? canonical_bools(word) : canonical_floats(word, format);
}

/// A canonical number as an unsigned one of the same order; NaN comes last.
GPUHASH_HD std::uint64_t ordered(std::uint64_t number, const NumberFormat& format) {
  const std::uint64_t sign = std::uint64_t{1} << (format.bits - 1);
  if (format.is_signed) return number ^ sign;
  if (!format.is_float) return number;
  const std::uint64_t negative = 0 - (number >> (format.bits - 1));  // no branch: signs come as they like
  return number ^ ((negative & low_bits(format.bits)) | sign);
}

/// The same for a complex number's parts, in place. NumPy's order, which is not that of the pairs: numbers without NaN
/// come first, then those with a real part alone, by that, then those with an imaginary part alone, by that, then NaN.
GPUHASH_HD void order_complex(std::uint64_t& real, std::uint64_t& imaginary, const NumberFormat& format) {
  const bool real_is_nan = real == canonical_nan(format);
  const bool imaginary_is_nan = imaginary == canonical_nan(format);
  real = ordered(real, format);
  imaginary = ordered(imaginary, format);
  if (!real_is_nan && !imaginary_is_nan) return;
  if (!real_is_nan) imaginary = real;
  // All numbers are below these three, which are NaNs as well.
  real = ordered(format.infinity, format) + (real_is_nan ? 2 : 1) + (real_is_nan && imaginary_is_nan ? 1 : 0);
}

}  // namespace detail

/// Equal words for equal keys.
template <class Key>
GPUHASH_HD Key canonical(const Key& key, const NumberFormat& format) {
  if (format.compares_bits()) return key;
  if constexpr (sizeof(Key) == 16)
    return {detail::canonical_word(key.low, format), detail::canonical_word(key.high, format)};
  else
    return static_cast<Key>(detail::canonical_word(key, format));
}

/// Is a number, or a part of a complex one, NaN? `Word` is as wide as the `elements` of the entry.
template <class Word>
GPUHASH_HD bool has_nan(const Word* entry, const NumberFormat& format) {
  bool found = false;
  for (std::uint32_t e = 0; e < format.elements; ++e)
    found |= (entry[e] & detail::low_bits(format.bits) >> 1) > format.infinity;
  return found;
}

/// visit() is called with a word as wide as the numbers of floats.
template <class Visit>
void visit_float_word(const NumberFormat& format, const Visit& visit) {
  if (format.bits == 16)
    visit(std::uint16_t{});
  else if (format.bits == 32)
    visit(std::uint32_t{});
  else
    visit(std::uint64_t{});
}

/// What is given back of equal keys: the first one bit for bit, but of booleans what they mean.
template <class Key>
GPUHASH_HD Key given_back(const Key& key, const NumberFormat& format) {
  return format.is_bool ? canonical(key, format) : key;
}

/// An unsigned number whose order is that of the canonical keys: the first number counts most.
GPUHASH_HD Uint128 order_word(const Uint128& key, const NumberFormat& format) {
  const auto number_at = [&](std::uint32_t e) {
    const std::uint32_t shift = e * format.bits;
    return (shift < 64 ? key.low >> shift : key.high >> (shift - 64)) & detail::low_bits(format.bits);
  };
  Uint128 out{0, 0};
  const auto append = [&](std::uint64_t number) {
    out.high = format.bits == 64 ? out.low : out.high << format.bits | out.low >> (64 - format.bits);
    out.low = format.bits == 64 ? number : out.low << format.bits | number;
  };
  if (format.is_complex) {
    for (std::uint32_t e = 0; e < format.elements; e += 2) {
      std::uint64_t real = number_at(e);
      std::uint64_t imaginary = number_at(e + 1);
      detail::order_complex(real, imaginary, format);
      append(real);
      append(imaginary);
    }
    return out;
  }
  for (std::uint32_t e = 0; e < format.elements; ++e) append(detail::ordered(number_at(e), format));
  return out;
}

/// Can keys be made of their order words? Those of one number can, but for complex ones.
inline bool is_order_reversible(const NumberFormat& format) { return format.elements == 1; }

/// The canonical key that has that order word, of a format whose order is reversible.
GPUHASH_HD std::uint64_t key_of_order(std::uint64_t order, const NumberFormat& format) {
  const std::uint64_t sign = std::uint64_t{1} << (format.bits - 1);
  if (format.is_signed) return order ^ sign;
  if (!format.is_float) return order;
  const std::uint64_t negative = (order >> (format.bits - 1)) - 1;
  return order ^ ((negative & detail::low_bits(format.bits)) | sign);
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
