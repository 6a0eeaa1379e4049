#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "host/factorize/word_hash.hpp"
#include "host/factorize/word_streams.hpp"
#include "host/parallel.hpp"
#include "host/simd/simd.hpp"
#include "host/walk/homes.hpp"

namespace gpuhash::host {

/// Where the words of streams lie, by the highest bits of their hash in parts that fit a cache together with a table of
/// each. A part holds its words in the order of the batch, range by range. The streams' numbers become those of the
/// parts, and stay what they are though somebody may change the keys meanwhile.
template <class Word>
class WordParts {
 public:
  static constexpr int kLeastBits = 6;

  /// `words`: about so many there are in the streams; in all, fewer than 2^32. `order_seed`: not `hash` tells parts
  /// apart but the hash function of tables with that seed, so that a part's words are neighbours in each of them.
  /// `with_positions`: those will be asked for, too.
  WordParts(WordStreams<Word>& streams, const WordHash<Word>& hash, std::optional<std::uint64_t> order_seed,
            std::int64_t words, bool with_positions = false)
      : ranges_(streams.ranges().parts),
        hash_(hash),
        order_seed_(order_seed),
        is_streamed_(words * (kWordBytes + (with_positions ? kPositionBytes : 0)) >= least_streamed_bytes()),
        bits_(bits_for(words)),
        frequent_(std::ssize(streams.frequent())),
        starts_(scratch<std::uint32_t>(ranges_ * parts() + 1)) {
    parallel_for(ranges_, [&](int range) { count_words(streams, range); });
    count_ = add_up();
  }

  const WordHash<Word>& hash() const { return hash_; }
  /// By which words are told apart; but for frequent ones.
  int bits() const { return bits_; }
  int ranges() const { return ranges_; }
  std::int64_t parts() const { return by_hash() + frequent_; }
  /// Are all words of the part the same? Such parts come last.
  bool is_of_one_word(std::int64_t part) const { return part >= by_hash(); }
  /// Words in all parts.
  std::int64_t count() const { return count_; }
  /// A part of so many words takes some 300 to 500 KB of the second cache, together with what is found out about it.
  /// Larger batches have larger parts once kMostBits are used up.
  std::int64_t words_of_part() const { return std::int64_t{1} << (kWordBytes == 4 || is_streamed_ ? 14 : 13); }

  /// Where the words of a range begin in a part. Those of the next range follow, and after the last the next part.
  std::uint32_t start(std::int64_t range, std::int64_t part) const {
    return starts_[static_cast<std::size_t>(part * ranges_ + range)];
  }
  std::uint32_t end(std::int64_t range, std::int64_t part) const {
    return starts_[static_cast<std::size_t>(part * ranges_ + range + 1)];
  }
  std::uint32_t size(std::int64_t part) const { return start(0, part + 1) - start(0, part); }

  /// Writes the words of all parts, one part after the other, `to` [count()] words, and where they stand in the batch
  /// to `positions` [count()], unless that is null.
  void scatter(const WordStreams<Word>& streams, std::byte* to, std::uint32_t* positions = nullptr) const {
    parallel_for(ranges_, [&](int range) {
      if (positions == nullptr)
        scatter<false>(streams, range, to, positions);
      else
        scatter<true>(streams, range, to, positions);
    });
  }

  /// Calls body(worker, first part, part after the last) for all parts, several at a time; each worker is one thread.
  template <class Body>
  void for_each_group(Body body) const {
    std::atomic<std::int64_t> taken{0};
    parallel_for(ranges_, [&](int worker) {
      const std::int64_t group = by_hash() >> kLeastBits;
      for (std::int64_t begin; (begin = taken.fetch_add(group, std::memory_order_relaxed)) < parts();) {
        interruption_point();
        body(worker, begin, std::min(begin + group, parts()));
      }
    });
  }

 private:
  /// More parts than that, and their ends lie in more pages than the processor knows the addresses of.
  static constexpr int kMostBits = 12;
  static_assert(kMostBits <= HotWords<Word>::kBits);  // places in it are the same bits of the hash
  static constexpr std::int64_t kWordBytes = sizeof(Word);
  static constexpr std::int64_t kPositionBytes = sizeof(std::uint32_t);
  /// Plain stores, fetched ahead, took 0.7 to 0.9 ns a word, and alone 2.5 to 3.8, from 11 bits on.
  static constexpr std::int64_t kWordsAhead = 16;

  /// Words of a part on their way there, and where they stand in the batch: whole lines of both. Half as many words at
  /// a time take longer by a tenth to a half, for nobody can predict when a line is full.
  struct alignas(64) Waiting {
    static constexpr std::uint32_t kCount = 64 / kPositionBytes;
    Word words[kCount];
    std::uint32_t positions[kCount];
  };

  std::int64_t by_hash() const { return std::int64_t{1} << bits_; }

  int bits_for(std::int64_t words) const {
    int bits = kLeastBits;
    while (bits < kMostBits && words >> bits > words_of_part()) ++bits;
    return bits;
  }

  void count_words(WordStreams<Word>& streams, int range) {
    auto counts = scratch<std::uint32_t>(parts());
    std::uint32_t* const sums = counts.data();
    const bool have_places = streams.hot() != nullptr && !order_seed_;
    const int bits = bits_;
    streams.first_pass(range, [&](const Word* words, std::uint16_t* numbers, std::int64_t count) {
      if (have_places)
        for (std::int64_t j = 0; j < count; ++j)
          numbers[j] = static_cast<std::uint16_t>(numbers[j] >> (HotWords<Word>::kBits - bits));
      else
        number(streams, words, count, numbers);
      for (std::int64_t j = 0; j < count; ++j) ++sums[numbers[j]];
    });
    for (std::int64_t part = 0; part < parts(); ++part)
      starts_[static_cast<std::size_t>(part * ranges_ + range)] = counts[static_cast<std::size_t>(part)];
  }

  void number(const WordStreams<Word>& streams, const Word* words, std::int64_t count, std::uint16_t* numbers) const {
    const auto parts = static_cast<std::uint32_t>(by_hash());
    if (order_seed_)
      with_simd([&](auto simd) { table_bits_of(simd, words, count, *order_seed_, bits_, numbers); });
    else
      hash_.bits_of(words, count, hash_.kBits - bits_, parts - 1, numbers);
    for (std::int64_t k = 0; k < frequent_; ++k) {
      const Word word = streams.frequent()[static_cast<std::size_t>(k)];
      const auto own = static_cast<std::uint16_t>(parts + k);
      std::int64_t j = 0;
      with_simd([&]<class Simd>(Simd) {
        for (; j + 8 <= count; j += 8) Simd::put_number(Simd::words_equal(words + j, word), own, numbers + j);
      });
      for (; j < count; ++j) numbers[j] = words[j] == word ? own : numbers[j];
    }
  }

  /// Makes starts of the counts; returns the number of words.
  std::int64_t add_up() {
    std::uint32_t sum = 0;
    for (std::uint32_t& start : starts_) sum += std::exchange(start, sum);
    return sum;
  }

  template <bool kPositions>
  void scatter(const WordStreams<Word>& streams, int range, std::byte* to, std::uint32_t* positions) const {
    auto places = scratch<std::uint32_t>(parts());
    for (std::int64_t part = 0; part < parts(); ++part) places[static_cast<std::size_t>(part)] = start(range, part);
    const bool are_lines = is_at_line(to) && is_at_line(positions);
    if constexpr (Baseline::kStreams)
      if (is_streamed_ && are_lines) return stream<kPositions>(streams, range, to, positions, places.data());
    deal<kPositions>(streams, range, to, positions, places.data());
  }
  static bool is_at_line(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % alignof(Waiting) == 0; }

  /// `next`: the next place in each part.
  template <bool kPositions>
  static void deal(const WordStreams<Word>& streams, int range, std::byte* to, std::uint32_t* positions,
                   std::uint32_t* next) {
    streams.for_each(range, [&](const Word* words, const std::uint16_t* parts, const std::uint16_t* at,
                                std::int64_t count, std::int64_t base) {
      for (std::int64_t j = 0; j < count; ++j) {
        const std::int64_t place = next[parts[j]]++;
        std::memcpy(to + place * kWordBytes, words + j, kWordBytes);
        __builtin_prefetch(to + (place + kWordsAhead) * kWordBytes, 1);
        if constexpr (!kPositions) continue;
        positions[place] = static_cast<std::uint32_t>(base + at[j]);
        __builtin_prefetch(positions + place + kWordsAhead, 1);
      }
    });
  }

  /// Likewise by whole lines, past the caches, if the processor has that.
  template <bool kPositions>
  void stream(const WordStreams<Word>& streams, int range, std::byte* to, std::uint32_t* positions,
              std::uint32_t* next) const {
    constexpr std::uint32_t kLast = Waiting::kCount - 1;
    auto all_waiting = scratch<Waiting>(parts());
    Waiting* const waiting_of = all_waiting.data();
    const auto copy = [&](const Waiting& waiting, std::uint32_t begin, std::uint32_t end) {
      for (std::uint32_t place = begin; place < end; ++place) {
        std::memcpy(to + place * kWordBytes, waiting.words + (place & kLast), kWordBytes);
        if constexpr (kPositions) positions[place] = waiting.positions[place & kLast];
      }
    };
    streams.for_each(range, [&](const Word* words, const std::uint16_t* parts, const std::uint16_t* at,
                                std::int64_t count, std::int64_t base) {
      for (std::int64_t j = 0; j < count; ++j) {
        const std::uint32_t place = next[parts[j]]++;
        Waiting& waiting = waiting_of[parts[j]];
        waiting.words[place & kLast] = words[j];
        if constexpr (kPositions) waiting.positions[place & kLast] = static_cast<std::uint32_t>(base + at[j]);
        if ((place & kLast) != kLast) continue;
        const std::uint32_t first = place - kLast;
        const std::uint32_t begin = start(range, parts[j]);
        if (first < begin) {  // others' words come before them
          copy(waiting, begin, place + 1);
          continue;
        }
        for (std::size_t line = 0; line < sizeof waiting.words; line += 64)
          Baseline::stream_line(reinterpret_cast<const std::byte*>(waiting.words) + line,
                                to + std::size_t{first} * kWordBytes + line);
        if constexpr (kPositions) Baseline::stream_line(waiting.positions, positions + first);
      }
    });
    for (std::int64_t part = 0; part < this->parts(); ++part)
      copy(waiting_of[part], std::max(start(range, part), next[part] & ~kLast), next[part]);
    Baseline::finish_streams();
  }

  int ranges_;
  WordHash<Word> hash_;
  std::optional<std::uint64_t> order_seed_;
  bool is_streamed_;
  int bits_;
  std::int64_t frequent_;  // parts of one word each
  std::int64_t count_ = 0;
  std::vector<std::uint32_t> starts_;  // [parts][ranges], and the end
};

}  // namespace gpuhash::host
