#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include <gpuhash/device_context.hpp>
#include "host/factorize/word_hash.hpp"
#include "host/simd/simd.hpp"

namespace gpuhash::host {

/// A small copyable view of a LineTable, for one thread's loop.
template <class Word>
struct Lines {
  static constexpr std::uint32_t kWords = 8;

  Word* words;          // [1 + lines][kWords]; line 0 takes what is to be forgotten
  std::uint32_t* ids;   // [1 + lines][kWords]
  std::uint8_t* taken;  // [lines], words in each; lines fill from the left
  std::uint32_t mask;   // lines - 1

  struct Visit {
    std::uint32_t id;
    std::uint32_t is_new;  // 1 or 0
  };

  [[gnu::always_inline]] void prefetch(std::uint32_t line) const {
    __builtin_prefetch(words + (std::uint64_t{line} + 1) * kWords, 1);
    __builtin_prefetch(ids + (std::uint64_t{line} + 1) * kWords, 1);
  }

  /// The id of the word, which gets `fresh` if it is not there yet. `line` is where its search begins.
  ///
  /// Without a branch on whether it is there: where half of the keys are new, that would be predicted wrong every other
  /// time, which took 6.0 ns a key in a prototype. A word that is there is stored into line 0 and not over itself: a
  /// line that has just been written by words is slow to read as a whole.
  template <class Simd = Baseline>
  Visit visit(Word word, std::uint32_t line, std::uint32_t fresh) const {
    for (;; line = (line + 1) & mask) {
      const std::uint32_t open = taken[line];
      const std::uint64_t begin = (std::uint64_t{line} + 1) * kWords;
      const std::uint32_t end_mark = 1u << open;
      const std::uint32_t match = (Simd::words_equal(words + begin, word) & (end_mark - 1)) | end_mark;
      const auto lane = static_cast<std::uint32_t>(std::countr_zero(match));
      if (lane == kWords) [[unlikely]]
        continue;
      const std::uint32_t is_new = lane == open;
      const std::uint64_t keep = 0 - std::uint64_t{is_new};
      const std::uint32_t known = ids[begin + lane];
      words[(begin + lane) & keep] = word;
      ids[(begin + lane) & keep] = fresh;
      taken[line] = static_cast<std::uint8_t>(open + is_new);
      return {known ^ ((known ^ fresh) & static_cast<std::uint32_t>(keep)), is_new};
    }
  }
};

/// A table for one thread and for a cache: words of 64 or 32 bits in lines of eight, which are compared at once, each
/// with an id. Full lines go over into the next.
template <class Word>
class LineTable {
 public:
  /// Words that a line is meant to hold on average; one of 50 is full then.
  static constexpr std::int64_t kLoad = 4;

  /// Lines for that many words: between a half and all of the load.
  static std::int64_t lines_for(std::int64_t words) {
    const std::int64_t least = (std::max(words, 2 * kLoad) + kLoad - 1) / kLoad;
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(least)));
  }

  /// Room for `most_lines`, a power of two from 2 on, which are told apart by the highest bits of the hash.
  LineTable(DeviceContext& context, std::int64_t most_lines, const WordHash<Word>& hash)
      : words_(context, bytes_of_lines(most_lines, sizeof(Word)), nullptr),
        ids_(context, bytes_of_lines(most_lines, sizeof(std::uint32_t)), nullptr),
        taken_(context, static_cast<std::size_t>(most_lines), nullptr),
        hash_(hash) {
    clear(most_lines);
  }

  /// Empty, and of that many lines, as many as it has room for or fewer.
  void clear(std::int64_t lines) {
    lines_ = lines;
    shift_ = hash_.kBits - std::countr_zero(static_cast<std::uint64_t>(lines));
    std::memset(taken_.get(), 0, static_cast<std::size_t>(lines));
  }

  const WordHash<Word>& hash() const { return hash_; }
  std::int64_t most_lines() const { return static_cast<std::int64_t>(taken_.bytes()); }
  /// Words that it may hold.
  std::int64_t room() const { return lines_ * kLoad; }
  Lines<Word> lines() const {
    return {words_.as<Word>(), ids_.as<std::uint32_t>(), taken_.as<std::uint8_t>(),
            static_cast<std::uint32_t>(lines_ - 1)};
  }
  /// to[j] = the line where the search for words[j] begins.
  void lines_of(const Word* words, std::int64_t count, std::uint32_t* to) const {
    hash_.bits_of(words, count, shift_, static_cast<std::uint32_t>(lines_ - 1), to);
  }

  /// The same words and ids in another table, which has more lines.
  void copy_to(LineTable& other) const {
    constexpr std::uint32_t kWords = Lines<Word>::kWords;
    const Lines<Word> from = lines();
    const Lines<Word> to = other.lines();
    for (std::int64_t line = 0; line < lines_; ++line) {
      const Word* const words = from.words + (line + 1) * kWords;
      std::uint32_t begins[kWords];
      other.lines_of(words, from.taken[line], begins);
      for (std::uint32_t s = 0; s < from.taken[line]; ++s)
        to.visit(words[s], begins[s], from.ids[(line + 1) * kWords + s]);
    }
  }

 private:
  static std::size_t bytes_of_lines(std::int64_t lines, std::size_t bytes_of_word) {
    return static_cast<std::size_t>(lines + 1) * Lines<Word>::kWords * bytes_of_word;
  }

  Allocation words_;
  Allocation ids_;
  Allocation taken_;
  WordHash<Word> hash_;
  int shift_ = 0;
  std::int64_t lines_ = 0;
};

}  // namespace gpuhash::host
