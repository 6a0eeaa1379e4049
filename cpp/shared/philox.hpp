#pragma once

#include <cstdint>

#include "shared/hash.hpp"
#include "shared/host_device.hpp"

/// Philox4x32-10: random numbers without a state, out of a counter and a key (J. K. Salmon, M. A. Moraes, R. O. Dror,
/// D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11, section 3.3).
namespace gpuhash {

struct PhiloxBlock {
  std::uint32_t words[4];
};

/// For one key it is a bijection of counters.
GPUHASH_HD PhiloxBlock philox(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  constexpr std::uint32_t kMultiplier0 = 0xd2511f53u;
  constexpr std::uint32_t kMultiplier1 = 0xcd9e8d57u;
  constexpr std::uint32_t kWeyl0 = 0x9e3779b9u;
  constexpr std::uint32_t kWeyl1 = 0xbb67ae85u;
  constexpr int kRounds = 10;
  std::uint32_t* const words = counter.words;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint32_t high0 = multiply_high(kMultiplier0, words[0]);
    const std::uint32_t low0 = kMultiplier0 * words[0];
    const std::uint32_t high1 = multiply_high(kMultiplier1, words[2]);
    const std::uint32_t low1 = kMultiplier1 * words[2];
    words[0] = high1 ^ words[1] ^ key0;
    words[1] = low1;
    words[2] = high0 ^ words[3] ^ key1;
    words[3] = low0;
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

/// The random numbers of one key of a table, in blocks of 128 bits.
///
/// A key has up to 128 bits, as many as a counter. So a first block is drawn with the key as counter and the seed as
/// key; half of it is the key of all other blocks, and half stands beside their numbers in the counter. The first step
/// is a bijection: no two keys of a table have a block's counter and key in common.
class KeyNumbers {
 public:
  GPUHASH_HD KeyNumbers(std::uint64_t seed, const Uint128& key)
      : start_(philox({{low(key.low), high(key.low), low(key.high), high(key.high)}}, low(seed), high(seed))) {}

  GPUHASH_HD PhiloxBlock block(std::uint64_t number) const {
    return philox({{low(number), high(number), start_.words[2], start_.words[3]}}, start_.words[0], start_.words[1]);
  }

 private:
  GPUHASH_HD static std::uint32_t low(std::uint64_t word) { return static_cast<std::uint32_t>(word); }
  GPUHASH_HD static std::uint32_t high(std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); }

  PhiloxBlock start_;
};

}  // namespace gpuhash
