#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "shared/hash.hpp"
#include "shared/host_device.hpp"

/// How the distinct keys of a batch are found and numbered; what the host's and the GPU's factorization share. (For
/// `unique` and `factorize` of keys of up to 8 bytes the host has another way: host/factorize/word_factorization.hpp.
/// In large batches the GPU finds bits and links without a batch table, and in small ones with a table in shared
/// memory: cuda/factorize/parts.cuh and few_keys.cuh.)
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

/// isin: a table of the test elements, in which the elements are looked up; or, where there are fewer elements than one
/// in `costs` test elements, the other way round, because building a table costs so many times as much as a look.
inline bool is_table_of_tests(std::int64_t elements, std::int64_t tests, std::int64_t costs = 4) {
  return tests / costs <= elements;
}

/// How a batch table gets its size. A table for the distinct keys may fit a cache where one for all keys does not; how
/// many keys are distinct is estimated from a sample. Where there were more, so that the table fills up, insertion
/// gives up early and is done again with a larger one.
namespace batch_size {

inline constexpr std::int64_t kMaxSample = std::int64_t{1} << 18;
/// A probe sequence this long tells that the table is too full. At the load below, the longest of 2^25 has some 130.
inline constexpr std::int64_t kMaxProbes = 256;
/// Once a GPU's table is known to be too full, threads give up after this many.
inline constexpr std::int64_t kPatience = 32;

/// Slots of a table for that many distinct keys: load 4/7.
inline std::int64_t slots_for(std::int64_t distinct) { return std::max<std::int64_t>(64, distinct + distinct / 4 * 3); }

/// A power of two.
inline std::int64_t sample_size(std::int64_t count, std::int64_t most = kMaxSample) {
  return std::min(static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count / 16))), most);
}

/// Position of sample j: one at random in each of `samples` equal parts, so that periodic batches do not deceive; and
/// the parts in an order in which those of the first quarter, or sixteenth, of the sample are spread evenly, too.
GPUHASH_HD std::int64_t sample_position(std::int64_t j, std::int64_t samples, std::int64_t count) {
  const std::int64_t golden = (samples / 8 * 5 - samples / 128) | 1;  // about 0.618 of it; odd: parts do not repeat
  const std::int64_t part = (j * golden) & (samples - 1);
  const std::int64_t length = count / samples;
  return part * length + static_cast<std::int64_t>(multiply_high(hash_key(static_cast<std::uint64_t>(j), 0),
                                                                 static_cast<std::uint64_t>(length)));
}

/// Hardly more distinct keys than these: the later a sample, the more seldom is its key new, so that none of those that
/// are not in the sample is new more often than the last quarter of it.
inline std::int64_t most_distinct(const std::uint32_t* firsts, std::int64_t samples, std::int64_t count) {
  std::int64_t seen = 0;
  std::int64_t before = 0;
  for (std::int64_t w = 0; w < samples / 32; ++w) {
    if (w == samples / 4 * 3 / 32) before = seen;
    seen += count_bits(firsts[w]);
  }
  const double rate = static_cast<double>(seen - before) / static_cast<double>(samples / 4);
  return seen + static_cast<std::int64_t>(rate * static_cast<double>(count - samples));
}

/// Two guesses of the number of distinct keys of the whole batch, from the first bits of the sample.
struct Guesses {
  /// If all keys come about equally often, there are so many of them, D, that D (1 - exp(-samples / D)) are seen in the
  /// sample.
  double uniform;
  /// If few come often and many seldom, the number of distinct keys grows by a power of the number of draws, which is
  /// measured between a sixteenth, a quarter and all of the sample, and falls on as it falls there. 0: the first
  /// sixteenth has fewer keys twice than were asked for.
  double skewed;
};

/// The power of a small sample hangs on a few keys that its first sixteenth happens to have twice, and may be far too
/// large: it counts only where that has `least_repeated` of them.
inline Guesses guess_distinct(const std::uint32_t* firsts, std::int64_t samples, std::int64_t count,
                              std::int64_t least_repeated) {
  const auto seen = [&](std::int64_t first_samples) {
    std::int64_t sum = 0;
    for (std::int64_t w = 0; w < first_samples / 32; ++w) sum += count_bits(firsts[w]);
    return static_cast<double>(sum);
  };
  const double all = seen(samples);
  const double quarter = seen(samples / 4);
  const double sixteenth = seen(samples / 16);
  const auto m = static_cast<double>(samples);
  const auto n = static_cast<double>(count);

  const auto expected = [](double keys, double draws) { return -keys * std::expm1(-draws / keys); };
  if (expected(n, m) <= all) return {n, 0};
  double low = all;
  double high = n;
  for (int step = 0; step < 40; ++step) {
    const double middle = (low + high) / 2;
    (expected(middle, m) < all ? low : high) = middle;
  }
  const double uniform = expected(high, n);
  if (m / 16 - sixteenth < static_cast<double>(least_repeated)) return {uniform, 0};

  const double before = 1 - std::log(quarter / sixteenth) / std::log(4.0);  // what the powers lack to 1
  double lack = 1 - std::log(all / quarter) / std::log(4.0);
  const double growth = before > 0 ? std::clamp(lack / before, 1.0, 4.0) : 4.0;
  double skewed = all;
  for (double rest = n / m; rest > 1; rest /= 4) {
    lack *= growth;
    skewed *= std::pow(std::min(rest, 4.0), std::max(0.0, 1 - lack));
  }
  return {uniform, skewed};
}

/// Of a guess: all keys where it is more than `most` of them, and otherwise a few more.
inline std::int64_t as_estimate(double distinct, std::int64_t count, double most) {
  if (distinct > most * static_cast<double>(count)) return count;
  return static_cast<std::int64_t>(distinct) + std::min<std::int64_t>(1024, count / 16);
}

/// Distinct keys of the whole batch, with something for safety: the larger guess counts. For 2^25 draws and 2^18
/// samples, uniform ones of 10^3 to 2^25 keys and Zipf-distributed ones with s = 0.8 to 1.5, it is 0.98 to 1.7 times
/// what is true.
inline std::int64_t estimate(const std::uint32_t* firsts, std::int64_t samples, std::int64_t count,
                             std::int64_t least_repeated = 0) {
  const Guesses guesses = guess_distinct(firsts, samples, count, least_repeated);
  return as_estimate(std::max(1.05 * guesses.uniform, 1.15 * guesses.skewed), count, 0.5);
}

/// Likewise, of few samples, for a table that gets room for half as many keys more, and is built again where it turns
/// out twice too large: what harms is less than 0.6 or more than twice of what is true. The power that so few samples
/// tell of keys of which few come often is beyond that for a quarter of such batches (of 2^16 to 2^24 n-grams or keys
/// from twelve other distributions, 0.08 to 6 times), three quarters of its geometric mean with most_distinct() for a
/// tenth, 0.37 to 2.7 times.
inline std::int64_t estimate_for_growth(const std::uint32_t* firsts, std::int64_t samples, std::int64_t count,
                                        std::int64_t least_repeated) {
  const auto [uniform, skewed] = guess_distinct(firsts, samples, count, least_repeated);
  const auto most = static_cast<double>(most_distinct(firsts, samples, count));
  return as_estimate(skewed > uniform ? 0.75 * std::sqrt(skewed * most) : 1.05 * uniform, count, 2.0 / 3);
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
