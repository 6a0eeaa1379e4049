#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "annotations.hpp"
#include "hash.hpp"

/// How the distinct keys of a batch are found and numbered; what the host's and the GPU's set routines share.
///
/// A *batch table* is an open-addressing table with linear probing that lives as long as one call. A slot holds a key
/// and the first position at which the key has been met so far. Threads insert in no order, so three arrays over the
/// positions sort it out:
///
///   first  one bit per position: its key occurs here for the first time. Who puts a key into the table flips the bit
///          of its position. Who finds the key with a later position than his own takes its place, flips his own bit
///          and the other's. Flips commute, so in the end exactly one bit per key is set: that of the least position.
///   link   for positions whose bit is not set: a smaller position of the same key. Who was displaced is linked by the
///          one who did it, so that every chain of links ends at the first occurrence; nearly all have one step.
///   ranks  per 32 positions, their bits and the number of bits set before them: the id of a key in order of first
///          occurrence is the rank of its bit.
///
/// So the answers do not depend on timing, and keys that occur once, and links of one step, never touch the table
/// again. The link of a key that comes often leads to one of the few cache lines of ranks that such keys share.
namespace gpuhash {

/// Bits and rank of 32 positions.
template <class Position>
struct Rank {
  Position before;  // first occurrences at positions below
  std::uint32_t bits;
};

GPUHASH_HD int count_bits(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __popc(bits);
#else
  // Without a machine instruction that every processor has, __builtin_popcount is a call.
  bits -= bits >> 1 & 0x55555555u;
  bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
  return static_cast<int>(((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
#endif
}

/// Does a key occur at i for the first time? Then `id` is its rank.
template <class Position>
GPUHASH_HD bool rank_of(const Rank<Position>& rank, std::int64_t i, std::int64_t& id) {
  const std::uint32_t bit = static_cast<std::uint32_t>(i) % 32;
  if ((rank.bits >> bit & 1) == 0) return false;
  id = static_cast<std::int64_t>(rank.before) + count_bits(rank.bits & ((1u << bit) - 1));
  return true;
}

/// The rank of the first occurrence that the links from position `i` lead to.
template <class Position>
GPUHASH_HD std::int64_t follow_links(const Rank<Position>* ranks, const Position* links, std::int64_t i) {
  std::int64_t id = 0;
  while (!rank_of(ranks[static_cast<std::uint64_t>(i) / 32], i, id)) i = static_cast<std::int64_t>(links[i]);
  return id;
}

/// Batches below this number of keys have 32-bit positions; the largest words are marks.
inline constexpr std::int64_t kMaxNarrowBatch = std::numeric_limits<std::uint32_t>::max() - 1;

/// isin: a table of the test elements, in which the elements are looked up; or, where these are much fewer, the other
/// way round, because building a table costs some times as much as a look into it.
inline bool is_table_of_tests(std::int64_t elements, std::int64_t tests) { return tests / 4 <= elements; }

/// How a batch table gets its size. A table for the distinct keys may fit a cache where one for all keys does not; how
/// many keys are distinct is estimated from a sample. Where there were more, so that the table fills up, insertion
/// gives up early and is done again with a larger one.
namespace batch_size {

inline constexpr std::int64_t kMaxSample = std::int64_t{1} << 18;
/// A probe sequence this long tells that the table is too full. At the load below, the longest of 2^25 has some 130.
inline constexpr std::int64_t kMaxProbes = 256;

inline std::int64_t sample_size(std::int64_t count) { return std::min(count / 16, kMaxSample); }

/// Position of sample j: one at random in each of `samples` equal parts, so that periodic batches do not deceive.
GPUHASH_HD std::int64_t sample_position(std::int64_t j, std::int64_t samples, std::int64_t count) {
  const std::int64_t stride = count / samples;
  return j * stride + static_cast<std::int64_t>(
                          multiply_high(hash_key(static_cast<std::uint64_t>(j)), static_cast<std::uint64_t>(stride)));
}

/// Slots of a table for that many distinct keys: load 4/7.
inline std::int64_t slots_for(std::int64_t distinct) { return std::max<std::int64_t>(64, distinct + distinct / 4 * 3); }

/// Distinct keys of the whole batch, if all of them come about equally often; some more for safety.
inline std::int64_t estimate(std::int64_t sampled, std::int64_t samples, std::int64_t count) {
  // The number of keys D for which D (1 - exp(-samples / D)) are seen in the sample: by bisection.
  const auto m = static_cast<double>(samples);
  double low = static_cast<double>(sampled);
  double high = static_cast<double>(count);
  const auto seen = [m](double d) { return -d * std::expm1(-m / d); };
  if (seen(high) <= static_cast<double>(sampled)) return count;
  for (int step = 0; step < 40; ++step) {
    const double middle = (low + high) / 2;
    (seen(middle) < static_cast<double>(sampled) ? low : high) = middle;
  }
  const double distinct = 1.05 * -high * std::expm1(-static_cast<double>(count) / high);
  return distinct > static_cast<double>(count) / 2 ? count : static_cast<std::int64_t>(distinct) + 1024;
}

/// A larger number of keys than `assumed`, after insertion has found `found` distinct ones and given up on `given_up`
/// keys of `tried`.
inline std::int64_t next_estimate(std::int64_t assumed, std::int64_t found, std::int64_t given_up, std::int64_t tried,
                                  std::int64_t count) {
  const double part = static_cast<double>(tried) / static_cast<double>(count);
  const double expected = static_cast<double>(found + given_up) / part;
  if (expected >= static_cast<double>(count)) return count;
  return std::min(count, std::max(2 * assumed, static_cast<std::int64_t>(expected)));
}

}  // namespace batch_size

}  // namespace gpuhash
