#pragma once

#include <cstdint>

#include "shared/host_device.hpp"

/// The hash function, one definition for host and device: a saved or moved table is found with it on either side.
namespace gpuhash {

/// A 16-byte key as two words. Compares as bits.
struct alignas(16) Uint128 {
  std::uint64_t low;
  std::uint64_t high;

  friend GPUHASH_HD constexpr bool operator==(const Uint128& a, const Uint128& b) {
    return ((a.low ^ b.low) | (a.high ^ b.high)) == 0;
  }
};

namespace detail {

/// Both halves of a 64 x 64-bit product, folded: every input bit reaches every output bit but for the few near the
/// ends. The folded multiplication is that of wyhash (https://github.com/wangyi-fudan/wyhash).
GPUHASH_HD std::uint64_t fold(std::uint64_t a, std::uint64_t b) { return multiply_high(a, b) ^ (a * b); }

inline constexpr std::uint64_t kHashWhiten = 0x9e3779b97f4a7c15ull;
inline constexpr std::uint64_t kHashFold = 0xd1342543de82ef95ull;
inline constexpr std::uint64_t kHashFinish = 0xbf58476d1ce4e5b9ull;

}  // namespace detail

/// Two secrets of a table. The first is part of every hash, so that nobody who does not know it can pick keys that
/// meet. The second comes in late in a probe sequence (Probe::next): tables have their own from the start, also where
/// the first is the one that all tables begin with.
struct Seeds {
  std::uint64_t hash = 0;
  std::uint64_t late = 0;
};

/// Keys that differ anywhere get unrelated values: sequential, strided and bit-reversed keys spread like random ones.
/// Who knows the seed can pick keys that meet, which costs time and never a key.
GPUHASH_HD std::uint64_t hash_key(std::uint64_t key, std::uint64_t seed) {
  std::uint64_t h = detail::fold(key ^ detail::kHashWhiten ^ seed, detail::kHashFold);
  h ^= h >> 32;
  return h * detail::kHashFinish;
}

GPUHASH_HD std::uint64_t hash_key(std::uint32_t key, std::uint64_t seed) {
  return hash_key(static_cast<std::uint64_t>(key), seed);
}

/// One word after the other, each folded with a constant: no value of one word can hide the other. The seed comes into
/// both folds: whoever could compute the first one could pick pairs that agree after it.
GPUHASH_HD std::uint64_t hash_key(const Uint128& key, std::uint64_t seed) {
  return hash_key(
      detail::fold(key.low ^ detail::kHashFinish ^ seed, detail::kHashFold) + key.high * detail::kHashWhiten, seed);
}

/// Multiplication by a secret odd number; the high bits are universal (M. Dietzfelbinger et al., "A reliable randomized
/// algorithm for the closest-pair problem", 1997): any two keys meet by chance alone, for whoever does not know it.
GPUHASH_HD std::uint32_t late_hash(std::uint64_t key, std::uint64_t secret) {
  return static_cast<std::uint32_t>((key * (secret | 1)) >> 32);
}
GPUHASH_HD std::uint32_t late_hash(std::uint32_t key, std::uint64_t secret) {
  return late_hash(static_cast<std::uint64_t>(key), secret);
}
GPUHASH_HD std::uint32_t late_hash(const Uint128& key, std::uint64_t secret) {
  return static_cast<std::uint32_t>((key.low * (secret | 1) + key.high * ((secret << 32 | secret >> 32) | 1)) >> 32);
}

}  // namespace gpuhash
