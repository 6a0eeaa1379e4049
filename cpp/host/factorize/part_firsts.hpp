#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "host/factorize/word_hash.hpp"
#include "host/short_bytes.hpp"

namespace gpuhash::host {

/// Finds for each word of a part where it occurs first in the part. For one thread, and for a cache.
///
/// There is no table that words are put into. All positions are written into *places* that the hash picks, the last one
/// first, so that each place is left with the earliest of the positions that share it. Then each word looks into its
/// place: if the word at the position there is the same, that is its first occurrence. Words that share a place with
/// another word that came before are *left*, with all of their copies, and take the same two steps once more, by
/// another hash; of distinct words it is one of ten. No step has a branch that depends on a word, or waits for the one
/// before, so it takes the same time however many words are distinct. A place that was not written is not read, so that
/// none is ever cleared.
///
/// On an AMD EPYC of the fifth generation it takes 1.6 to 2.1 ns a word, where a table of lines of eight words
/// took 4.0; with a branch for new words that took 1.5 where all are distinct, and 5.0 where every other one is.
template <class Position>
class PartFirsts {
 public:
  /// Words of a part, at most.
  static constexpr std::int64_t kMost = std::int64_t{1} << (sizeof(Position) < 4 ? 8 * sizeof(Position) : 31);

  /// Positions that it needs memory for, for parts of up to `most` words.
  static std::int64_t room(std::int64_t most) { return (std::int64_t{1} << bits_for(most)) + 4 * most; }

  /// `memory`: of room(most), as it is. Words of all parts are told apart by the bits of the hash below the highest
  /// `skipped`.
  PartFirsts(Position* memory, std::int64_t most, int skipped = 0) : memory_(memory), most_(most), skipped_(skipped) {}

  /// [count]: the position of each word's first occurrence, after find().
  const Position* firsts() const { return memory_; }
  /// [most], for whoever reads firsts(), until find() is called.
  Position* scratch() const { return memory_ + most_; }

  /// words [count], count <= most. They are read as bytes, as others may write something else in their place later.
  template <class Word>
  void find(const Word* words, const WordHash<Word>& hash, std::int64_t count) const {
    const auto word = [words](std::int64_t i) { return detail::load_whole<Word>(words + i); };
    Position* const firsts = memory_;
    Position* const picked = firsts + most_;  // the place of each word
    Position* left = picked + most_;
    Position* left_again = left + most_;
    Position* const places = left_again + most_;

    const int bits = bits_for(count);
    const int shift = hash.kBits - skipped_ - bits;
    hash.bits_of(words, count, shift, (std::uint32_t{1} << bits) - 1, picked);
    write_places(picked, count, places);
    std::int64_t left_count = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const Position first = places[picked[i]];
      firsts[i] = first;
      left[left_count] = static_cast<Position>(i);
      left_count += word(first) == word(i) ? 0 : 1;
    }
    // In each round the earliest word of every place that was written is done.
    for (std::uint64_t factor = kFactor; left_count != 0; factor *= kFactor) {
      const int places_shift = 64 - bits_for(left_count);
      for (std::int64_t n = 0; n < left_count; ++n)
        picked[n] = static_cast<Position>(std::uint64_t{hash(word(left[n]))} * factor >> places_shift);
      for (std::int64_t n = left_count; n-- > 0;) places[picked[n]] = left[n];
      std::int64_t count_again = 0;
      for (std::int64_t n = 0; n < left_count; ++n) {
        const Position i = left[n];
        const Position first = places[picked[n]];
        firsts[i] = first;
        left_again[count_again] = i;
        count_again += word(first) == word(i) ? 0 : 1;
      }
      left_count = count_again;
      std::swap(left, left_again);
    }
  }

 private:
  /// Words between asking for a place and writing it. Stores wait for their lines one after the other otherwise: 1.6 of
  /// 3.4 ns a word where places take 128 KiB, on a Xeon of the fifth generation; 8 to 48 are as good.
  static constexpr std::int64_t kPlacesAhead = 24;

  static void write_places(const Position* picked, std::int64_t count, Position* places) {
    const std::int64_t first = std::min(count, kPlacesAhead);
    for (std::int64_t i = count; i-- > first;) {
      __builtin_prefetch(places + picked[i - kPlacesAhead], 1);
      places[picked[i]] = static_cast<Position>(i);
    }
    for (std::int64_t i = first; i-- > 0;) places[picked[i]] = static_cast<Position>(i);
  }

  /// Odd: hashes that agree in the bits that picked a place get others, as their lower bits differ.
  static constexpr std::uint64_t kFactor = 0xd1342543de82ef95u;
  /// More places than that lie beyond the second cache.
  static constexpr int kMostBits = sizeof(Position) < 4 ? static_cast<int>(8 * sizeof(Position)) : 18;

  /// Of the number of places: four to eight for each word. With as many again, nothing was gained.
  static int bits_for(std::int64_t words) {
    const auto most = static_cast<std::uint64_t>(std::max<std::int64_t>(words, 2)) - 1;
    return std::min<int>(kMostBits, static_cast<int>(std::bit_width(most)) + 2);
  }

  Position* memory_;
  std::int64_t most_;
  int skipped_;
};

/// How many words of a part are distinct, by their first occurrences.
template <class Position>
std::int64_t count_firsts(const Position* firsts, std::int64_t begin, std::int64_t end) {
  std::int64_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += firsts[i] == i ? 1 : 0;
  return sum;
}

}  // namespace gpuhash::host
