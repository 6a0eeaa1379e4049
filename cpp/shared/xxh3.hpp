#pragma once

#include <cstdint>

#include "shared/hash.hpp"
#include "shared/host_device.hpp"

/// XXH3 of 64 and 128 bits, as its specification says: Y. Collet, "xxHash fast digest algorithm",
/// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md. One definition for host and device.
///
/// Bytes come from a reader: byte(at), word32(at) and word64(at) give what lies at an offset, little-endian.
namespace gpuhash::xxh3 {

inline constexpr std::uint64_t kPrime32A = 0x9e3779b1;
inline constexpr std::uint64_t kPrime32B = 0x85ebca77;
inline constexpr std::uint64_t kPrime32C = 0xc2b2ae3d;
inline constexpr std::uint64_t kPrime64A = 0x9e3779b185ebca87;
inline constexpr std::uint64_t kPrime64B = 0xc2b2ae3d27d4eb4f;
inline constexpr std::uint64_t kPrime64C = 0x165667b19e3779f9;
inline constexpr std::uint64_t kPrime64D = 0x85ebca77c2b2ae63;
inline constexpr std::uint64_t kPrime64E = 0x27d4eb2f165667c5;
inline constexpr std::uint64_t kMixA = 0x165667919e3779f9;
inline constexpr std::uint64_t kMixB = 0x9fb21c651e98df25;

inline constexpr int kSecretWords = 24;

/// The specification's 192 bytes as words of the machine.
struct Secret {
  std::uint64_t words[kSecretWords];

  /// The word that begins `shift` bytes after word `index`.
  template <int shift = 0>
  GPUHASH_HD constexpr std::uint64_t at(int index) const {
    if constexpr (shift == 0)
      return words[index];
    else
      return words[index] >> (8 * shift) | words[index + 1] << (64 - 8 * shift);
  }
};

inline constexpr Secret kSecret{{
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
}};

/// Two neighbouring words of the secret as one: constants, which need no memory on a GPU.
template <int index>
inline constexpr std::uint64_t kPair = kSecret.words[index] ^ kSecret.words[index + 1];
/// Likewise of the halves of a word.
template <int index>
inline constexpr std::uint64_t kHalves = (kSecret.words[index] & 0xffffffff) ^ (kSecret.words[index] >> 32);

/// What all keys of a call share.
struct Context {
  std::uint64_t seed = 0;
  Secret plain = kSecret;
  Secret seeded = kSecret;  // that of long keys

  explicit constexpr Context(std::uint64_t a_seed) : seed(a_seed) {
    for (int i = 0; i < kSecretWords; i += 2) {
      seeded.words[i] += seed;
      seeded.words[i + 1] -= seed;
    }
  }
};

GPUHASH_HD constexpr std::uint64_t rotated(std::uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

GPUHASH_HD std::uint64_t avalanche(std::uint64_t x) {
  x = (x ^ x >> 37) * kMixA;
  return x ^ x >> 32;
}

/// That of XXH64, for the shortest keys.
GPUHASH_HD std::uint64_t avalanche_short(std::uint64_t x) {
  x = (x ^ x >> 33) * kPrime64B;
  x = (x ^ x >> 29) * kPrime64C;
  return x ^ x >> 32;
}

/// 1 to 3 bytes and their number in a word.
template <class Reader>
GPUHASH_HD std::uint32_t few_bytes(const Reader& key, std::int64_t length) {
  return static_cast<std::uint32_t>(key.byte(length - 1)) | static_cast<std::uint32_t>(length) << 8 |
         static_cast<std::uint32_t>(key.byte(0)) << 16 | static_cast<std::uint32_t>(key.byte(length >> 1)) << 24;
}

GPUHASH_HD std::uint64_t seed_of_words(std::uint64_t seed) {
  return seed ^ static_cast<std::uint64_t>(reversed_bytes(static_cast<std::uint32_t>(seed))) << 32;
}

/// Of up to 16 bytes.
template <class Reader>
GPUHASH_HD std::uint64_t hash_short(const Reader& key, std::int64_t length, std::uint64_t seed) {
  if (length > 8) {
    const std::uint64_t low = (kPair<3> + seed) ^ key.word64(0);
    const std::uint64_t high = (kPair<5> - seed) ^ key.word64(length - 8);
    return avalanche(static_cast<std::uint64_t>(length) + reversed_bytes(low) + high + detail::fold(low, high));
  }
  if (length > 3) {
    const std::uint64_t both = static_cast<std::uint64_t>(key.word32(0)) << 32 | key.word32(length - 4);
    std::uint64_t x = (kPair<1> - seed_of_words(seed)) ^ both;
    x = (x ^ rotated(x, 49) ^ rotated(x, 24)) * kMixB;
    x = (x ^ ((x >> 35) + static_cast<std::uint64_t>(length))) * kMixB;
    return x ^ x >> 28;
  }
  if (length > 0) return avalanche_short((kHalves<0> + seed) ^ few_bytes(key, length));
  return avalanche_short(seed ^ kPair<7>);
}

template <class Reader>
GPUHASH_HD Uint128 hash_short_wide(const Reader& key, std::int64_t length, std::uint64_t seed) {
  if (length > 8) {
    const std::uint64_t last = key.word64(length - 8);
    const std::uint64_t first = (kPair<4> - seed) ^ key.word64(0) ^ last;
    const std::uint64_t second = (kPair<6> + seed) ^ last;
    std::uint64_t low = first * kPrime64A + (static_cast<std::uint64_t>(length - 1) << 54);
    std::uint64_t high = multiply_high(first, kPrime64A) + second + (second & 0xffffffff) * (kPrime32B - 1);
    low ^= reversed_bytes(high);
    high = multiply_high(low, kPrime64B) + high * kPrime64B;
    return {avalanche(low * kPrime64B), avalanche(high)};
  }
  if (length > 3) {
    const std::uint64_t both = key.word32(0) | static_cast<std::uint64_t>(key.word32(length - 4)) << 32;
    const std::uint64_t x = (kPair<2> + seed_of_words(seed)) ^ both;
    const std::uint64_t factor = kPrime64A + (static_cast<std::uint64_t>(length) << 2);
    std::uint64_t low = x * factor;
    const std::uint64_t high = multiply_high(x, factor) + (low << 1);
    low ^= high >> 3;
    low = (low ^ low >> 35) * kMixB;
    return {low ^ low >> 28, avalanche(high)};
  }
  if (length > 0) {
    const std::uint32_t bytes = few_bytes(key, length);
    const std::uint32_t reversed = reversed_bytes(bytes);
    return {avalanche_short((kHalves<0> + seed) ^ bytes),
            avalanche_short((kHalves<1> - seed) ^ (reversed << 13 | reversed >> 19))};
  }
  return {avalanche_short(seed ^ kPair<8>), avalanche_short(seed ^ kPair<10>)};
}

/// Mixes 16 bytes at an offset with the secret.
template <int shift = 0, class Reader>
GPUHASH_HD std::uint64_t mixed(const Reader& key, std::int64_t at, const Secret& secret, int index,
                               std::uint64_t seed) {
  return detail::fold(key.word64(at) ^ (secret.at<shift>(index) + seed),
                      key.word64(at + 8) ^ (secret.at<shift>(index + 1) - seed));
}

/// Of 17 to 240 bytes.
template <class Reader>
GPUHASH_HD std::uint64_t hash_middle(const Reader& key, std::int64_t length, const Context& context) {
  const Secret& secret = context.plain;
  const std::uint64_t seed = context.seed;
  std::uint64_t sum = static_cast<std::uint64_t>(length) * kPrime64A;
  if (length <= 128) {
    const int rounds = static_cast<int>((length + 31) >> 5);
    for (int i = 0; i < rounds; ++i) {
      sum += mixed(key, 16 * i, secret, 4 * i, seed);
      sum += mixed(key, length - 16 * i - 16, secret, 4 * i + 2, seed);
    }
    return avalanche(sum);
  }
  const int chunks = static_cast<int>(length >> 4);
  for (int i = 0; i < 8; ++i) sum += mixed(key, 16 * i, secret, 2 * i, seed);
  sum = avalanche(sum);
  for (int i = 8; i < chunks; ++i) sum += mixed<3>(key, 16 * i, secret, 2 * (i - 8), seed);
  return avalanche(sum + mixed<7>(key, length - 16, secret, 14, seed));
}

/// Two sums, to which 32 bytes go at a time.
struct Sums {
  std::uint64_t low;
  std::uint64_t high;

  template <int shift = 0, class Reader>
  GPUHASH_HD void add(const Reader& key, std::int64_t first, std::int64_t second, const Secret& secret, int index,
                      std::uint64_t seed) {
    low += mixed<shift>(key, first, secret, index, seed);
    high += mixed<shift>(key, second, secret, index + 2, seed);
    low ^= key.word64(second) + key.word64(second + 8);
    high ^= key.word64(first) + key.word64(first + 8);
  }
};

template <class Reader>
GPUHASH_HD Uint128 hash_middle_wide(const Reader& key, std::int64_t length, const Context& context) {
  const Secret& secret = context.plain;
  const std::uint64_t seed = context.seed;
  Sums sums{static_cast<std::uint64_t>(length) * kPrime64A, 0};
  if (length <= 128) {
    for (int i = static_cast<int>((length + 31) >> 5) - 1; i >= 0; --i)
      sums.add(key, 16 * i, length - 16 * i - 16, secret, 4 * i, seed);
  } else {
    const int chunks = static_cast<int>(length >> 5);
    for (int i = 0; i < 4; ++i) sums.add(key, 32 * i, 32 * i + 16, secret, 4 * i, seed);
    sums = {avalanche(sums.low), avalanche(sums.high)};
    for (int i = 4; i < chunks; ++i) sums.add<3>(key, 32 * i, 32 * i + 16, secret, 4 * (i - 4), seed);
    sums.add<7>(key, length - 16, length - 32, secret, 12, 0 - seed);
  }
  const std::uint64_t high =
      sums.low * kPrime64A + sums.high * kPrime64D + (static_cast<std::uint64_t>(length) - seed) * kPrime64B;
  return {avalanche(sums.low + sums.high), 0 - avalanche(high)};
}

/// The state of keys of more than 240 bytes: eight lanes, to which 64 bytes go at a time.
struct Lanes {
  static constexpr int kStripe = 64;
  static constexpr int kStripesPerBlock = 16;
  std::uint64_t lanes[8] = {kPrime32C, kPrime64A, kPrime64B, kPrime64C, kPrime64D, kPrime32B, kPrime64E, kPrime32A};

  template <int shift = 0, class Reader>
  GPUHASH_HD void add(const Reader& key, std::int64_t at, const Secret& secret, int index) {
    for (int i = 0; i < 8; ++i) {
      const std::uint64_t word = key.word64(at + 8 * i);
      const std::uint64_t x = word ^ secret.at<shift>(index + i);
      lanes[i ^ 1] += word;
      lanes[i] += (x & 0xffffffff) * (x >> 32);
    }
  }

  GPUHASH_HD void scramble(const Secret& secret) {
    for (int i = 0; i < 8; ++i) lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ secret.at(kSecretWords - 8 + i)) * kPrime32A;
  }

  template <class Reader>
  GPUHASH_HD void add_all(const Reader& key, std::int64_t length, const Secret& secret) {
    const std::int64_t stripes = (length - 1) / kStripe;  // but for the last 64 bytes
    for (std::int64_t stripe = 0; stripe < stripes; ++stripe) {
      const int in_block = static_cast<int>(stripe % kStripesPerBlock);
      if (stripe != 0 && in_block == 0) scramble(secret);
      add(key, stripe * kStripe, secret, in_block);
    }
    if (stripes % kStripesPerBlock == 0) scramble(secret);
    add<1>(key, length - kStripe, secret, 15);
  }

  template <int shift>
  GPUHASH_HD std::uint64_t merged(std::uint64_t sum, const Secret& secret, int index) const {
    for (int i = 0; i < 8; i += 2)
      sum += detail::fold(lanes[i] ^ secret.at<shift>(index + i), lanes[i + 1] ^ secret.at<shift>(index + i + 1));
    return avalanche(sum);
  }
};

/// Of more than 240 bytes; `wide`: of both halves, else the high one is 0.
template <class Reader>
GPUHASH_HD Uint128 hash_long(const Reader& key, std::int64_t length, const Secret& secret, bool wide) {
  Lanes state;
  state.add_all(key, length, secret);
  const auto bytes = static_cast<std::uint64_t>(length);
  return {state.merged<3>(bytes * kPrime64A, secret, 1), wide ? state.merged<5>(~(bytes * kPrime64B), secret, 14) : 0};
}

/// XXH3_64bits_withSeed.
template <class Reader>
GPUHASH_HD std::uint64_t hash64(const Reader& key, std::int64_t length, const Context& context) {
  if (length <= 16) return hash_short(key, length, context.seed);
  if (length <= 240) return hash_middle(key, length, context);
  return hash_long(key, length, context.seeded, false).low;
}

/// XXH3_128bits_withSeed.
template <class Reader>
GPUHASH_HD Uint128 hash128(const Reader& key, std::int64_t length, const Context& context) {
  if (length <= 16) return hash_short_wide(key, length, context.seed);
  if (length <= 240) return hash_middle_wide(key, length, context);
  return hash_long(key, length, context.seeded, true);
}

}  // namespace gpuhash::xxh3
