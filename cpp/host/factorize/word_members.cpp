#include "host/factorize/word_members.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "host/factorize/narrow_set.hpp"
#include "host/factorize/word_parts.hpp"
#include "host/factorize/word_set.hpp"
#include "host/factorize/word_streams.hpp"
#include "shared/first_occurrence.hpp"

namespace gpuhash::host {
namespace {

/// Where one thread is to fill a set of at most so many bytes, words are put into it as they come: that takes 3 ns a
/// word, and to partition them first takes 5 (2.0 times as long in all, 2^14 keys of Zipf's law).
constexpr std::int64_t kMostBytesAtOnce = std::int64_t{1} << 23;
/// Parts that are looked at before the set is made.
constexpr std::int64_t kPartsLookedAt = 8;

/// Adds words [begin, end) to a part. False: there is no room for all of them.
template <class Word>
bool fill_part(WordSet<Word>& set, std::int64_t part, const Word* words, std::int64_t count, std::int64_t& distinct) {
  set.clear(part);
  distinct = 0;
  for (std::int64_t begin = 0; begin < count; begin += WordSet<Word>::kAdded) {
    const std::int64_t size = std::min(WordSet<Word>::kAdded, count - begin);
    if (distinct + size > set.room()) return false;
    distinct += set.add(part, words + begin, size);
  }
  return true;
}

/// About as many distinct words a part has. Any few parts tell, as words are dealt out by a hash.
template <class Word>
std::int64_t distinct_of_part(DeviceContext& context, const WordParts<Word>& parts, const Word* words) {
  const std::int64_t average = parts.count() >> parts.bits();
  std::int64_t most = -1;
  for (std::int64_t part = 0; part < kPartsLookedAt; ++part) {
    if (parts.size(part) > 2 * average) continue;  // copies of few words, as a rule
    WordSet<Word> set(context, parts.hash(), 1, WordSet<Word>::lines_for(parts.size(part)), parts.bits());
    std::int64_t distinct = 0;
    fill_part(set, 0, words + parts.start(0, part), parts.size(part), distinct);
    most = std::max(most, distinct);
  }
  if (most < 0) return average;
  return most + static_cast<std::int64_t>(6 * std::sqrt(static_cast<double>(most))) + 8;
}

/// False: a part has more words than there is room for.
template <class Word>
bool fill(WordSet<Word>& set, const WordParts<Word>& parts, const Word* words) {
  std::atomic<bool> has_room{true};
  parts.for_each_group([&](int, std::int64_t begin, std::int64_t end) {
    std::int64_t distinct = 0;
    for (std::int64_t part = begin; part < end && has_room.load(std::memory_order_relaxed); ++part)
      if (!fill_part(set, part, words + parts.start(0, part), parts.size(part), distinct))
        has_room.store(false, std::memory_order_relaxed);
  });
  return has_room.load();
}

template <class Word>
WordSet<Word> make_set(DeviceContext& context, const WordBlocks<Word>& blocks, std::int64_t count) {
  const WordHash<Word> hash;  // no answer depends on its seeds, and nobody can pick keys that meet
  if (reader_parts(count) == 1 && count * WordSet<Word>::kBytesOfWord <= kMostBytesAtOnce) {
    WordSet<Word> set(context, hash, 1, std::bit_ceil(static_cast<std::uint64_t>(WordSet<Word>::lines_for(count))));
    set.clear(0);
    Word buffer[kWordBlock];
    for (std::int64_t base = 0; base < count; base += WordSet<Word>::kAdded) {
      const std::int64_t size = std::min(WordSet<Word>::kAdded, count - base);
      set.add(0, blocks.read(base, size, buffer), size);
    }
    return set;
  }
  WordStreams<Word> streams(context, blocks, Ranges(count));
  const WordParts<Word> parts(streams, hash, std::nullopt, count);
  const Allocation memory(context, static_cast<std::size_t>(count) * sizeof(Word), nullptr);
  parts.scatter(streams, memory.as<std::byte>());
  const auto* const words = memory.as<Word>();
  for (std::int64_t lines = WordSet<Word>::lines_for(distinct_of_part(context, parts, words));; lines *= 2) {
    WordSet<Word> set(context, hash, parts.parts(), lines);
    if (fill(set, parts, words)) return set;
  }
}

/// Calls body(words, count, base) for all blocks, several at a time.
template <class Word, class Body>
void for_each_block(const WordBlocks<Word>& blocks, std::int64_t count, Body body) {
  for_each_chunk(count,
                 [&](std::int64_t begin, std::int64_t end) { for_each_block_of_words(blocks, begin, end, body); });
}

template <class Word>
class WordMembers {
 public:
  WordMembers(DeviceContext& context, const NumberKeys& elements, const NumberKeys& tests, bool invert, bool* mask)
      : context_(context),
        elements_(elements),
        tests_(tests),
        element_count_(elements.count),
        test_count_(tests.count),
        invert_(invert),
        mask_(mask) {}

  void find() const {
    if (find_by_number()) return;
    if (is_table_of_tests(element_count_, test_count_))
      find_in(make_set(context_, tests_, test_count_));
    else
      find_by_elements();
  }

 private:
  /// False: the numbers do not lie close together.
  bool find_by_number() const {
    const bool by_tests = is_table_of_tests(element_count_, test_count_);
    const std::int64_t most_bytes =
        std::max(kLeastNarrowBytes, WordSet<Word>::kBytesOfWord * (by_tests ? test_count_ : element_count_));
    const auto numbers = static_cast<std::uint64_t>(most_bytes) * 8;
    const std::optional<Span<Word>> span = by_tests
                                               ? narrow_span(tests_, test_count_, elements_, element_count_, numbers)
                                               : narrow_span(elements_, element_count_, tests_, test_count_, numbers);
    if (!span) return false;
    find_in(NarrowSet<Word>(context_, *span, tests_, test_count_, 2 * most_bytes));
    return true;
  }

  template <class Set>
  void find_in(const Set& set) const {
    for_each_block(elements_, element_count_, [&](const Word* words, std::int64_t count, std::int64_t base) {
      set.contains(words, count, invert_, mask_ + base);
    });
  }

  /// With a set of the elements, because they are much fewer.
  void find_by_elements() const {
    const WordSet<Word> set = make_set(context_, elements_, element_count_);
    // One byte per slot: is its word a test element?
    const Allocation met(context_, static_cast<std::size_t>(set.slots()), nullptr);
    auto* const bytes = met.as<std::uint8_t>();
    std::memset(bytes, 0, met.bytes());
    for_each_block(tests_, test_count_, [&](const Word* words, std::int64_t count, std::int64_t) {
      std::int64_t slots[kWordBlock];
      set.slots_of(words, count, slots);
      for (std::int64_t j = 0; j < count; ++j) {
        if (slots[j] < 0) continue;
        const std::atomic_ref byte(bytes[slots[j]]);
        if (byte.load(std::memory_order_relaxed) == 0) byte.store(1, std::memory_order_relaxed);
      }
    });
    for_each_block(elements_, element_count_, [&](const Word* words, std::int64_t count, std::int64_t base) {
      std::int64_t slots[kWordBlock];
      set.slots_of(words, count, slots);
      // An element that somebody has changed meanwhile may have none.
      for (std::int64_t j = 0; j < count; ++j) mask_[base + j] = (slots[j] >= 0 && bytes[slots[j]] != 0) != invert_;
    });
  }

  /// For bits, however few keys there are. (Without bits: 9.6 times, 2^20 tests, and elements a 64th of them.)
  static constexpr std::int64_t kLeastNarrowBytes = 4096;

  DeviceContext& context_;
  WordBlocks<Word> elements_;
  WordBlocks<Word> tests_;
  std::int64_t element_count_;
  std::int64_t test_count_;
  bool invert_;
  bool* mask_;
};

}  // namespace

void find_word_members(DeviceContext& context, const NumberKeys& elements, const NumberKeys& tests, bool invert,
                       bool* mask) {
  if (elements.bytes() <= 4)
    WordMembers<std::uint32_t>(context, elements, tests, invert, mask).find();
  else
    WordMembers<std::uint64_t>(context, elements, tests, invert, mask).find();
}

}  // namespace gpuhash::host
