#pragma once

#include <cstdint>

#include "shared/hash.hpp"
#include "shared/host_device.hpp"
#include "shared/key_numbers.hpp"

/// Hashes of rows of any width, which host and device compute alike.
namespace gpuhash {

/// The secrets of one numbering. Both factors of each product are blinded by one, so that nobody who does not know them
/// can pick rows that meet; and those that meet by chance do not meet again under others.
struct RowSecrets {
  std::uint64_t begin;
  std::uint64_t word;
  std::uint64_t null;
};

inline RowSecrets row_secrets(std::uint64_t seed) {
  return {hash_key(std::uint64_t{1}, seed), hash_key(std::uint64_t{2}, seed), hash_key(std::uint64_t{3}, seed)};
}

/// The hash of what was before and of two more words.
GPUHASH_HD std::uint64_t hash_more(std::uint64_t hash, std::uint64_t low, std::uint64_t high,
                                   const RowSecrets& secrets) {
  return detail::fold(low ^ secrets.word, high ^ hash);
}

/// The hash of what was before and of a null.
GPUHASH_HD std::uint64_t hash_null(std::uint64_t hash, const RowSecrets& secrets) {
  return detail::fold(secrets.null, hash ^ detail::kHashWhiten);
}

/// Of what was before and of an integer by its value, whatever its dtype.
GPUHASH_HD std::uint64_t hash_value(std::uint64_t hash, std::uint64_t extended, bool is_negative,
                                    const RowSecrets& secrets) {
  return hash_more(hash, extended, is_negative ? 1 : 0, secrets);
}

/// Of what was before and of `bytes` > 0 bytes of numbers, of which load(begin, count) gives `count` in [1, 8] as the
/// low ones of a word. Words may overlap: each is canonical by itself, and begins with a number.
template <class Load>
GPUHASH_HD std::uint64_t hash_bytes(std::uint64_t hash, std::int64_t bytes, const NumberFormat& format,
                                    const RowSecrets& secrets, const Load& load) {
  const auto word = [&](std::int64_t begin, std::int64_t count) {
    return canonical<std::uint64_t>(load(begin, count), format);
  };
  if (bytes <= 8) return hash_more(hash, word(0, bytes), 0, secrets);
  if (bytes <= 16) return hash_more(hash, word(0, 8), word(bytes - 8, 8), secrets);
  std::int64_t begin = 0;
  for (; begin + 16 < bytes; begin += 16) hash = hash_more(hash, word(begin, 8), word(begin + 8, 8), secrets);
  return hash_more(hash, word(bytes - 16, 8), word(bytes - 8, 8), secrets);
}

/// Likewise of a string of any length, which is part of the hash.
template <class Load>
GPUHASH_HD std::uint64_t hash_string(std::uint64_t hash, std::int64_t bytes, const RowSecrets& secrets,
                                     const Load& load) {
  hash += static_cast<std::uint64_t>(bytes) * detail::kHashFinish;
  if (bytes == 0) return hash_more(hash, 0, 0, secrets);
  return hash_bytes(hash, bytes, NumberFormat{8, 1, false, false, false, false, 0}, secrets, load);
}

/// An integer's bits as those of 64.
GPUHASH_HD std::uint64_t extended(std::uint64_t number, const NumberFormat& format) {
  if (!format.is_signed || format.bits == 64) return number;
  const std::uint64_t sign = std::uint64_t{1} << (format.bits - 1);
  return (number ^ sign) - sign;
}

GPUHASH_HD bool is_negative(std::uint64_t extended_number, const NumberFormat& format) {
  return format.is_signed && extended_number >> 63 != 0;
}

}  // namespace gpuhash
