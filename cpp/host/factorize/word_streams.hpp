#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "host/factorize/hot_words.hpp"
#include "host/factorize/word_blocks.hpp"
#include "host/parallel.hpp"

namespace gpuhash::host {

/// 0, 1, 2 ...: where the words of a whole block stand in it.
inline constexpr auto kEachOfBlock = [] {
  std::array<std::uint16_t, kWordBlock> numbers{};
  for (std::int64_t j = 0; j < kWordBlock; ++j) numbers[static_cast<std::size_t>(j)] = static_cast<std::uint16_t>(j);
  return numbers;
}();

/// A batch dealt out to threads in ranges of whole blocks.
struct Ranges {
  std::int64_t count;  // keys of the batch
  int parts;

  explicit Ranges(std::int64_t keys)
      : count(keys), parts(static_cast<int>(std::min<std::int64_t>(reader_parts(keys), kMostWriters))) {}
  std::int64_t begin(int range) const {
    return std::min(count, part_begin((count + kWordBlock - 1) / kWordBlock, range, parts) * kWordBlock);
  }
  std::int64_t end(int range) const { return begin(range + 1); }
};

/// The words of a batch that are to be partitioned, in order: all of them, or those that are not hot. Whoever makes the
/// first pass writes a number down for each word, so that nobody need hash it again.
template <class Word>
class WordStreams {
 public:
  /// Words that may get parts of their own, at most: each takes a comparison for every word.
  static constexpr std::int64_t kMostFrequent = 8;

  /// All words. `frequent`: some that come so often that each gets a part of its own.
  WordStreams(DeviceContext& context, const WordBlocks<Word>& blocks, const Ranges& ranges,
              std::vector<Word> frequent = {})
      : blocks_(blocks),
        ranges_(ranges),
        frequent_(std::move(frequent)),
        numbers_(context, static_cast<std::size_t>(ranges.count) * sizeof(std::uint16_t), nullptr) {}

  /// The first `whole` keys, and after them those that are not hot. Nothing is read before first_pass().
  WordStreams(DeviceContext& context, const WordBlocks<Word>& blocks, const Ranges& ranges, const HotWords<Word>& hot,
              std::int64_t whole)
      : blocks_(blocks),
        ranges_(ranges),
        numbers_(context, static_cast<std::size_t>(ranges.count) * sizeof(std::uint16_t), nullptr),
        hot_(&hot),
        whole_(whole),
        rest_(context, static_cast<std::size_t>(ranges.count) * sizeof(Word), nullptr),
        at_(context, static_cast<std::size_t>(ranges.count) * sizeof(std::uint16_t), nullptr),
        block_sizes_(scratch<std::uint16_t>((ranges.count + kWordBlock - 1) / kWordBlock)),
        hits_(scratch<std::uint32_t>(ranges.parts * kPlaces)) {}

  const WordBlocks<Word>& blocks() const { return blocks_; }
  const Ranges& ranges() const { return ranges_; }
  const std::vector<Word>& frequent() const { return frequent_; }
  /// Null: all words are there.
  const HotWords<Word>* hot() const { return hot_; }
  std::int64_t hits(std::int64_t place) const {
    std::int64_t sum = 0;
    for (int range = 0; range < ranges_.parts; ++range) sum += hits_[static_cast<std::size_t>(range * kPlaces + place)];
    return sum;
  }

  /// The first pass over a range: sets hot words aside, if any are, and calls body(words, numbers, count) for the
  /// blocks of what is left, which writes the numbers. Where hot() is not null they are the words' places in it until
  /// then.
  template <class Body>
  void first_pass(int range, Body body) {
    if (hot_ == nullptr)
      return for_each_of_batch(range, [&](const Word* words, std::int64_t count, std::int64_t base) {
        body(words, numbers_.as<std::uint16_t>() + base, count);
      });
    Word* rest = rest_.as<Word>() + ranges_.begin(range);
    std::uint16_t* at = at_.as<std::uint16_t>() + ranges_.begin(range);
    std::uint16_t* numbers = numbers_.as<std::uint16_t>() + ranges_.begin(range);
    // A thread's counts are its own until the end: others' lie beside them.
    auto hits = scratch<std::uint32_t>(kPlaces);
    for_each_of_batch(range, [&](const Word* words, std::int64_t count, std::int64_t base) {
      std::int64_t left = count;
      if (base < whole_) {
        std::copy_n(words, count, rest);
        std::copy_n(kEachOfBlock.data(), count, at);
        hot_->places_of(words, count, numbers);
      } else {
        std::uint16_t places[kWordBlock];
        hot_->places_of(words, count, places);
        left = hot_->set_aside(words, places, count, hits.data(), rest, at, numbers);
      }
      body(rest, numbers, left);
      block_sizes_[static_cast<std::size_t>(base / kWordBlock)] = static_cast<std::uint16_t>(left);
      rest += left;
      at += left;
      numbers += left;
    });
    std::copy_n(hits.data(), kPlaces, hits_.data() + range * kPlaces);
  }

  /// Frees what for_each() reads, when it has been called for the last time.
  void forget_words() {
    for (Allocation* const memory : {&numbers_, &rest_, &at_}) *memory = Allocation();
  }

  /// Calls body(words, numbers, at, count, base) for the blocks of a range, in order: words[j] stands at base + at[j].
  template <class Body>
  void for_each(int range, Body body) const {
    const std::uint16_t* numbers = numbers_.as<std::uint16_t>() + ranges_.begin(range);
    if (hot_ == nullptr)
      return for_each_of_batch(range, [&](const Word* words, std::int64_t count, std::int64_t base) {
        body(words, numbers, kEachOfBlock.data(), count, base);
        numbers += count;
      });
    const Word* rest = rest_.as<Word>() + ranges_.begin(range);
    const std::uint16_t* at = at_.as<std::uint16_t>() + ranges_.begin(range);
    in_pieces(ranges_.begin(range), ranges_.end(range), kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
      for_each_word_block(begin, end, [&](std::int64_t base, std::int64_t) {
        const std::int64_t count = block_sizes_[static_cast<std::size_t>(base / kWordBlock)];
        body(rest, numbers, at, count, base);
        rest += count;
        at += count;
        numbers += count;
      });
    });
  }

  /// Calls body(words, count, base) for the whole blocks of a range, in order.
  template <class Body>
  void for_each_of_batch(int range, Body body) const {
    in_pieces(ranges_.begin(range), ranges_.end(range), kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
      Word buffer[kWordBlock];
      for_each_word_block(begin, end, [&](std::int64_t base, std::int64_t count) {
        body(blocks_.read(base, count, buffer), count, base);
      });
    });
  }

 private:
  static constexpr std::int64_t kPlaces = HotWords<Word>::kPlaces;

  const WordBlocks<Word>& blocks_;
  Ranges ranges_;
  std::vector<Word> frequent_;
  Allocation numbers_;  // [n], of each range those of its words, from its begin on
  const HotWords<Word>* hot_ = nullptr;
  std::int64_t whole_ = 0;
  Allocation rest_;                         // [n] words, of each range those that are left, from its begin on
  Allocation at_;                           // likewise, where they stand in their blocks
  std::vector<std::uint16_t> block_sizes_;  // [blocks], words that are left
  std::vector<std::uint32_t> hits_;         // [ranges][places]
};

}  // namespace gpuhash::host
