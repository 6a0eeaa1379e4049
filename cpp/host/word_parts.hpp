#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <gpuhash/device_context.hpp>
#include "host/parallel.hpp"
#include "host/simd.hpp"
#include "host/word_hash.hpp"
#include "host/word_streams.hpp"

namespace gpuhash::host {

/// Where the words of streams lie, by the highest bits of their hash in parts that fit a cache together with a table of
/// each. A part holds its words in the order of the batch, range by range.
///
/// Words that are read out of the batch itself have the numbers of their parts written down: to read them again is less
/// than to hash again, and they stay what they are though somebody may change the keys meanwhile.
template <class Word>
class WordParts {
 public:
  /// A part of as many words takes some 300 KB of the second cache, together with what is found out about it. Larger
  /// batches have larger parts once kMostBits are used up.
  static constexpr std::int64_t kWordsOfPart = std::int64_t{1} << (sizeof(Word) == 4 ? 14 : 13);
  static constexpr int kLeastBits = 6;

  /// `words`: about so many there are in the streams; in all, fewer than 2^32.
  WordParts(DeviceContext& context, WordStreams<Word>& streams, const WordHash<Word>& hash, std::int64_t words)
      : ranges_(streams.ranges().parts),
        hash_(hash),
        bits_(bits_for(words)),
        starts_(scratch<std::uint32_t>(ranges_ * parts() + 1)) {
    if (streams.hot() == nullptr)
      numbers_ = Allocation(context, static_cast<std::size_t>(streams.ranges().count) * sizeof(std::uint16_t), nullptr);
    parallel_for(ranges_, [&](int range) { count_words(streams, range); });
    count_ = add_up();
  }

  const WordHash<Word>& hash() const { return hash_; }
  int bits() const { return bits_; }
  int ranges() const { return ranges_; }
  std::int64_t parts() const { return std::int64_t{1} << bits_; }
  /// Words in all parts.
  std::int64_t count() const { return count_; }

  /// Where the words of a range begin in a part. Those of the next range follow, and after the last the next part.
  std::uint32_t start(std::int64_t range, std::int64_t part) const {
    return starts_[static_cast<std::size_t>(part * ranges_ + range)];
  }
  std::uint32_t end(std::int64_t range, std::int64_t part) const {
    return starts_[static_cast<std::size_t>(part * ranges_ + range + 1)];
  }
  std::uint32_t size(std::int64_t part) const { return start(0, part + 1) - start(0, part); }
  /// The parts of a block of words of the streams; `base`: where it begins in the batch. In `buffer`, or written down.
  const std::uint16_t* parts_of(const Word* words, std::int64_t count, std::int64_t base, std::uint16_t* buffer) const {
    if (const auto* const numbers = numbers_.as<std::uint16_t>()) return numbers + base;
    find_parts_of(words, count, buffer);
    return buffer;
  }

  /// Writes the words of all parts, one part after the other, `to` [count()] words.
  void scatter(const WordStreams<Word>& streams, std::byte* to) const {
    parallel_for(ranges_, [&](int range) { scatter(streams, range, to); });
  }

  /// Calls body(worker, first part, part after the last) for all parts, several at a time; each worker is one thread.
  template <class Body>
  void for_each_group(Body body) const {
    std::atomic<std::int64_t> taken{0};
    parallel_for(ranges_, [&](int worker) {
      const std::int64_t group = parts() >> kLeastBits;
      for (std::int64_t begin; (begin = taken.fetch_add(group, std::memory_order_relaxed)) < parts();) {
        interruption_point();
        body(worker, begin, begin + group);
      }
    });
  }

 private:
  /// More parts than that, and their ends lie in more pages than the processor knows the addresses of.
  static constexpr int kMostBits = 12;
  /// Plain stores, fetched ahead, took 0.7 to 0.9 ns a word; streaming stores through buffers 1.5 to 2.1; plain stores
  /// alone 2.5 to 3.8, from 11 bits on.
  static constexpr std::int64_t kWordsAhead = 16;
  static constexpr std::int64_t kWordBytes = sizeof(Word);

  void find_parts_of(const Word* words, std::int64_t count, std::uint16_t* to) const {
    hash_.bits_of(words, count, hash_.kBits - bits_, static_cast<std::uint32_t>(parts() - 1), to);
  }

  static int bits_for(std::int64_t words) {
    int bits = kLeastBits;
    while (bits < kMostBits && words >> bits > kWordsOfPart) ++bits;
    return bits;
  }

  void count_words(WordStreams<Word>& streams, int range) {
    auto counts = scratch<std::uint32_t>(parts());
    with_simd([&](auto) {
      std::uint32_t* const sums = counts.data();
      auto* const numbers = numbers_.as<std::uint16_t>();
      streams.first_pass(range, [&](const Word* words, std::int64_t count, std::int64_t base) {
        std::uint16_t buffer[kWordBlock];
        std::uint16_t* const parts = numbers == nullptr ? buffer : numbers + base;
        find_parts_of(words, count, parts);
        for (std::int64_t j = 0; j < count; ++j) ++sums[parts[j]];
      });
    });
    for (std::int64_t part = 0; part < parts(); ++part)
      starts_[static_cast<std::size_t>(part * ranges_ + range)] = counts[static_cast<std::size_t>(part)];
  }

  /// Makes starts of the counts; returns the number of words.
  std::int64_t add_up() {
    std::uint32_t sum = 0;
    for (std::uint32_t& start : starts_) sum += std::exchange(start, sum);
    return sum;
  }

  void scatter(const WordStreams<Word>& streams, int range, std::byte* to) const {
    auto places = scratch<std::uint32_t>(parts());
    for (std::int64_t part = 0; part < parts(); ++part) places[static_cast<std::size_t>(part)] = start(range, part);
    with_simd([&](auto) {
      std::uint32_t* const next = places.data();
      const auto deal = [&](const Word* words, const std::uint16_t*, std::int64_t count, std::int64_t base) {
        std::uint16_t buffer[kWordBlock];
        const std::uint16_t* const parts = parts_of(words, count, base, buffer);
        for (std::int64_t j = 0; j < count; ++j) {
          const std::int64_t place = next[parts[j]]++;
          std::memcpy(to + place * kWordBytes, words + j, kWordBytes);
          __builtin_prefetch(to + (place + kWordsAhead) * kWordBytes, 1);
        }
      };
      streams.for_each(range, deal);
    });
  }

  int ranges_;
  WordHash<Word> hash_;
  int bits_;
  std::int64_t count_ = 0;
  std::vector<std::uint32_t> starts_;  // [parts][ranges], and the end
  Allocation numbers_;                 // [n] of parts, or none
};

}  // namespace gpuhash::host
