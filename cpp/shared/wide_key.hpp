#pragma once

#include <cstddef>
#include <cstdint>

#include "shared/hash.hpp"
#include "shared/host_device.hpp"

/// Keys of more bytes than a slot has: their fingerprints, one definition for host and device. A key is read as words
/// of 8 bytes, of which the last one has zeros above the key's end.
namespace gpuhash {

/// How a table makes fingerprints. Slots are found by them, and keys by what lies in the rows: so two keys with one
/// fingerprint cost time, and never a key. The second one goes under the next number.
struct Fingerprints {
  std::uint64_t seed;  // a secret of the table: nobody who does not know it can pick keys that meet
  int bits;            // 0 to 63

  /// Of the key's hash. Numbers can be added to it that count keys, and never come to kNoFingerprint.
  GPUHASH_HD std::uint64_t of(std::uint64_t hash) const { return bits == 0 ? 0 : hash >> (64 - bits); }
};

/// A slot that no key has.
inline constexpr std::uint64_t kNoFingerprint = ~std::uint64_t{0};

/// word(i) is the i-th of `bytes` bytes' words. Two words are multiplied with each other, as wyhash does
/// (https://github.com/wangyi-fudan/wyhash): the seed is in both factors, so that nobody knows which words make one 0.
template <class Word>
GPUHASH_HD std::uint64_t hash_words(std::int64_t bytes, std::uint64_t seed, Word word) {
  const std::int64_t words = (bytes + 7) / 8;
  std::uint64_t h = hash_key(static_cast<std::uint64_t>(bytes), seed);
  std::int64_t w = 0;
  for (; w + 1 < words; w += 2) h = detail::fold(word(w) ^ detail::kHashWhiten ^ seed, word(w + 1) ^ h);
  if (w < words) h = detail::fold(word(w) ^ detail::kHashWhiten ^ seed, h ^ detail::kHashFold);
  return hash_key(h, seed);
}

/// What a key's initial row is drawn from, the same in every table.
template <class Word>
GPUHASH_HD Uint128 digest_words(std::int64_t bytes, Word word) {
  return {hash_words(bytes, 0x243f6a8885a308d3ull, word), hash_words(bytes, 0x13198a2e03707344ull, word)};  // pi
}

}  // namespace gpuhash
