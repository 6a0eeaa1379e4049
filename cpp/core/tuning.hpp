#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include <gpuhash/export.hpp>

/// Every threshold that a measurement chose, where a table or `unique` and its like pick one of several ways. They
/// decide how fast a call is, and how much memory it takes; never what it answers.
namespace gpuhash {

/// One number. Any thread may read it at any time, at the price of a load.
class Threshold {
 public:
  static constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

  constexpr explicit Threshold(std::int64_t value, std::int64_t least = 0, std::int64_t most = kAny)
      : value_(value), least_(least), most_(most) {}

  operator std::int64_t() const noexcept { return value_.load(std::memory_order_relaxed); }
  /// Returns the value of before. std::invalid_argument for one outside of [least, most].
  std::int64_t set(std::int64_t value);

 private:
  std::atomic<std::int64_t> value_;
  const std::int64_t least_;
  const std::int64_t most_;
};

/// All of them, for the whole process. Tests and benchmarks change them, by set_threshold(), and only while no call is
/// under way: a call may read one twice. A unit is part of each name: `_keys`, `_slots`, `_bytes`, `_bits`; a name
/// without one is a ratio.
struct Tuning {
  // ---- Batches in parts (cpp/table/hash_table.cpp) ----

  /// Batches are cut to this many keys, so that a key's position in its batch fits the 32-bit tags that elect writers.
  Threshold most_batch_keys{std::int64_t{1} << 31, 1, std::int64_t{1} << 31};
  /// Distinct keys are counted in chunks of at least this many, so that the count costs few waits.
  Threshold count_chunk_keys{std::int64_t{1} << 20, 1};
  /// Absent keys are listed in pieces of this many, so that a batch of any length takes no more memory for it.
  Threshold listed_keys{std::int64_t{1} << 22, 1};
  /// A trial is not begun if the memory set aside for it might have to be larger than this.
  Threshold most_spare_bytes{std::int64_t{1} << 28};
  /// In smaller batches, the host does not look in the middle whether the keys were picked to meet.
  Threshold least_watched_keys{std::int64_t{1} << 10};

  // ---- Tables with keys of more than 16 bytes (cpp/table/wide_key_table.cpp) ----

  /// Of a key's fingerprint, in tables that are made from now on. Few bits let tests see keys that share one.
  Threshold fingerprint_bits{63, 0, 63};

  // ---- Forecasts on the host (cpp/table/forecast.cpp). "Times": how much longer it takes without, on an EPYC of the
  // fourth generation; docs/dead-ends.md has the figures, and what was taken out.

  /// Keys of a large batch by which its share of duplicates, and of new keys, is judged; a 64th of a larger batch, up
  /// to `most_sample_keys` (3.1 times, 2^24 n-grams, third generation).
  Threshold sample_keys{std::int64_t{1} << 14, 16};
  Threshold most_sample_keys{std::int64_t{1} << 18, 16};
  /// All keys of smaller batches are taken to be distinct, unless the batch may be counted first (1.7 times, Zipf 1.05,
  /// 7000 keys, whose number a sample tells badly).
  Threshold least_sampled_keys{std::int64_t{1} << 16};
  /// New keys are looked for in runs of this many; a sample has as many runs as make it.
  Threshold sample_run_keys{256, 1};
  /// The new keys of a batch of at least this many are guessed from a sample (2.9 times, half of 2^14 distinct, new
  /// table). Those of smaller ones are counted: a table with room for them is not to grow because of a guess.
  Threshold least_guessed_keys{std::int64_t{1} << 14};
  /// Likewise, for a table of at most `new_table_slots` slots, as one that was made without room has (2.6 times, 10,000
  /// distinct keys).
  Threshold least_guessed_in_new_keys{std::int64_t{1} << 11};
  Threshold new_table_slots{16};
  /// Where the last batches' keys were there, those of a batch of at least this many keys are taken to be there, too,
  /// without a sample (2.1 times, 2^11 known keys).
  Threshold least_trusted_keys{std::int64_t{1} << 10};
  /// A table that is this many times smaller than a batch gets room for so large a part of it, even if a sample shows
  /// fewer new keys (2.1 times, 10 keys in 2^16). Whatever fits is inserted uncounted, so few would be inserted in many
  /// parts; and to rebuild such a table, before and afterwards, costs little.
  Threshold open_part{8, 1};
  /// Not for a larger batch, as memory is set aside for all of its keys.
  Threshold most_open_keys{std::int64_t{1} << 20};

  // ---- Batches with one value that the host counts first (cpp/table/forecast.cpp, counted_batch.cpp) ----

  /// Smaller batches are not counted first. (To count none: 5.6 times, 10 keys in 2^18.)
  Threshold least_counted_keys{std::int64_t{1} << 13};
  /// Batches of up to so many keys `unique` always counts without a partition, so that they may have more distinct ones
  /// (1.8 times, a 32nd of 2^14 int32 distinct).
  Threshold fits_cache_keys{std::int64_t{1} << 16};
  /// Batches of at least so many keys of 8 bytes are large enough for a partition to pay (1.7 times, a 20th of 2^17
  /// distinct, two threads).
  Threshold fills_parts_keys{std::int64_t{1} << 18};
  /// A batch for which there may not be room is faster counted first where this part of a sample repeats others, even
  /// if many keys are distinct: counting sets aside the few that come often (1.9 times, Zipf 1.3, 2^17).
  Threshold skewed_percent{25};

  // ---- Keys of any width (gpuhash/frames/keys.py) ----

  /// For tests: the fingerprints of so many tries have 3 bits, so that different rows meet.
  Threshold narrow_fingerprints{0};

  // ---- `unique` and its like on the host (cpp/host/) ----

  /// Batches of fewer keys of up to 8 bytes have lists of words with 32-bit positions.
  Threshold word_list_keys{1'000'000'000, 0, 1'000'000'000};
  /// Batches of fewer keys have 32-bit positions otherwise; the largest words are marks. On GPUs, too.
  Threshold narrow_position_keys{std::numeric_limits<std::uint32_t>::max() - 1, 0,
                                 std::numeric_limits<std::uint32_t>::max() - 1};
  /// Batches of up to so many keys are looked through for whether they ascend, which needs no hash then. The look ends
  /// at the first key that is less than the one before.
  Threshold most_ascending_keys{Threshold::kAny};
  /// Keys of which a thread finds up to so many groups are aggregated while they are found; others are numbered first.
  Threshold most_folded_groups{std::int64_t{1} << 18};
  /// Parts of at least so many bytes are written past the caches. Plain stores read each line before they write it,
  /// which is cheap as long as it lies in a cache nearby. On an EPYC of the third generation, 32 MB of L3, 2^22 words
  /// and positions (50 MB) take a thread 3.0 ns each and streams 3.7; 2^23 take 3.8 to 6.2 and 3.6 to 4.6, 2^24 6.3
  /// to 9.6 and 3.8 to 5.2, and 2^26 12 to 15 and 5.0.
  Threshold streamed_bytes{std::int64_t{96} << 20};
  /// Likewise, on Intel's processors. On a Xeon of the fifth generation, whose 300 MB of L3 lie farther away and are
  /// everybody's, streams are no slower from 2^21 on: 2^22 take 5.5 to 9.6 and 4.8 to 7.0, and two threads 3.4 to 4.7
  /// and 2.9 to 3.3.
  Threshold intel_streamed_bytes{std::int64_t{24} << 20};

  // ---- GPUs (cuda/l2.hpp, partition/plan.cuh, factorize/) ----

  /// L2 has 50 to 60 MiB on an H100 or H200; of a table of so many bytes, half of the accesses still meet it.
  Threshold l2_bytes{std::int64_t{96} << 20};
  /// Batches of at least so many keys may be partitioned by region, in a table beyond L2. Each key pays for the stream
  /// through `partition_table_bytes` of the table: on an H200, random insertions cost about 85 ps each, and a
  /// partitioned one about 45 ps and its share of reading and writing the whole table.
  Threshold least_partitioned_keys{std::int64_t{1} << 22};
  Threshold partition_table_bytes{96, 1};
  /// Likewise in L2, where random accesses are as fast as partitioning, so that a batch has to fill most of the table.
  /// Partitioning alone displaces keys: inserting takes a quarter longer, and lookups in the table are a third faster
  /// from then on.
  Threshold least_partitioned_in_l2_keys{std::int64_t{1} << 19};
  /// `unique` of up to so many keys is the work of one block, whose shared memory holds no more.
  Threshold one_block_keys{4096, 0, 4096};
  /// `unique` partitions a batch if its keys come up to so many times each, on average. The passes cost much the same
  /// whatever the keys are, but each duplicate that no tile drops is noted at a random place.
  Threshold partitioned_repeats{4, 1};
  /// Likewise where links are written there, too.
  Threshold partitioned_linked_repeats{2, 1};
  /// `isin` partitions if there are up to so many elements for each test: a set beyond L2 costs less than the passes do
  /// once each of its sectors is read often enough.
  Threshold partitioned_elements_per_test{8, 1};
};

namespace detail {
GPUHASH_API extern Tuning tuning;
}

/// The thresholds in use.
inline const Tuning& tuning() noexcept { return detail::tuning; }

/// Their values by their names.
GPUHASH_API std::map<std::string, std::int64_t> thresholds();
/// Returns the value of before. std::invalid_argument where there is none of that name, or it may not have that value.
GPUHASH_API std::int64_t set_threshold(const std::string& name, std::int64_t value);

}  // namespace gpuhash
