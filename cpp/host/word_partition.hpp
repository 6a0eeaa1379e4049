#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "host/line_table.hpp"
#include "host/parallel.hpp"
#include "host/simd.hpp"
#include "host/word_streams.hpp"

namespace gpuhash::host {

/// The words of streams, by the highest bits of their hash in parts that fit a cache together with a table of each, and
/// what the tables tell.
///
/// A part holds its words in the order of the batch. So the partition can be *replayed*: who reads the batch again and
/// moves a cursor on in each word's part comes by the words' places in the parts, and finds there what the part's table
/// has left: whether the word occurs there for the first time. Read in order, the first occurrences come in order, and
/// nothing is sorted.
class WordPartition {
 public:
  /// What is left at a word's place: `kCounts`, at the first occurrence how often the word occurs, else 0; `kNumbers`,
  /// the number of the distinct word, and at the first occurrence kFirst besides; `kNumbersAndCounts`, that and, by
  /// the number, how often it occurs. The distinct words of a part are numbered from its begin on.
  enum class Marks { kCounts, kNumbers, kNumbersAndCounts };
  static constexpr std::uint32_t kFirst = std::uint32_t{1} << 31;

  /// `words`: about so many there are in the streams; in all, less than kFirst.
  WordPartition(DeviceContext& context, WordStreams& streams, const WordHash& hash, std::int64_t words, Marks marks)
      : streams_(streams),
        ranges_(streams.ranges().parts),
        hash_(hash),
        kind_(marks),
        bits_(bits_for(words)),
        starts_(scratch<std::uint32_t>(ranges_ * parts() + 1)),
        distinct_before_(scratch<std::uint32_t>((ranges_ + 1) * parts())) {
    parallel_for(ranges_, [&](int range) { count_words(range); });
    count_ = add_up();
    const Allocation partitioned(context, static_cast<std::size_t>(count_) * sizeof(std::uint64_t), nullptr);
    parallel_for(ranges_, [&](int range) { scatter(range, partitioned.as<std::uint64_t>()); });
    const std::size_t words_bytes = static_cast<std::size_t>(count_) * sizeof(std::uint32_t);
    marks_ = Allocation(context, words_bytes, nullptr);
    if (marks == Marks::kNumbersAndCounts) counts_ = Allocation(context, words_bytes, nullptr);
    number(context, partitioned.as<std::uint64_t>());
    for (int range = 0; range <= ranges_; ++range) {
      std::int64_t before = 0;
      for (std::int64_t part = 0; part < parts(); ++part) before += distinct_before(range, part);
      first_ids_.push_back(before);
    }
  }

  std::int64_t distinct() const { return first_ids_.back(); }
  /// Words in all parts.
  std::int64_t count() const { return count_; }
  /// The first id of those whose first occurrence lies in the range.
  std::int64_t first_id(int range) const { return first_ids_[static_cast<std::size_t>(range)]; }

  /// First occurrences in a block of words.
  struct Firsts {
    std::int64_t size;
    std::uint16_t at[kWordBlock];      // in the block's words
    std::uint32_t counts[kWordBlock];  // how often each word occurs, if that was asked for
  };

  /// Calls body(words, at, count, base, firsts) for the blocks of a range, in order. The ids of the first occurrences
  /// follow one another from first_id(range) on.
  template <class Body>
  void replay_firsts(int range, Body body) const {
    auto cursors = cursors_of(range);
    const std::uint32_t* const marks = marks_.as<std::uint32_t>();
    const bool numbers = kind_ != Marks::kCounts;
    const std::uint32_t* const counts = counts_.as<std::uint32_t>();
    Firsts firsts;
    streams_.for_each(range,
                      [&](const std::uint64_t* words, const std::uint16_t* at, std::int64_t count, std::int64_t base) {
                        std::uint32_t parts[kWordBlock];
                        parts_of(words, count, parts);
                        std::uint32_t* const next = cursors.data();
                        std::int64_t size = 0;
                        const auto turn = [&](std::int64_t j, auto is_first) {
                          const std::uint32_t place = next[parts[j]]++;
                          const std::uint32_t mark = marks[place];
                          __builtin_prefetch(marks + place + kMarksAhead);
                          firsts.at[size] = static_cast<std::uint16_t>(j);
                          firsts.counts[size] = mark;
                          size += is_first(mark);
                        };
                        if (numbers) {
                          for (std::int64_t j = 0; j < count; ++j)
                            turn(j, [](std::uint32_t mark) { return mark >> 31; });
                          if (counts != nullptr)
                            for (std::int64_t k = 0; k < size; ++k)
                              firsts.counts[k] = counts[firsts.counts[k] & ~kFirst];
                        } else {
                          for (std::int64_t j = 0; j < count; ++j)
                            turn(j, [](std::uint32_t mark) { return mark != 0; });
                        }
                        firsts.size = size;
                        body(words, at, count, base, firsts);
                      });
  }

  /// The same, with the codes of the words: codes[j] is the id of words[j] or, where its first occurrence lies in an
  /// earlier range, what settled() makes the id of when all ranges have been replayed. `ids` [1 + count()].
  template <class Body>
  void replay_codes(int range, std::uint32_t* ids, Body body) const {
    if (range == 0)
      replay_codes<false>(range, ids, body);
    else
      replay_codes<true>(range, ids, body);
  }

  static std::int64_t settled(std::int64_t code, const std::uint32_t* ids) { return code < 0 ? ids[-code] : code; }

 private:
  /// Some words of a part, which lie in the second cache together with their table.
  static constexpr std::int64_t kWordsOfPart = std::int64_t{1} << 14;
  static constexpr int kLeastBits = 6;
  /// More parts than that, and their ends lie in more pages than the processor knows the addresses of.
  static constexpr int kMostBits = 12;
  /// Plain stores, fetched ahead, took 0.7 to 0.9 ns a word; streaming stores through buffers 1.5 to 2.1; plain stores
  /// alone 2.5 to 3.8, from 11 bits on.
  static constexpr std::int64_t kWordsAhead = 16;
  static constexpr std::int64_t kMarksAhead = 32;

  static int bits_for(std::int64_t words) {
    int bits = kLeastBits;
    while (bits < kMostBits && words >> bits > kWordsOfPart) ++bits;
    return bits;
  }
  std::int64_t parts() const { return std::int64_t{1} << bits_; }
  void parts_of(const std::uint64_t* words, std::int64_t count, std::uint32_t* to) const {
    hash_.bits_of(words, count, 64 - bits_, static_cast<std::uint32_t>(parts() - 1), to);
  }

  /// Where the words of a range begin in a part; those of the next range follow, and after the last the next part.
  std::uint32_t& start(std::int64_t range, std::int64_t part) {
    return starts_[static_cast<std::size_t>(part * ranges_ + range)];
  }
  std::uint32_t start(std::int64_t range, std::int64_t part) const {
    return starts_[static_cast<std::size_t>(part * ranges_ + range)];
  }
  std::uint32_t part_size(std::int64_t part) const { return start(0, part + 1) - start(0, part); }
  /// Distinct words of a part that occur in ranges before that one.
  std::uint32_t& distinct_before(std::int64_t range, std::int64_t part) {
    return distinct_before_[static_cast<std::size_t>(range * parts() + part)];
  }
  std::uint32_t distinct_before(std::int64_t range, std::int64_t part) const {
    return distinct_before_[static_cast<std::size_t>(range * parts() + part)];
  }
  std::vector<std::uint32_t> cursors_of(int range) const {
    auto cursors = scratch<std::uint32_t>(parts());
    for (std::int64_t part = 0; part < parts(); ++part) cursors[static_cast<std::size_t>(part)] = start(range, part);
    return cursors;
  }

  void count_words(int range) {
    auto counts = scratch<std::uint32_t>(parts());
    with_simd([&](auto) {
      std::uint32_t* const sums = counts.data();
      streams_.first_pass(range, [&](const std::uint64_t* words, std::int64_t count) {
        std::uint32_t parts[kWordBlock];
        parts_of(words, count, parts);
        for (std::int64_t j = 0; j < count; ++j) ++sums[parts[j]];
      });
    });
    for (std::int64_t part = 0; part < parts(); ++part) start(range, part) = counts[static_cast<std::size_t>(part)];
  }

  /// Makes starts of the counts; returns the number of words.
  std::int64_t add_up() {
    std::uint32_t sum = 0;
    for (std::uint32_t& start : starts_) sum += std::exchange(start, sum);
    return sum;
  }

  void scatter(int range, std::uint64_t* to) const {
    auto cursors = cursors_of(range);
    with_simd([&](auto) {
      std::uint32_t* const next = cursors.data();
      streams_.for_each(range, [&](const std::uint64_t* words, const std::uint16_t*, std::int64_t count, std::int64_t) {
        std::uint32_t parts[kWordBlock];
        parts_of(words, count, parts);
        for (std::int64_t j = 0; j < count; ++j) {
          const std::uint32_t place = next[parts[j]]++;
          to[place] = words[j];
          __builtin_prefetch(to + place + kWordsAhead, 1);
        }
      });
    });
  }

  /// Leaves the marks of all parts.
  void number(DeviceContext& context, const std::uint64_t* words) {
    // A part that is far larger than others holds copies of few words, as a rule. Its table begins small and grows,
    // after the others, on this thread: scratch memory is the caller's.
    const std::int64_t large = 4 * std::max(kWordsOfPart, count_ >> bits_);
    std::int64_t most = 0;
    for (std::int64_t part = 0; part < parts(); ++part)
      most = std::max(most, std::min<std::int64_t>(large, part_size(part)));
    const std::int64_t lines = LineTable::lines_for(most);

    std::vector<LineTable> tables;
    const int workers = ranges_;
    for (int worker = 0; worker < workers; ++worker) tables.emplace_back(context, lines, hash_, bits_);
    std::atomic<std::int64_t> taken{0};
    parallel_for(workers, [&](int worker) {
      LineTable& table = tables[static_cast<std::size_t>(worker)];
      const std::int64_t group = std::max<std::int64_t>(1, parts() / 64);
      for (std::int64_t begin; (begin = taken.fetch_add(group, std::memory_order_relaxed)) < parts();) {
        interruption_point();
        for (std::int64_t part = begin; part < std::min(parts(), begin + group); ++part) {
          if (part_size(part) > large) continue;
          table.clear(LineTable::lines_for(part_size(part)));
          number_part(context, words, part, table);
        }
      }
    });
    for (std::int64_t part = 0; part < parts(); ++part) {
      if (part_size(part) <= large) continue;
      LineTable table(context, lines, hash_, bits_);
      number_part(context, words, part, table);
    }
  }

  void number_part(DeviceContext& context, const std::uint64_t* words, std::int64_t part, LineTable& table) {
    with_simd([&]<class Simd>(Simd) {
      switch (kind_) {
        case Marks::kCounts:
          return number_part<Simd, false, true>(context, words, part, table);
        case Marks::kNumbers:
          return number_part<Simd, true, false>(context, words, part, table);
        case Marks::kNumbersAndCounts:
          return number_part<Simd, true, true>(context, words, part, table);
      }
    });
  }

  template <class Simd, bool kNumbers, bool kCounts>
  void number_part(DeviceContext& context, const std::uint64_t* words, std::int64_t part, LineTable& table) {
    const std::uint32_t begin_of_part = start(0, part);
    std::uint32_t* const marks = marks_.as<std::uint32_t>();
    std::uint32_t* const counts = counts_.as<std::uint32_t>();
    std::uint32_t number = begin_of_part;
    for (int range = 0; range < ranges_; ++range) {
      distinct_before(range, part) = number - begin_of_part;
      in_pieces(start(range, part), starts_[static_cast<std::size_t>(part * ranges_ + range + 1)], kKeysPerPiece,
                [&](std::int64_t piece_begin, std::int64_t piece_end) {
                  for_each_word_block(piece_begin, piece_end, [&](std::int64_t begin, std::int64_t count) {
                    if (number - begin_of_part + count > table.room()) {
                      LineTable larger(context, 4 * table.most_lines(), hash_, bits_);
                      table.copy_to<Simd>(larger);
                      table = std::move(larger);
                    }
                    std::uint32_t begins[kWordBlock];
                    table.lines_of(words + begin, count, begins);
                    const Lines lines = table.lines();
                    for (std::int64_t j = 0; j < count; ++j) {
                      const auto place = static_cast<std::uint32_t>(begin + j);
                      if constexpr (kNumbers) {
                        if constexpr (kCounts) counts[number] = 0;
                        const Lines::Visit visit = lines.visit<Simd>(words[place], begins[j], number);
                        if constexpr (kCounts) ++counts[visit.id];
                        marks[place] = visit.id | visit.is_new << 31;
                        number += visit.is_new;
                      } else {
                        marks[place] = 0;
                        const Lines::Visit visit = lines.visit<Simd>(words[place], begins[j], place);
                        ++marks[visit.id];
                        number += visit.is_new;
                      }
                    }
                  });
                });
    }
    distinct_before(ranges_, part) = number - begin_of_part;
  }

  template <bool kLater, class Body>
  void replay_codes(int range, std::uint32_t* ids, Body body) const {
    auto cursors = cursors_of(range);
    auto known = scratch<std::uint32_t>(kLater ? parts() : 0);  // numbers below are of words of earlier ranges
    for (std::int64_t part = 0; kLater && part < parts(); ++part)
      known[static_cast<std::size_t>(part)] = start(0, part) + distinct_before(range, part);
    const std::uint32_t* const marks = marks_.as<std::uint32_t>();
    const std::uint32_t* const counts = counts_.as<std::uint32_t>();
    auto id = static_cast<std::uint32_t>(first_id(range));
    Firsts firsts;
    streams_.for_each(range,
                      [&](const std::uint64_t* words, const std::uint16_t* at, std::int64_t count, std::int64_t base) {
                        std::uint32_t parts[kWordBlock];
                        std::int64_t codes[kWordBlock];
                        parts_of(words, count, parts);
                        std::uint32_t* const next = cursors.data();
                        const std::uint32_t* const earlier = known.data();
                        std::int64_t size = 0;
                        for (std::int64_t j = 0; j < count; ++j) {
                          const std::uint32_t place = next[parts[j]]++;
                          const std::uint32_t mark = marks[place];
                          __builtin_prefetch(marks + place + kMarksAhead);
                          const std::uint32_t is_first = mark >> 31;
                          const std::uint32_t number = (mark & ~kFirst) + 1;  // ids[0] takes what is to be forgotten
                          const std::uint32_t keep = 0 - is_first;
                          const std::uint32_t seen = ids[number];
                          ids[number & keep] = id;
                          __builtin_prefetch(ids + (number & keep) + kMarksAhead, 1);
                          std::int64_t code = seen ^ ((seen ^ id) & keep);
                          if constexpr (kLater) {
                            const std::int64_t is_earlier = 0 - std::int64_t{number <= earlier[parts[j]]};
                            code ^= (code ^ -std::int64_t{number}) & is_earlier;
                          }
                          codes[j] = code;
                          firsts.at[size] = static_cast<std::uint16_t>(j);
                          firsts.counts[size] = number - 1;
                          size += is_first;
                          id += is_first;
                        }
                        if (counts != nullptr)
                          for (std::int64_t k = 0; k < size; ++k) firsts.counts[k] = counts[firsts.counts[k]];
                        firsts.size = size;
                        body(words, at, count, base, firsts, codes);
                      });
  }

  WordStreams& streams_;
  int ranges_;
  WordHash hash_;
  Marks kind_;
  int bits_;
  std::int64_t count_ = 0;
  std::vector<std::uint32_t> starts_;           // [parts][ranges], and the end
  std::vector<std::uint32_t> distinct_before_;  // [ranges + 1][parts]
  std::vector<std::int64_t> first_ids_;         // [ranges + 1]
  Allocation marks_;                            // [words in all parts]
  Allocation counts_;                           // likewise, or none
};

}  // namespace gpuhash::host
