#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>

#include <gpuhash/device_context.hpp>
#include "host/factorize/word_blocks.hpp"
#include "host/parallel.hpp"
#include "host/simd/simd.hpp"

namespace gpuhash::host {

/// Words as numbers in order: those of signed integers have their sign turned, so that -1 lies beside 0.
template <class Word>
Word turned_sign(const NumberFormat& format) {
  return format.is_signed && format.elements == 1 ? static_cast<Word>(Word{1} << (format.bits - 1)) : Word{0};
}

/// All numbers from `least` to `most`; none where `least` is larger.
template <class Word>
struct Span {
  Word least = std::numeric_limits<Word>::max();
  Word most = 0;

  /// Widens it to hold these numbers, too.
  void add(const Word* words, std::int64_t count, Word turned) {
    with_simd([&](auto) {
      Word low = least;
      Word high = most;
      for (std::int64_t j = 0; j < count; ++j) {
        low = std::min(low, static_cast<Word>(words[j] ^ turned));
        high = std::max(high, static_cast<Word>(words[j] ^ turned));
      }
      least = low;
      most = high;
    });
  }
  void add(const Span& other) {
    least = std::min(least, other.least);
    most = std::max(most, other.most);
  }
  Span common(const Span& other) const { return {std::max(least, other.least), std::min(most, other.most)}; }
  bool fits(std::uint64_t numbers) const { return least > most || std::uint64_t{most} - least < numbers; }
  /// Of a span that fits somewhere.
  std::uint64_t numbers() const { return least > most ? 0 : std::uint64_t{most} - least + 1; }
};

/// The span of the first `count` keys. What it has in common with `other` counts: once that does not fit `numbers`
/// numbers any more, the rest is left out.
template <class Word>
Span<Word> span_of(const WordBlocks<Word>& blocks, std::int64_t count, const Span<Word>& other, std::uint64_t numbers) {
  const auto turned = turned_sign<Word>(blocks.format());
  Span<Word> all;
  std::mutex mutex;
  std::atomic<bool> is_wide{false};
  for_each_chunk(count, [&](std::int64_t begin, std::int64_t end) {
    if (is_wide.load(std::memory_order_relaxed)) return;
    Span<Word> span;
    for_each_block_of_words(blocks, begin, end,
                            [&](const Word* words, std::int64_t size, std::int64_t) { span.add(words, size, turned); });
    const std::lock_guard lock(mutex);
    all.add(span);
    if (!all.common(other).fits(numbers)) is_wide.store(true, std::memory_order_relaxed);
  });
  return all;
}

/// The numbers that two arrays have in common, if they are among `numbers` numbers one after the other: those from the
/// least to the largest of the first array, or those that both arrays' spans have in common. Arrays that spread are
/// known by their first keys, as a rule.
template <class Word>
std::optional<Span<Word>> narrow_span(const WordBlocks<Word>& first, std::int64_t first_count,
                                      const WordBlocks<Word>& second, std::int64_t second_count,
                                      std::uint64_t numbers) {
  constexpr Span<Word> kAll{0, std::numeric_limits<Word>::max()};
  const Span<Word> sample = span_of(second, std::min(kWordBlock, second_count), kAll, numbers);
  const Span<Word> of_first = span_of(first, first_count, sample, numbers);
  if (of_first.fits(numbers)) return of_first;
  if (!of_first.common(sample).fits(numbers)) return std::nullopt;
  const Span<Word> common = of_first.common(span_of(second, second_count, of_first, numbers));
  return common.fits(numbers) ? std::optional(common) : std::nullopt;
}

/// A set of words that are numbers of a span: one bit for each number.
template <class Word>
class NarrowSet {
 public:
  /// Those of the keys that lie in the span. Each of several threads has bits of its own first, `most_bytes` in all.
  NarrowSet(DeviceContext& context, const Span<Word>& span, const WordBlocks<Word>& blocks, std::int64_t count,
            std::int64_t most_bytes)
      : place_{span.least, turned_sign<Word>(blocks.format()), span.numbers()},
        ranges_(ranges_for(count, most_bytes)),
        memory_(context, static_cast<std::size_t>(ranges_) * bytes(), nullptr) {
    parallel_for(ranges_, [&](int range) {
      std::memset(bits(range), 0, bytes());
      in_pieces(part_begin(count, range, ranges_), part_begin(count, range + 1, ranges_), kKeysPerPiece,
                [&](std::int64_t begin, std::int64_t end) { add(blocks, begin, end, bits(range)); });
    });
    if (ranges_ > 1)
      for_each_chunk(static_cast<std::int64_t>(bytes() / kWordBytes), [&](std::int64_t begin, std::int64_t end) {
        for (int range = 1; range < ranges_; ++range)
          for (std::int64_t i = begin; i < end; ++i) bits(0)[i] |= bits(range)[i];
      });
    bits(0)[place_.numbers / 64] &= ~(std::uint64_t{1} << (place_.numbers % 64));
  }

  /// mask[j] = (is words[j] in the set) != invert.
  void contains(const Word* words, std::int64_t count, bool invert, bool* mask) const {
    const std::uint64_t* const all = bits(0);
    with_simd([=, place = place_](auto) {
      for (std::int64_t j = 0; j < count; ++j) {
        const std::uint64_t bit = place(words[j]);
        mask[j] = (all[bit / 64] >> (bit % 64) & 1) != static_cast<std::uint64_t>(invert);
      }
    });
  }

 private:
  static constexpr std::int64_t kWordBytes = sizeof(std::uint64_t);

  /// The bit of a word: its own, or for words outside of the span one more, which is not set.
  struct Place {
    Word least;
    Word turned;
    std::uint64_t numbers;
    std::uint64_t operator()(Word word) const {
      return std::min(std::uint64_t{static_cast<Word>((word ^ turned) - least)}, numbers);
    }
  };

  std::size_t bytes() const { return (place_.numbers / 64 + 1) * kWordBytes; }
  std::uint64_t* bits(int range) const {
    return reinterpret_cast<std::uint64_t*>(memory_.as<std::byte>() + static_cast<std::size_t>(range) * bytes());
  }
  int ranges_for(std::int64_t count, std::int64_t most_bytes) const {
    const std::int64_t most = std::min(most_bytes / static_cast<std::int64_t>(bytes()), kMostWriters);
    return static_cast<int>(std::clamp<std::int64_t>(most, 1, reader_parts(count)));
  }

  void add(const WordBlocks<Word>& blocks, std::int64_t begin, std::int64_t end, std::uint64_t* to) const {
    const Place place = place_;
    for_each_block_of_words(blocks, begin, end, [&](const Word* words, std::int64_t size, std::int64_t) {
      for (std::int64_t j = 0; j < size; ++j) {
        const std::uint64_t bit = place(words[j]);
        to[bit / 64] |= std::uint64_t{1} << (bit % 64);
      }
    });
  }

  Place place_;
  int ranges_;
  Allocation memory_;  // [ranges_] of bits; the first are those of all
};

}  // namespace gpuhash::host
