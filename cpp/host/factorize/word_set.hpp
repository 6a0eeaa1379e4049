#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include <gpuhash/device_context.hpp>
#include "host/factorize/word_blocks.hpp"
#include "host/factorize/word_hash.hpp"
#include "host/simd/simd.hpp"

namespace gpuhash::host {

/// A set of words that is filled once and then only read: lines of eight words, which are compared at once. The lines
/// are those of *parts* of equal length, one after the other: a part has the words with the same highest bits of their
/// hash, so threads fill parts side by side, each in its cache. A full line goes over into the next of its part.
///
/// 0 stands for no word and is itself kept apart. Lines fill from the left: whether one is full is seen in its last
/// word, and no other array is read.
template <class Word>
class WordSet {
 public:
  static constexpr std::int64_t kWordsOfLine = 8;
  /// Memory for each word that the set is to hold.
  static constexpr std::int64_t kBytesOfWord = 2 * sizeof(Word);
  /// Words that are added at a time; there has to be room for as many.
  static constexpr std::int64_t kAdded = 256;

  /// Lines of a part that is to hold that many words.
  static std::int64_t lines_for(std::int64_t words) {
    return std::max((words + kLoad - 1) / kLoad, (words + kAdded) / (kWordsOfLine - 1) + 1);
  }

  /// `parts`, a power of two, of `lines` lines each; parts are not empty before clear(). Words are told apart by the
  /// bits of the hash below the highest `skipped`.
  WordSet(DeviceContext& context, const WordHash<Word>& hash, std::int64_t parts, std::int64_t lines, int skipped = 0)
      : memory_(context, static_cast<std::size_t>(parts * lines * kLineBytes), nullptr),
        hash_(hash),
        lines_(static_cast<std::uint32_t>(lines)),
        all_lines_(static_cast<std::uint32_t>(parts * lines)),
        skipped_(skipped) {}

  void clear(std::int64_t part) {
    std::memset(words() + part * lines_ * kWordsOfLine, 0, static_cast<std::size_t>(lines_ * kLineBytes));
  }

  /// Words that a part can hold.
  std::int64_t room() const { return lines_ * kWordsOfLine - 1; }

  /// Adds `count` <= kAdded words of a part; returns how many are new.
  std::int64_t add(std::int64_t part, const Word* words, std::int64_t count) {
    std::uint32_t lines[kAdded + kLinesAhead];
    lines_of(words, count, lines);
    const auto begin = static_cast<std::uint32_t>(part * lines_);
    const std::uint32_t end = begin + lines_;
    std::fill_n(lines + count, kLinesAhead, begin);
    Word* const all = this->words();
    std::int64_t added = 0;
    bool zero = false;
    with_simd([&]<class Simd>(Simd) {
      alignas(64) Word forgotten[kWordsOfLine];
      for (std::int64_t j = 0; j < count; ++j) {
        prefetch(lines[j + kLinesAhead]);
        const Word word = words[j];
        zero |= word == 0;
        for (std::uint32_t at = lines[j];; at = at + 1 == end ? begin : at + 1) {
          Word* const line = all + std::uint64_t{at} * kWordsOfLine;
          const std::uint32_t open = Simd::words_equal(line, Word{0});
          const std::uint32_t match = Simd::words_equal(line, word);
          if ((open | match) == 0) [[unlikely]]
            continue;
          // No branch on whether the word is there; LineTable tells why.
          const bool is_new = match == 0;
          Word* const place = is_new ? line + std::countr_zero(open | 1u << (kWordsOfLine - 1)) : forgotten;
          *place = word;
          added += is_new;
          break;
        }
      }
    });
    if (zero) has_zero_ = true;
    return added;
  }

  /// mask[j] = (is words[j] in the set) != invert.
  void contains(const Word* words, std::int64_t count, bool invert, bool* mask) const {
    with_simd([&]<class Simd>(Simd) { contains<Simd>(words, count, invert, mask); });
  }

  /// Places for words, and one for 0.
  std::int64_t slots() const { return all_lines_ * kWordsOfLine + 1; }
  /// to[j] = the slot of words[j], or -1 where it is not there.
  void slots_of(const Word* words, std::int64_t count, std::int64_t* to) const {
    std::uint32_t lines[kWordBlock + kLinesAhead];
    lines_of(words, count, lines);
    std::fill_n(lines + count, kLinesAhead, 0u);
    for (std::int64_t j = 0; j < count; ++j) {
      prefetch(lines[j + kLinesAhead]);
      to[j] = words[j] == 0 ? (has_zero_ ? slots() - 1 : -1) : slot_from(lines[j], words[j]);
    }
  }

 private:
  /// Words that a line is meant to hold on average.
  static constexpr std::int64_t kLoad = 4;
  static constexpr std::int64_t kLineBytes = kWordsOfLine * sizeof(Word);
  static_assert(kLineBytes == kLoad * kBytesOfWord);
  static constexpr std::int64_t kLinesAhead = 32;

  Word* words() const { return memory_.as<Word>(); }
  [[gnu::always_inline]] void prefetch(std::uint32_t line) const {
    __builtin_prefetch(words() + std::uint64_t{line} * kWordsOfLine);
  }

  void lines_of(const Word* words, std::int64_t count, std::uint32_t* to) const {
    if (std::has_single_bit(all_lines_)) {  // 0.6 ns instead of 1.05
      const int bits = std::countr_zero(all_lines_);
      return hash_.bits_of(words, count, hash_.kBits - skipped_ - bits, all_lines_ - 1, to);
    }
    const WordHash<Word> hash = hash_;
    const int skipped = skipped_;
    const std::uint32_t lines = all_lines_;
    for (std::int64_t j = 0; j < count; ++j) {
      const auto bits = static_cast<std::uint32_t>(static_cast<Word>(hash(words[j]) << skipped) >> (hash.kBits - 32));
      to[j] = static_cast<std::uint32_t>(std::uint64_t{bits} * lines >> 32);
    }
  }

  /// The next line of the same part.
  std::uint32_t next(std::uint32_t line) const { return (line + 1) % lines_ == 0 ? line + 1 - lines_ : line + 1; }

  /// The slot of a word that is not in the lines between its own and this one; -1: it is in none.
  [[gnu::noinline]] std::int64_t slot_from(std::uint32_t line, Word word) const {
    for (;; line = next(line)) {
      const std::uint64_t first = std::uint64_t{line} * kWordsOfLine;
      const std::uint32_t match = Baseline::words_equal(words() + first, word);
      if (match != 0) return static_cast<std::int64_t>(first) + std::countr_zero(match);
      if (words()[first + kWordsOfLine - 1] == 0) return -1;
    }
  }

  template <class Simd>
  void contains(const Word* words, std::int64_t count, bool invert, bool* mask) const {
    std::uint32_t lines[kWordBlock + kLinesAhead];
    lines_of(words, count, lines);
    std::fill_n(lines + count, kLinesAhead, 0u);
    const Word* const all = this->words();
    const std::uint64_t inverted = invert ? ~std::uint64_t{0} : 0;
    const std::uint64_t of_zero = has_zero_ ? ~std::uint64_t{0} : 0;
    for (std::int64_t begin = 0; begin < count; begin += 64) {
      const auto size = static_cast<std::size_t>(std::min<std::int64_t>(64, count - begin));
      const auto ask = [&](std::size_t j) { prefetch(lines[begin + static_cast<std::int64_t>(j) + kLinesAhead]); };
      const LooksOf64 looks = Simd::look_at_lines(all, lines + begin, words + begin, size, ask);
      const std::uint64_t zeros = Simd::zeros_of(words + begin, size);
      std::uint64_t match = (looks.match & ~zeros) | (zeros & of_zero);
      for (std::uint64_t rest = looks.undecided & ~zeros; rest != 0; rest &= rest - 1) {
        const int j = std::countr_zero(rest);
        match |= std::uint64_t{slot_from(next(lines[begin + j]), words[begin + j]) >= 0} << j;
      }
      Simd::store_flags(mask + begin, match ^ inverted, size);
    }
  }

  Allocation memory_;
  WordHash<Word> hash_;
  std::uint32_t lines_;      // of a part
  std::uint32_t all_lines_;  // of all parts
  int skipped_;
  bool has_zero_ = false;  // written by who fills the first part: the hash of 0 is 0
};

}  // namespace gpuhash::host
