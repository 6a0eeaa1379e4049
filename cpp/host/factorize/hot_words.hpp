#pragma once

#include <algorithm>
#include <cstdint>

#include "host/factorize/word_blocks.hpp"
#include "host/factorize/word_hash.hpp"

namespace gpuhash::host {

/// Some words that come often, at most one in each of 4096 places: a load and a comparison tell whether a word is one.
template <class Word>
class HotWords {
 public:
  static constexpr int kBits = 12;
  static constexpr std::int64_t kPlaces = std::int64_t{1} << kBits;

  /// No words.
  void clear(const WordHash<Word>& hash) {
    hash_ = hash;
    // What no search for it comes to: 0 belongs to place 0, and some other word does not.
    Word elsewhere = 1;
    while (place(elsewhere) == 0) ++elsewhere;
    std::fill_n(words_, kPlaces, Word{0});
    std::fill_n(ids_, kPlaces, 0u);
    words_[0] = elsewhere;
  }
  void put(Word word, std::uint32_t id) {
    words_[place(word)] = word;
    ids_[place(word)] = id;
  }
  /// Where somebody has changed the keys since, there may be fewer ids than there were.
  void limit_ids(std::uint32_t most) {
    for (std::uint32_t& id : ids_) id = std::min(id, most);
  }
  std::uint64_t place(Word word) const { return hash_(word) >> kShift; }
  std::uint32_t id_at(std::uint64_t place) const { return ids_[place]; }
  Word word_at(std::uint64_t place) const { return words_[place]; }
  void places_of(const Word* words, std::int64_t count, std::uint16_t* to) const {
    hash_.bits_of(words, count, kShift, kPlaces - 1, to);
  }

  /// Of `count` words at `places`, moves those that are not hot to `rest`, in order, their numbers to `at` and their
  /// places to `rest_places`, and counts the others in hits[place]. Returns how many are left. What is written to has
  /// room for all.
  std::int64_t set_aside(const Word* words, const std::uint16_t* places, std::int64_t count, std::uint32_t* hits,
                         Word* rest, std::uint16_t* at, std::uint16_t* rest_places) const {
    std::int64_t left = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      const Word word = words[j];
      const std::uint16_t place = places[j];
      const std::uint32_t is_hot = words_[place] == word;
      hits[place] += is_hot;
      rest[left] = word;
      at[left] = static_cast<std::uint16_t>(j);
      rest_places[left] = place;
      left += 1 - is_hot;
    }
    return left;
  }

 private:
  static constexpr int kShift = WordHash<Word>::kBits - kBits;

  WordHash<Word> hash_;
  alignas(64) Word words_[kPlaces];
  std::uint32_t ids_[kPlaces];
};

}  // namespace gpuhash::host
