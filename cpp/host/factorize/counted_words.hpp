#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include <gpuhash/device_context.hpp>
#include "host/factorize/word_blocks.hpp"
#include "host/factorize/word_hash.hpp"
#include "host/simd/simd.hpp"

namespace gpuhash::host {

/// The distinct words of 32 bits of a range, in order of first occurrence, and how often each has come. A list is
/// filled by one thread; those of several ranges are put together by all of them.
///
/// A line has eight words and their counts, 64 bytes, so that a word of the range costs one line. The counts lie in a
/// half of their own, since a half that has just been written by words is slow to read as a vector. 0 stands for no
/// word, and is itself counted in one more line behind the others. Full lines go over into the next.
class CountedWords {
 public:
  using Word = std::uint32_t;

  /// For at most `most` words; it begins small, so that it lies in the first cache if it can.
  CountedWords(DeviceContext& context, std::int64_t most, const WordHash<Word>& hash)
      : context_(&context), most_(most), hash_(hash) {
    make_lines(std::min(lines_for(kWordBlock), lines_for(most_)));
  }

  std::int64_t size() const { return size_; }
  bool has_room_for(std::int64_t words) const { return size_ + words <= most_; }
  Word word(std::int64_t id) const { return words_.as<Word>()[id]; }
  std::int64_t first(std::int64_t id) const { return firsts_.as<std::uint32_t>()[id]; }
  /// Once it has been collected. 0: an earlier list counts the word.
  std::int64_t count(std::int64_t id) const { return counts_.as<std::uint32_t>()[id]; }

  /// Room for as many words more.
  void make_room_for(std::int64_t words) {
    if (size_ + words <= room()) return;
    std::int64_t count = line_count_;
    while (count * kLoad < size_ + words) count *= 4;
    const Allocation before = std::move(lines_);
    const std::int64_t count_before = line_count_;
    make_lines(std::min(count, lines_for(most_)));
    const auto* const from = before.as<Line>();
    Line* const to = lines();
    to[line_count_].counts[0] = from[count_before].counts[0];
    for (std::int64_t l = 0; l < count_before; ++l) {
      std::uint32_t begins[kWordsOfLine + kLinesAhead];
      lines_of(from[l].words, kWordsOfLine, begins);
      for (std::int64_t s = 0; s < kWordsOfLine && from[l].words[s] != 0; ++s) {
        std::uint32_t at = begins[s];
        std::uint32_t open = Baseline::words_equal(to[at].words, Word{0});
        for (; open == 0; open = Baseline::words_equal(to[at].words, Word{0})) at = next(at);
        to[at].words[first_of(open)] = from[l].words[s];
        to[at].counts[first_of(open)] = from[l].counts[s];
      }
    }
  }

  /// Adds `count` <= kWordBlock words, the first of which stands at position `base` of the batch.
  void add(const Word* words, std::int64_t count, std::int64_t base) {
    make_room_for(count);
    std::int64_t begin = 0;
    if (!has_zero_ && any_is_zero(words, count)) {
      begin = std::find(words, words + count, Word{0}) - words;
      add_to_lines(words, begin, base);
      if (begin == count) return;  // somebody has changed the keys
      has_zero_ = true;
      words_.as<Word>()[size_] = 0;
      firsts_.as<std::uint32_t>()[size_++] = static_cast<std::uint32_t>(base + begin);
    }
    add_to_lines(words + begin, count - begin, base + begin);
  }

  /// Calls body(ids, count) for the words whose counts were not moved, in order, some at a time.
  template <class Body>
  void for_each_counted(Body body) const {
    std::int64_t ids[kWordBlock];
    for_each_word_block(0, size_, [&](std::int64_t base, std::int64_t size) {
      std::int64_t found = 0;
      for (std::int64_t id = base; id < base + size; ++id) {
        ids[found] = id;
        found += count(id) != 0 ? 1 : 0;
      }
      body(ids, found);
    });
  }

  /// Nothing is added any more: counts can be moved and collected.
  void end() {
    counts_ = Allocation(*context_, static_cast<std::size_t>(size_) * sizeof(std::uint32_t), nullptr);
    std::fill_n(counts_.as<std::uint32_t>(), size_, 1u);
  }

  /// What was counted of words [begin, end) goes over to the first of the `earlier` lists that has the word. Threads
  /// may do this side by side with other words of the same list.
  void move_counts(std::int64_t begin, std::int64_t end, std::span<const CountedWords> earlier) {
    for (const CountedWords& list : earlier)
      list.find_each(*this, begin, end, [&](std::int64_t id, std::uint32_t* count) {
        if (count == nullptr) return;
        const std::uint32_t* const own = find(id);
        *count += own == nullptr ? 0 : *own;
        counts_.as<std::uint32_t>()[id] = 0;
      });
  }

  /// Collects the counts of words [begin, end) that were not moved; returns how many there are.
  std::int64_t collect_counts(std::int64_t begin, std::int64_t end) {
    std::int64_t words = 0;
    find_each(*this, begin, end, [&](std::int64_t id, const std::uint32_t* count) {
      counts_.as<std::uint32_t>()[id] = count == nullptr ? 0 : *count;
      words += count == nullptr ? 0 : 1;
    });
    return words;
  }

 private:
  static constexpr std::int64_t kWordsOfLine = 8;
  struct alignas(64) Line {
    Word words[kWordsOfLine];
    std::uint32_t counts[kWordsOfLine];
  };
  /// Words that a line is meant to hold at most, on average.
  static constexpr std::int64_t kLoad = 5;
  static constexpr std::int64_t kLinesAhead = 24;

  static std::int64_t lines_for(std::int64_t words) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>((words + kLoad - 1) / kLoad)));
  }
  /// Of a line's bits, one of which is set, as the compiler need not know.
  static int first_of(std::uint32_t bits) { return std::countr_zero(bits | 1u << (kWordsOfLine - 1)); }
  std::int64_t room() const { return std::min(line_count_ * kLoad, most_); }
  Line* lines() const { return lines_.as<Line>(); }
  std::uint32_t next(std::uint32_t line) const { return (line + 1) & static_cast<std::uint32_t>(line_count_ - 1); }
  [[gnu::always_inline]] void prefetch(std::uint32_t line) const { __builtin_prefetch(lines() + line, 1); }

  /// The loop becomes vector instructions.
  static bool any_is_zero(const Word* words, std::int64_t count) {
    std::uint32_t zeros = 0;
    with_simd([&](auto) {
      std::uint32_t found = 0;
      for (std::int64_t j = 0; j < count; ++j) found |= words[j] == 0 ? 1u : 0u;
      zeros = found;
    });
    return zeros != 0;
  }

  /// Empty lines, and room for as many words as they may hold.
  void make_lines(std::int64_t count) {
    line_count_ = count;
    lines_ = Allocation(*context_, static_cast<std::size_t>(count + 1) * sizeof(Line), nullptr);
    std::memset(lines_.get(), 0, static_cast<std::size_t>(count) * sizeof(Line));
    lines()[count] = {{0, 1, 1, 1, 1, 1, 1, 1}, {}};
    move_to(words_, sizeof(Word));
    move_to(firsts_, sizeof(std::uint32_t));
  }
  void move_to(Allocation& of_words, std::size_t bytes) const {
    Allocation larger(*context_, static_cast<std::size_t>(room()) * bytes, nullptr);
    if (size_ != 0) std::memcpy(larger.get(), of_words.get(), static_cast<std::size_t>(size_) * bytes);
    of_words = std::move(larger);
  }

  /// begins[j] = the line where the search for words[j] begins, and some more that may be asked for.
  void lines_of(const Word* words, std::int64_t count, std::uint32_t* begins) const {
    if (count <= 0) return;  // nobody asks for a line
    const auto of_zero = static_cast<std::uint32_t>(line_count_);
    const int shift = hash_.kBits - std::countr_zero(of_zero);
    hash_.bits_of(words, count, shift, of_zero - 1, begins);
    for (std::int64_t j = 0; j < count; ++j) begins[j] = words[j] == 0 ? of_zero : begins[j];
    std::fill_n(begins + count, kLinesAhead, 0u);
  }

  /// Most words have come before, and are found by one comparison. It takes 1.8 of 4.6 ns more, in cache, to do the
  /// same for new ones without a branch, as a table of ids has to.
  void add_to_lines(const Word* words, std::int64_t count, std::int64_t base) {
    with_simd([&]<class Simd>(Simd) {
      std::uint32_t begins[kWordBlock + kLinesAhead];
      lines_of(words, count, begins);
      Line* const lines = this->lines();
      for (std::int64_t j = 0; j < count; ++j) {
        prefetch(begins[j + kLinesAhead]);
        const Word word = words[j];
        Line& line = lines[begins[j]];
        const std::uint32_t match = Simd::words_equal(line.words, word);
        if (match != 0) [[likely]]
          ++line.counts[first_of(match)];
        else
          add_further<Simd>(word, begins[j], base + j);
      }
    });
  }

  /// A word that does not lie in line `at`, where its search begins.
  template <class Simd>
  void add_further(Word word, std::uint32_t at, std::int64_t position) {
    Line* const lines = this->lines();
    std::uint32_t open = Simd::words_equal(lines[at].words, Word{0});
    while (open == 0) {
      at = next(at);
      const std::uint32_t match = Simd::words_equal(lines[at].words, word);
      if (match != 0) {
        ++lines[at].counts[first_of(match)];
        return;
      }
      open = Simd::words_equal(lines[at].words, Word{0});
    }
    const int lane = first_of(open);
    lines[at].words[lane] = word;
    lines[at].counts[lane] = 1;
    words_.as<Word>()[size_] = word;
    firsts_.as<std::uint32_t>()[size_++] = static_cast<std::uint32_t>(position);
  }

  /// Calls body(id, count) for the ids [begin, end) of a list whose counts were not moved: where the word is counted
  /// here, or null.
  template <class Body>
  void find_each(const CountedWords& list, std::int64_t begin, std::int64_t end, Body body) const {
    for_each_word_block(begin, end, [&](std::int64_t base, std::int64_t size) {
      const Word* const words = list.words_.as<Word>() + base;
      const auto* const counts = list.counts_.as<std::uint32_t>() + base;
      std::uint32_t begins[kWordBlock + kLinesAhead];
      lines_of(words, size, begins);
      with_simd([&]<class Simd>(Simd) {
        for (std::int64_t j = 0; j < size; ++j) {
          prefetch(begins[j + kLinesAhead]);
          if (counts[j] != 0) body(base + j, count_from<Simd>(words[j], begins[j]));
        }
      });
    });
  }

  /// Where word `id` is counted. Null: somebody has changed it while it was read, so it does not lie where it belongs.
  std::uint32_t* find(std::int64_t id) const {
    std::uint32_t begins[1 + kLinesAhead];
    const Word word = this->word(id);
    lines_of(&word, 1, begins);
    return count_from(word, begins[0]);
  }

  /// Null: the word is not there.
  template <class Simd = Baseline>
  std::uint32_t* count_from(Word word, std::uint32_t at) const {
    if (word == 0 && !has_zero_) return nullptr;
    for (;; at = next(at)) {
      Line& line = lines()[at];
      const std::uint32_t match = Simd::words_equal(line.words, word);
      if (match != 0) return line.counts + first_of(match);
      if (Simd::words_equal(line.words, Word{0}) != 0) return nullptr;
    }
  }

  DeviceContext* context_;
  std::int64_t most_;
  WordHash<Word> hash_;
  std::int64_t line_count_ = 0;  // a power of two, without that of 0
  std::int64_t size_ = 0;
  bool has_zero_ = false;  // has 0 come?
  Allocation lines_;       // [line_count_ + 1]
  Allocation words_;       // [room()], the first size_ of them
  Allocation firsts_;      // likewise, positions in the batch
  Allocation counts_;      // [size_], after end(); 0: moved
};

}  // namespace gpuhash::host
