#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "host/factorize/line_table.hpp"
#include "host/factorize/part_firsts.hpp"
#include "host/factorize/word_parts.hpp"
#include "host/factorize/word_streams.hpp"
#include "host/parallel.hpp"
#include "host/simd/simd.hpp"

namespace gpuhash::host {

/// The words of streams, by the highest bits of their hash in parts that fit a cache together with a table of each, and
/// what the tables tell.
///
/// A part holds its words in the order of the batch. So the partition can be *replayed*: who reads the batch again and
/// moves a cursor on in each word's part comes by the words' places in the parts, and finds there what the part's table
/// has left: whether the word occurs there for the first time. Read in order, the first occurrences come in order, and
/// nothing is sorted. Where any order will do, nobody replays it: the distinct words of a part move to its begin, and
/// how often they occur takes the room of those that are gone.
///
/// The memory of a part's words becomes that of its *slots* of 32 bits: those of marks, one for each place, in order,
/// and those of ids, one for each distinct word. A word of 64 bits has room for both, and the marks of a part come
/// before its ids; to words of 32 bits the ids of all parts are added behind the last one. Before the first part each
/// range has a slot for what is to be forgotten, on a line of its own.
template <class Word>
class WordPartition {
 public:
  /// The mark of a word's place. `kCounts`: at the first occurrence how often the word occurs, else 0. `kNumbers`: the
  /// number of the distinct word, which is the slot of its id, and at the first occurrence kFirst besides.
  /// `kNumbersAndCounts`: likewise, and how often it occurs is counted apart. `kNone`: words stay words; where they
  /// stand in the batch is kept apart.
  enum class Marks { kCounts, kNumbers, kNumbersAndCounts, kNone };
  static constexpr std::uint32_t kFirst = std::uint32_t{1} << 31;

  /// `words`: about so many there are in the streams; in all, fewer than 10^9, so that slots are numbered below kFirst.
  /// `order_seed`: as WordParts wants it.
  WordPartition(DeviceContext& context, WordStreams<Word>& streams, const WordHash<Word>& hash,
                std::optional<std::uint64_t> order_seed, std::int64_t words, Marks marks)
      : streams_(streams),
        parts_(streams, hash, order_seed, words, marks == Marks::kNone),
        ranges_(parts_.ranges()),
        kind_(marks),
        distinct_before_(scratch<std::uint32_t>((ranges_ + 1) * parts())),
        first_ids_of_parts_(scratch<std::int64_t>(marks == Marks::kNone ? parts() : 0)),
        repeated_of_parts_(scratch<std::uint32_t>(marks == Marks::kNone ? parts() : 0)),
        memory_(context, static_cast<std::size_t>(before_words() + slots_of_words()) * kSlotBytes, nullptr) {
    const std::size_t bytes_apart = static_cast<std::size_t>(parts_.count()) * sizeof(std::uint32_t);
    if (marks == Marks::kNone) positions_ = Allocation(context, bytes_apart, nullptr);
    parts_.scatter(streams, this->words(), positions_.as<std::uint32_t>());
    if (marks == Marks::kNone) streams.forget_words();
    if (marks == Marks::kNumbersAndCounts) counts_ = Allocation(context, bytes_apart, nullptr);
    leave_marks(context);
    for (int range = 0; range <= ranges_; ++range) {
      std::int64_t before = 0;
      for (std::int64_t part = 0; part < parts(); ++part) before += distinct_before(range, part);
      first_ids_.push_back(before);
    }
    std::int64_t id = 0;
    for (std::int64_t part = 0; part < std::ssize(first_ids_of_parts_); ++part) {
      first_ids_of_parts_[static_cast<std::size_t>(part)] = id;
      id += distinct_before(ranges_, part);
    }
  }

  std::int64_t distinct() const { return first_ids_.back(); }
  /// The first id of those whose first occurrence lies in the range.
  std::int64_t first_id(int range) const { return first_ids_[static_cast<std::size_t>(range)]; }

  /// What is left of a part with kNone: its distinct words, and where each occurs first.
  struct DistinctWords {
    const Word* words;
    const std::uint32_t* positions;
    std::int64_t count;
    std::int64_t first_id;
    // Of those that occur more than once the numbers, 0 for the first word, and how often they do.
    const std::uint32_t* repeated;
    const std::uint32_t* counts;
    std::int64_t repeated_count;
  };

  /// With kNone. Calls body(distinct words) for each part, several at a time.
  template <class Body>
  void for_each_part(Body body) const {
    parts_.for_each_group([&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part)
        body(DistinctWords{words_of(part), positions_of(part), distinct_before(ranges_, part), first_id_of(part),
                           repeated_of(part), repeated_counts_of(part),
                           repeated_of_parts_[static_cast<std::size_t>(part)]});
    });
  }

  /// With kNone. Calls body(position, id) for the first occurrences that lie in the range.
  template <class Body>
  void for_each_first(int range, Body body) const {
    for (std::int64_t part = 0; part < parts(); ++part) {
      const std::uint32_t* const positions = positions_of(part);
      const std::int64_t id = first_id_of(part);
      const std::uint32_t end = distinct_before(range + 1, part);
      for (std::uint32_t k = distinct_before(range, part); k < end; ++k) body(positions[k], id + k);
    }
  }

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
    auto marks = marks_of(range);
    const std::uint32_t* const slots = this->slots();
    Firsts firsts;
    const auto replay = [&](const Word* words, const std::uint16_t* parts, const std::uint16_t* at, std::int64_t count,
                            std::int64_t base) {
      std::uint32_t* const next = marks.data();
      const auto note = [&](auto is_first) {
        std::int64_t size = 0;
        for (std::int64_t j = 0; j < count; ++j) {
          const std::uint32_t place = next[parts[j]]++;
          const std::uint32_t mark = slots[place];
          __builtin_prefetch(slots + place + kMarksAhead);
          firsts.at[size] = static_cast<std::uint16_t>(j);
          firsts.counts[size] = mark;
          size += is_first(mark);
        }
        firsts.size = size;
      };
      if (kind_ == Marks::kCounts)
        note([](std::uint32_t mark) { return mark != 0; });
      else
        note([](std::uint32_t mark) { return mark >> 31; });
      read_counts(firsts, parts);
      body(words, at, count, base, firsts);
    };
    streams_.for_each(range, replay);
  }

  /// The same, with the codes of the words: codes[j] is the id of words[j] or, where its first occurrence lies in an
  /// earlier range, what settled() makes the id of when all ranges have been replayed. Not with kCounts.
  template <class Body>
  void replay_codes(int range, Body body) {
    if (range == 0)
      replay_codes<false>(range, body);
    else
      replay_codes<true>(range, body);
  }

  std::int64_t settled(std::int64_t code) const { return code < 0 ? slots()[-code] : code; }

 private:
  using Table = LineTable<Word>;
  static constexpr std::int64_t kMarksAhead = 32;
  /// Where table and part do not fit the second cache after all: 7.5 ns a word instead of 12.6.
  static constexpr std::int64_t kLinesAhead = 16;

  static constexpr std::int64_t kSlotBytes = sizeof(std::uint32_t);
  static constexpr std::int64_t kSlotsOfLine = 64 / kSlotBytes;
  static constexpr std::int64_t kWordBytes = sizeof(Word);
  static constexpr std::uint32_t kSlotsOfWord = kWordBytes / kSlotBytes;
  static constexpr bool kIdsBehindWords = kSlotsOfWord == 1;

  std::int64_t parts() const { return parts_.parts(); }
  /// Distinct words of a part that occur in ranges before that one.
  std::uint32_t& distinct_before(std::int64_t range, std::int64_t part) {
    return distinct_before_[static_cast<std::size_t>(range * parts() + part)];
  }
  std::uint32_t distinct_before(std::int64_t range, std::int64_t part) const {
    return distinct_before_[static_cast<std::size_t>(range * parts() + part)];
  }

  /// Slots before those of the first part.
  std::int64_t before_words() const { return kind_ == Marks::kNone ? 0 : ranges_ * kSlotsOfLine; }
  bool has_numbers() const { return kind_ == Marks::kNumbers || kind_ == Marks::kNumbersAndCounts; }
  std::int64_t slots_of_words() const {
    return parts_.count() * (kSlotsOfWord + (kIdsBehindWords && has_numbers() ? 1 : 0));
  }
  /// [words in all parts]
  std::byte* words() const { return memory_.as<std::byte>() + before_words() * kSlotBytes; }
  Word* words_of(std::int64_t part) const { return reinterpret_cast<Word*>(words()) + parts_.start(0, part); }
  std::uint32_t* slots() const { return memory_.as<std::uint32_t>(); }
  /// Of the marks of a part, the first.
  std::uint32_t first_mark(std::int64_t part) const {
    return static_cast<std::uint32_t>(before_words()) + kSlotsOfWord * parts_.start(0, part);
  }
  /// For each part, where the marks of a range begin.
  std::vector<std::uint32_t> marks_of(int range) const {
    auto begins = scratch<std::uint32_t>(parts());
    for (std::int64_t part = 0; part < parts(); ++part)
      begins[static_cast<std::size_t>(part)] = first_mark(part) + (parts_.start(range, part) - parts_.start(0, part));
    return begins;
  }
  /// The number of a part's first distinct word.
  std::uint32_t first_number(std::int64_t part) const {
    return first_mark(part) + (kIdsBehindWords ? static_cast<std::uint32_t>(parts_.count()) : parts_.size(part));
  }
  std::int64_t first_id_of(std::int64_t part) const { return first_ids_of_parts_[static_cast<std::size_t>(part)]; }
  /// How often each distinct word of a part occurs.
  std::uint32_t* counts_of(std::int64_t part) const { return counts_.as<std::uint32_t>() + parts_.start(0, part); }
  /// Where in the batch the words of a part stand, until only the distinct ones are left.
  std::uint32_t* positions_of(std::int64_t part) const {
    return positions_.as<std::uint32_t>() + parts_.start(0, part);
  }
  /// Behind the distinct words and their positions. For each word that occurs more than once, one at least is gone.
  std::uint32_t* repeated_of(std::int64_t part) const {
    return reinterpret_cast<std::uint32_t*>(words_of(part) + distinct_before(ranges_, part));
  }
  std::uint32_t* repeated_counts_of(std::int64_t part) const {
    return positions_of(part) + distinct_before(ranges_, part);
  }
  /// Puts counts in the place of numbers, if there are any. `parts`: those of the block's words.
  void read_counts(Firsts& firsts, const std::uint16_t* parts) const {
    if (kind_ != Marks::kNumbersAndCounts) return;
    for (std::int64_t k = 0; k < firsts.size; ++k) {
      const std::int64_t part = parts[firsts.at[k]];
      firsts.counts[k] = counts_of(part)[(firsts.counts[k] & ~kFirst) - first_number(part)];
    }
  }

  /// Leaves the marks of all parts.
  void leave_marks(DeviceContext& context) {
    const std::int64_t large = 4 * std::max(parts_.words_of_part(), parts_.count() >> parts_.bits());
    if (large <= PartFirsts<std::uint16_t>::kMost)
      leave_marks<std::uint16_t>(context, large);
    else
      leave_marks<std::uint32_t>(context, large);
  }

  template <class Position>
  void leave_marks(DeviceContext& context, std::int64_t large) {
    std::int64_t most = 0;
    for (std::int64_t part = 0; part < parts(); ++part)
      if (!parts_.is_of_one_word(part) && parts_.size(part) <= large)
        most = std::max<std::int64_t>(most, parts_.size(part));
    std::vector<Allocation> memory;
    std::vector<PartFirsts<Position>> finders;
    std::vector<Allocation> counts;  // with kNone, [most]
    for (int worker = 0; worker < ranges_; ++worker) {
      const std::int64_t room = PartFirsts<Position>::room(most);
      memory.emplace_back(context, static_cast<std::size_t>(room) * sizeof(Position), nullptr);
      finders.emplace_back(memory.back().as<Position>(), most, parts_.bits());
      const std::int64_t counted = kind_ == Marks::kNone ? most : 0;
      counts.emplace_back(context, static_cast<std::size_t>(counted) * sizeof(std::uint32_t), nullptr);
    }
    parts_.for_each_group([&](int worker, std::int64_t begin, std::int64_t end) {
      const auto own = static_cast<std::size_t>(worker);
      for (std::int64_t part = begin; part < end; ++part) {
        if (parts_.is_of_one_word(part))
          mark_part_of_one_word(part);
        else if (parts_.size(part) <= large)
          mark_part(part, finders[own], counts[own].template as<std::uint32_t>());
      }
    });
    // Another part that is far larger than most holds copies of few words, as a rule. It gets a table, which begins
    // small and grows; after the others, on this thread, because scratch memory is the caller's.
    for (std::int64_t part = 0; part < parts(); ++part) {
      if (parts_.is_of_one_word(part) || parts_.size(part) <= large) continue;
      Table table(context, Table::lines_for(2 * kWordBlock), WordHash<Word>());
      number_part(context, part, table);
    }
  }

  void mark_part_of_one_word(std::int64_t part) {
    const std::uint32_t count = parts_.size(part);
    if (count == 0) return;
    for (int range = 1; range <= ranges_; ++range)
      distinct_before(range, part) = parts_.end(range - 1, part) != parts_.start(0, part) ? 1 : 0;
    std::uint32_t* const marks = slots() + first_mark(part);
    if (kind_ == Marks::kCounts) {
      std::fill_n(marks, count, 0u);
      marks[0] = count;
    } else if (kind_ != Marks::kNone) {
      std::fill_n(marks, count, first_number(part));
      marks[0] |= kFirst;
    }
    if (kind_ == Marks::kNumbersAndCounts) counts_of(part)[0] = count;
    if (kind_ == Marks::kNone) leave_repeated(part, &count);
  }

  /// `counts_apart`: with kNone, scratch memory for a count of each word.
  template <class Position>
  void mark_part(std::int64_t part, const PartFirsts<Position>& finder, std::uint32_t* counts_apart) {
    const std::int64_t count = parts_.size(part);
    finder.find(words_of(part), parts_.hash(), count);
    const Position* const firsts = finder.firsts();
    if (kind_ == Marks::kNone) return gather_part(part, firsts, counts_apart);
    count_distinct(part, firsts);
    std::uint32_t* const marks = slots() + first_mark(part);
    if (kind_ == Marks::kCounts) {
      std::fill_n(marks, count, 0u);
      for (std::int64_t i = 0; i < count; ++i) ++marks[firsts[i]];
      return;
    }
    Position* const ranks = finder.scratch();
    std::uint32_t rank = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t is_first = firsts[i] == i ? 1 : 0;
      ranks[i] = static_cast<Position>(rank);
      rank += is_first;
      marks[i] = (first_number(part) + ranks[firsts[i]]) | is_first << 31;
    }
    if (kind_ != Marks::kNumbersAndCounts) return;
    std::uint32_t* const counts = counts_of(part);
    std::fill_n(counts, rank, 0u);
    for (std::int64_t i = 0; i < count; ++i) ++counts[ranks[firsts[i]]];
  }

  /// Moves the distinct words of a part to its begin, without a branch, and likewise their positions.
  template <class Position>
  void gather_part(std::int64_t part, const Position* firsts, std::uint32_t* counts) {
    const std::int64_t count = parts_.size(part);
    Word* const words = words_of(part);
    std::uint32_t* const positions = positions_of(part);
    std::fill_n(counts, count, 0u);
    for (std::int64_t i = 0; i < count; ++i) ++counts[firsts[i]];
    std::uint32_t distinct = 0;
    std::int64_t i = 0;
    with_simd([&]<class Simd>(Simd) {
      for (; i + 8 <= count; i += 8) {
        const std::uint32_t are_first = ~Simd::words_equal(counts + i, 0u) & 0xff;
        Simd::store_chosen(are_first, words + i, words + distinct);
        Simd::store_chosen(are_first, positions + i, positions + distinct);
        Simd::store_chosen(are_first, counts + i, counts + distinct);
        distinct += static_cast<std::uint32_t>(std::popcount(are_first));
      }
    });
    for (; i < count; ++i) {
      const std::uint32_t times = counts[i];
      words[distinct] = words[i];
      positions[distinct] = positions[i];
      counts[distinct] = times;
      distinct += times != 0 ? 1 : 0;
    }
    const std::uint32_t* const firsts_begin = positions;
    for (int range = 1; range < ranges_; ++range) {
      const auto begin = static_cast<std::uint32_t>(streams_.ranges().begin(range));
      distinct_before(range, part) =
          static_cast<std::uint32_t>(std::lower_bound(firsts_begin, firsts_begin + distinct, begin) - firsts_begin);
    }
    distinct_before(ranges_, part) = distinct;
    leave_repeated(part, counts);
  }

  /// Which of the distinct words of a part occur more than once, and how often. `counts`: of each.
  void leave_repeated(std::int64_t part, const std::uint32_t* counts) {
    const std::uint32_t distinct = distinct_before(ranges_, part);
    std::uint32_t* const repeated = repeated_of(part);
    std::uint32_t* const times = repeated_counts_of(part);
    const std::uint32_t room = parts_.size(part) - distinct;
    std::uint32_t size = 0;
    std::uint32_t k = 0;
    with_simd([&]<class Simd>(Simd) {
      for (; k + 8 <= distinct && size + 8 <= room; k += 8) {
        const std::uint32_t are_repeated = ~Simd::words_equal(counts + k, 1u) & 0xff;
        Simd::store_numbers(are_repeated, k, repeated + size);
        Simd::store_chosen(are_repeated, counts + k, times + size);
        size += static_cast<std::uint32_t>(std::popcount(are_repeated));
      }
    });
    for (; k < distinct; ++k) {
      if (counts[k] == 1) continue;
      repeated[size] = k;
      times[size++] = counts[k];
    }
    repeated_of_parts_[static_cast<std::size_t>(part)] = size;
  }

  template <class Position>
  void count_distinct(std::int64_t part, const Position* firsts) {
    std::uint32_t distinct = 0;
    std::int64_t begin = 0;
    for (int range = 0; range < ranges_; ++range) {
      distinct_before(range, part) = distinct;
      const std::int64_t end = parts_.end(range, part) - parts_.start(0, part);
      distinct += static_cast<std::uint32_t>(count_firsts(firsts, begin, end));
      begin = end;
    }
    distinct_before(ranges_, part) = distinct;
  }

  void number_part(DeviceContext& context, std::int64_t part, Table& table) {
    if (kind_ == Marks::kNone)
      number_part<Marks::kNone>(context, part, table);
    else if (kind_ == Marks::kCounts)
      number_part<Marks::kCounts>(context, part, table);
    else if (kind_ == Marks::kNumbers)
      number_part<Marks::kNumbers>(context, part, table);
    else
      number_part<Marks::kNumbersAndCounts>(context, part, table);
  }

  template <Marks kMarks>
  void number_part(DeviceContext& context, std::int64_t part, Table& table) {
    const Allocation counts_apart(
        context, kMarks == Marks::kNone ? parts_.size(part) * sizeof(std::uint32_t) : std::size_t{0}, nullptr);
    std::uint32_t* const counts = kMarks == Marks::kNone               ? counts_apart.as<std::uint32_t>()
                                  : kMarks == Marks::kNumbersAndCounts ? counts_of(part)
                                                                       : nullptr;
    const std::uint32_t first = first_number(part);
    std::uint32_t number = first;
    std::uint32_t mark = first_mark(part);
    for (int range = 0; range < ranges_; ++range) {
      distinct_before(range, part) = number - first;
      const auto number_block = [&](std::int64_t begin, std::int64_t count) {
        if (number - first + count > table.room()) {
          Table larger(context, 4 * table.most_lines(), table.hash());
          table.copy_to(larger);
          table = std::move(larger);
        }
        Word words[kWordBlock];  // copied, because marks take their place, from the part's begin on
        const std::byte* const from = this->words() + begin * kWordBytes;
        for (std::int64_t j = 0; j < count; ++j) words[j] = load_word<Word>(from, j, kWordBytes);
        number = number_words<kMarks>(part, words, count, mark, number, counts, table);
        mark += static_cast<std::uint32_t>(count);
      };
      in_pieces(parts_.start(range, part), parts_.end(range, part), kKeysPerPiece,
                [&](std::int64_t begin, std::int64_t end) { for_each_word_block(begin, end, number_block); });
    }
    distinct_before(ranges_, part) = number - first;
    if constexpr (kMarks == Marks::kNone) leave_repeated(part, counts);
  }

  /// Leaves marks for a block of words, from slot `mark` on; `number` is the next distinct word's, and so is the
  /// result. `counts`: of the part's distinct words, where they are counted apart.
  template <Marks kMarks>
  std::uint32_t number_words(std::int64_t part, const Word* words, std::int64_t count, std::uint32_t mark,
                             std::uint32_t number, std::uint32_t* counts, const Table& table) const {
    constexpr bool kCountsApart = kMarks == Marks::kNumbersAndCounts || kMarks == Marks::kNone;
    std::uint32_t* const slots = this->slots();
    const std::uint32_t first = first_number(part);
    std::uint32_t begins[kWordBlock + kLinesAhead];
    table.lines_of(words, count, begins);
    std::fill_n(begins + count, kLinesAhead, 0u);
    const Lines<Word> lines = table.lines();
    with_simd([&]<class Simd>(Simd) {
      for (std::int64_t j = 0; j < count; ++j, ++mark) {
        lines.prefetch(begins[j + kLinesAhead]);
        if constexpr (kMarks == Marks::kCounts) {
          slots[mark] = 0;
          const auto visit = lines.template visit<Simd>(words[j], begins[j], mark);
          ++slots[visit.id];
          number += visit.is_new;
        } else {
          if constexpr (kCountsApart) counts[number - first] = 0;
          if constexpr (kMarks == Marks::kNone) {
            words_of(part)[number - first] = words[j];
            positions_of(part)[number - first] = positions_of(part)[mark - first_mark(part)];
          }
          const auto visit = lines.template visit<Simd>(words[j], begins[j], number);
          if constexpr (kCountsApart) ++counts[visit.id - first];
          if constexpr (kMarks != Marks::kNone) slots[mark] = visit.id | visit.is_new << 31;
          number += visit.is_new;
        }
      }
    });
    return number;
  }

  template <bool kLater, class Body>
  void replay_codes(int range, Body body) {
    auto marks = marks_of(range);
    auto known = scratch<std::uint32_t>(kLater ? parts() : 0);  // numbers below are of words of earlier ranges
    for (std::int64_t part = 0; kLater && part < parts(); ++part)
      known[static_cast<std::size_t>(part)] = first_number(part) + distinct_before(range, part);
    std::uint32_t* const slots = this->slots();
    const auto forgotten = static_cast<std::uint32_t>(range * kSlotsOfLine);
    auto id = static_cast<std::uint32_t>(first_id(range));
    Firsts firsts;
    const auto replay = [&](const Word* words, const std::uint16_t* parts, const std::uint16_t* at, std::int64_t count,
                            std::int64_t base) {
      std::int64_t codes[kWordBlock];
      std::uint32_t* const next = marks.data();
      const std::uint32_t* const earlier = known.data();
      std::int64_t size = 0;
      // Ids lie anywhere in their parts, so they are asked for a block ahead of their use.
      std::uint32_t block_marks[kWordBlock];
      for (std::int64_t j = 0; j < count; ++j) {
        const std::uint32_t place = next[parts[j]]++;
        const std::uint32_t mark = slots[place];
        __builtin_prefetch(slots + place + kMarksAhead);
        __builtin_prefetch(slots + (mark & ~kFirst), 1);
        block_marks[j] = mark;
      }
      for (std::int64_t j = 0; j < count; ++j) {
        const std::uint32_t mark = block_marks[j];
        const std::uint32_t is_first = mark >> 31;
        const std::uint32_t number = mark & ~kFirst;
        const std::uint32_t keep = 0 - is_first;
        // Ids of words of earlier ranges are not read: other threads write them.
        const std::uint32_t is_earlier = kLater ? 0 - static_cast<std::uint32_t>(number < earlier[parts[j]]) : 0;
        const std::uint32_t seen = slots[number ^ ((number ^ forgotten) & is_earlier)];
        slots[forgotten ^ ((forgotten ^ number) & keep)] = id;
        std::int64_t code = seen ^ ((seen ^ id) & keep);
        if constexpr (kLater) code ^= (code ^ -std::int64_t{number}) & static_cast<std::int32_t>(is_earlier);
        codes[j] = code;
        firsts.at[size] = static_cast<std::uint16_t>(j);
        firsts.counts[size] = number;
        size += is_first;
        id += is_first;
      }
      firsts.size = size;
      read_counts(firsts, parts);
      body(words, at, count, base, firsts, codes);
    };
    streams_.for_each(range, replay);
  }

  WordStreams<Word>& streams_;
  WordParts<Word> parts_;
  int ranges_;
  Marks kind_;
  std::vector<std::uint32_t> distinct_before_;    // [ranges + 1][parts]
  std::vector<std::int64_t> first_ids_;           // [ranges + 1]
  std::vector<std::int64_t> first_ids_of_parts_;  // [parts], with kNone: there ids come part by part
  std::vector<std::uint32_t> repeated_of_parts_;  // [parts], with kNone: words that occur more than once
  Allocation memory_;                             // slots; those of parts hold the words at first
  Allocation counts_;                             // [words in all parts], of each part from its begin on, or none
  Allocation positions_;                          // likewise
};

}  // namespace gpuhash::host
