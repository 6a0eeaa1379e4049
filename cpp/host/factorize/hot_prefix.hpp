#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "host/factorize/hot_words.hpp"
#include "host/factorize/word_hash.hpp"
#include "host/factorize/word_way.hpp"
#include "host/parallel.hpp"

namespace gpuhash::host {

/// The first keys of a batch, its *prefix*, tell what the others are like.
inline constexpr std::int64_t kPrefix = 16 * kWordBlock;

/// What the prefix of a batch, and a sample of all of it, tell of words that come often.
template <class Word>
struct HotPrefix {
  /// Keys of the sample, and those that a key that comes often has among them: one of 64.
  static constexpr std::int64_t kSample = std::int64_t{1} << 10;
  static constexpr std::int64_t kFrequent = kSample / 64;
  /// Part of the sample that has to be hot for hot keys to be set aside. (Never: 3.5 times, 2^22 int64, 0.8 of them
  /// hot.)
  static constexpr double kLeastHot = 0.4;

  /// In any order hot words come after all others.
  struct Listed {
    Word word;
    std::int64_t first;  // its position in the prefix
    std::int64_t place;
    std::int64_t count;
  };

  /// Takes words that came at least twice in the prefix, of two in one place the more frequent. Finds their part of a
  /// sample of the whole batch: a text says the same again within some thousand letters, and not later. Notes those
  /// that make up much of the sample by themselves. prefix: the words of the prefix, and how often each has come.
  template <class SmallTable>
  void choose(const WordBatch<Word>& batch, const SmallTable& prefix) {
    words = uninitialised<HotWords<Word>>(1);
    // Which of two words in one place is hot decides about the order of ids in any order: as the seed has it, then.
    words[0].clear(batch.any_order ? WordHash<Word>::of(batch.options.order_seed) : batch.hash);
    auto times = scratch<std::int64_t>(HotWords<Word>::kPlaces);
    for (std::int64_t id = 0; id < prefix.size(); ++id) {
      std::int64_t& most = times[static_cast<std::size_t>(words[0].place(prefix.word(id)))];
      if (prefix.count(id) < 2 || prefix.count(id) <= most) continue;
      most = prefix.count(id);
      words[0].put(prefix.word(id), static_cast<std::uint32_t>(id));
    }
    std::ranges::fill(times, 0);
    std::int64_t sum = 0;
    for (std::int64_t j = 0; j < kSample; ++j) {
      Word buffer;
      const Word word = *batch.blocks.read((batch.ranges.count - 1) * j / (kSample - 1), 1, &buffer);
      const std::uint64_t place = words[0].place(word);
      if (words[0].word_at(place) != word) continue;
      ++sum;
      if (++times[static_cast<std::size_t>(place)] != kFrequent) continue;
      if (std::ssize(frequent) < WordStreams<Word>::kMostFrequent) frequent.push_back(word);
    }
    part = static_cast<double>(sum) / kSample;
  }

  /// Lists hot words, for any order. `prefix` may have got more words meanwhile.
  template <class SmallTable>
  void list(const SmallTable& prefix) {
    for (std::int64_t place = 0; place < HotWords<Word>::kPlaces; ++place) {
      const std::uint32_t id = words[0].id_at(static_cast<std::uint64_t>(place));
      const Word word = prefix.word(id);
      if (words[0].word_at(place) == word) listed.push_back({word, prefix.first(id), place, 0});
    }
  }

  bool sets_aside() const { return part >= kLeastHot; }

  std::unique_ptr<HotWords<Word>[]> words;  // [1]; ids are those of the prefix
  double part = 0;                          // of the sample, that is hot
  std::vector<Word> frequent;  // words that make up much of the sample by themselves (1.26 times without, 0.3 one word)
  std::vector<Listed> listed;  // of any order, if they are set aside
};

}  // namespace gpuhash::host
