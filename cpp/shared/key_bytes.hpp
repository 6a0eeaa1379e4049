#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include <gpuhash/dtype.hpp>
#include "shared/host_device.hpp"

/// Keys as the bytes that are hashed.
namespace gpuhash {

/// What floats' bits mean, and which stand for all NaNs.
struct FloatBits {
  std::uint64_t infinity;

  explicit constexpr FloatBits(DType dtype = DType::kFloat64)
      : infinity(dtype == DType::kBFloat16                                ? 0x7f80
                 : dtype == DType::kFloat16                               ? 0x7c00
                 : dtype == DType::kFloat32 || dtype == DType::kComplex64 ? 0x7f800000
                                                                          : 0x7ff0000000000000) {}

  /// Of a number without its sign: the quiet NaN without a payload for every NaN.
  GPUHASH_HD std::uint64_t canonical(std::uint64_t number, std::uint64_t sign) const {
    const std::uint64_t magnitude = number & ~sign;
    if (magnitude > infinity) return infinity | (infinity & (0 - infinity)) >> 1;
    return magnitude == 0 ? 0 : number;
  }
};

/// A reader (xxh3.hpp) of floats of so many bits, in which those that are equal have the same bits. Offsets are those
/// of numbers.
template <class Reader, int bits>
struct FloatReader {
  Reader key;
  FloatBits floats;

  GPUHASH_HD std::uint8_t byte(std::int64_t at) const {  // of a single number of two bytes
    const std::uint64_t number = static_cast<std::uint64_t>(key.byte(1)) << 8 | key.byte(0);
    return static_cast<std::uint8_t>(canonical<16>(number) >> (8 * at));
  }
  GPUHASH_HD std::uint32_t word32(std::int64_t at) const {
    if constexpr (bits == 64)
      return static_cast<std::uint32_t>(word64(at & ~std::int64_t{7}) >> (8 * (at & 4)));
    else
      return static_cast<std::uint32_t>(canonical<32>(key.word32(at)));
  }
  GPUHASH_HD std::uint64_t word64(std::int64_t at) const { return canonical<64>(key.word64(at)); }

 private:
  /// Of a word of `width` bits.
  template <int width>
  GPUHASH_HD std::uint64_t canonical(std::uint64_t word) const {
    constexpr std::uint64_t kLow = ~std::uint64_t{0} >> (64 - bits);
    std::uint64_t out = 0;
    for (int shift = 0; shift < width; shift += bits)
      out |= floats.canonical(word >> shift & kLow, std::uint64_t{1} << (bits - 1)) << shift;
    return out;
  }
};

/// The same of booleans, of which every byte but 0 is 1.
template <class Reader>
struct BoolReader {
  Reader key;

  GPUHASH_HD std::uint8_t byte(std::int64_t at) const { return key.byte(at) != 0; }
  GPUHASH_HD std::uint32_t word32(std::int64_t at) const {
    return static_cast<std::uint32_t>(canonical(key.word32(at)));
  }
  GPUHASH_HD std::uint64_t word64(std::int64_t at) const { return canonical(key.word64(at)); }

 private:
  static GPUHASH_HD std::uint64_t canonical(std::uint64_t word) {
    // Each shift brings bits of the next byte along, of which none gets as far as the lowest bit.
    word |= word >> 4;
    word |= word >> 2;
    word |= word >> 1;
    return word & 0x0101010101010101;
  }
};

/// How the bytes of a dtype's numbers are read.
enum class ByteKind { kPlain, kBool, kFloat16, kFloat32, kFloat64 };

/// A reader that gives equal keys equal bytes.
template <ByteKind kind, class Reader>
GPUHASH_HD auto reader_of(const Reader& key, [[maybe_unused]] const FloatBits& floats) {
  if constexpr (kind == ByteKind::kBool)
    return BoolReader<Reader>{key};
  else if constexpr (kind == ByteKind::kFloat16)
    return FloatReader<Reader, 16>{key, floats};
  else if constexpr (kind == ByteKind::kFloat32)
    return FloatReader<Reader, 32>{key, floats};
  else if constexpr (kind == ByteKind::kFloat64)
    return FloatReader<Reader, 64>{key, floats};
  else
    return key;
}

/// Calls visit with the kind as a constant.
template <class Visit>
void with_byte_kind(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kBool:
      return visit(std::integral_constant<ByteKind, ByteKind::kBool>());
    case DType::kFloat16:
    case DType::kBFloat16:
      return visit(std::integral_constant<ByteKind, ByteKind::kFloat16>());
    case DType::kFloat32:
    case DType::kComplex64:
      return visit(std::integral_constant<ByteKind, ByteKind::kFloat32>());
    case DType::kFloat64:
    case DType::kComplex128:
      return visit(std::integral_constant<ByteKind, ByteKind::kFloat64>());
    default:
      return visit(std::integral_constant<ByteKind, ByteKind::kPlain>());
  }
}

/// Calls visit with the bytes of a row, as a constant where they are frequent ones: the hash of those is short code.
template <ByteKind kind, class Visit>
void with_row_bytes(std::int64_t bytes, Visit visit) {
  const auto visit_one_of = [&]<std::int64_t... lengths>(std::integer_sequence<std::int64_t, lengths...>) {
    const bool is_known = ((bytes == lengths && (visit(std::integral_constant<std::int64_t, lengths>()), true)) || ...);
    if (!is_known) visit(bytes);
  };
  if constexpr (kind == ByteKind::kPlain)
    visit_one_of(std::integer_sequence<std::int64_t, 1, 2, 4, 8, 12, 16, 32>());
  else if constexpr (kind == ByteKind::kFloat32)
    visit_one_of(std::integer_sequence<std::int64_t, 4>());
  else if constexpr (kind == ByteKind::kFloat64)
    visit_one_of(std::integer_sequence<std::int64_t, 8>());
  else
    visit(bytes);
}

}  // namespace gpuhash
