#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "host/parallel.hpp"

namespace gpuhash::host {

/// A word to sort by, and what goes with it.
template <class Id>
struct NumberedWord {
  std::uint64_t word;
  Id id;
};

/// The least and the greatest of `count` > 0 words word_at(i).
template <class WordAt>
std::pair<std::uint64_t, std::uint64_t> word_limits(std::int64_t count, WordAt word_at) {
  const int ranges = reader_parts(count);
  auto least = scratch<std::uint64_t>(ranges);
  auto most = scratch<std::uint64_t>(ranges);
  for_each_part(count, ranges, [&](int range, std::int64_t begin, std::int64_t end) {
    std::uint64_t low = word_at(begin);
    std::uint64_t high = low;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint64_t word = word_at(i);
      low = std::min(low, word);
      high = std::max(high, word);
    }
    least[static_cast<std::size_t>(range)] = low;
    most[static_cast<std::size_t>(range)] = high;
  });
  return {*std::min_element(least.begin(), least.end()), *std::max_element(most.begin(), most.end())};
}

/// Sorts by words, from their highest bits on: one pass on several threads deals the items out to buckets of about a
/// thousand, which a second pass, in cache, leaves nearly sorted, and an insertion sort in order. Words are taken
/// relative to the least one, so that bits that all have in common cost nothing. Where the words are such that a bucket
/// has far more than others, it is sorted like the whole. Not stable.
///
/// Items are words or NumberedWords.
template <class Item>
class RadixSort {
 public:
  /// Sorts `count` items; the lowest `low` bits of their words do not matter. `other` has room for as many.
  static void sort(Item* items, Item* other, std::int64_t count, int low = 0) {
    sort_on_threads<false>(items, other, count, low);
  }

 private:
  /// Sorted on one thread, and longest runs of equal digits that are left to the insertion sort.
  static constexpr std::int64_t kSmall = std::int64_t{1} << 12;
  static constexpr std::uint32_t kFew = 16;
  static constexpr int kMostBits = 12;
  static constexpr int kMostBitsInCache = 11;
  static constexpr std::int64_t kItemsAhead = 8;

  struct Counts {
    std::uint32_t of[(std::size_t{1} << kMostBitsInCache) + 1];
  };

  static std::uint64_t word(std::uint64_t item) { return item; }
  template <class Id>
  static std::uint64_t word(const NumberedWord<Id>& item) {
    return item.word;
  }
  static int width(std::int64_t number) { return std::bit_width(static_cast<std::uint64_t>(number)); }

  /// The sorted items come into `other` if kMoved, else into `items`.
  template <bool kMoved>
  static void sort_on_threads(Item* items, Item* other, std::int64_t count, int low) {
    if (count == 0) return;
    const auto limits = word_limits(count, [&](std::int64_t i) { return word(items[i]); });
    const std::uint64_t least = limits.first >> low << low;  // what does not matter carries nothing over
    const std::uint64_t most = limits.second;
    const int top = std::bit_width(most - least);
    if (count <= kSmall || top <= low) return sort_run<kMoved>(items, other, count, {least, top, low});

    const int bits = std::min(top - low, std::clamp(width(count) - kMostBitsInCache, 1, kMostBits));
    const int shift = top - bits;
    const int ranges = reader_parts(count);
    const std::int64_t buckets = std::int64_t{1} << bits;
    const auto bucket = [&](const Item& item) { return static_cast<std::size_t>((word(item) - least) >> shift); };
    auto starts = scratch<std::int64_t>(buckets * ranges + 1);
    for_each_part(count, ranges, [&](int range, std::int64_t begin, std::int64_t end) {
      auto sums = scratch<std::int64_t>(buckets);
      for (std::int64_t i = begin; i < end; ++i) ++sums[bucket(items[i])];
      for (std::int64_t b = 0; b < buckets; ++b)
        starts[static_cast<std::size_t>(b * ranges + range)] = sums[static_cast<std::size_t>(b)];
    });
    std::int64_t sum = 0;
    for (std::int64_t& start : starts) sum += std::exchange(start, sum);
    interruption_point();
    for_each_part(count, ranges, [&](int range, std::int64_t begin, std::int64_t end) {
      auto places = scratch<std::int64_t>(buckets);
      for (std::int64_t b = 0; b < buckets; ++b)
        places[static_cast<std::size_t>(b)] = starts[static_cast<std::size_t>(b * ranges + range)];
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t place = places[bucket(items[i])]++;
        other[place] = items[i];
        __builtin_prefetch(other + place + kItemsAhead, 1);
      }
    });

    const std::int64_t large = std::max(4 * kSmall, 4 * count / buckets);
    const auto begin_of = [&](std::int64_t b) { return starts[static_cast<std::size_t>(b * ranges)]; };
    std::atomic<std::int64_t> taken{0};
    const std::int64_t group = std::max<std::int64_t>(1, buckets / 64);
    parallel_for(ranges, [&](int) {
      for (std::int64_t first; (first = taken.fetch_add(group, std::memory_order_relaxed)) < buckets;) {
        interruption_point();
        for (std::int64_t b = first; b < std::min(buckets, first + group); ++b) {
          const std::int64_t size = begin_of(b + 1) - begin_of(b);
          const std::uint64_t base = least + (static_cast<std::uint64_t>(b) << shift);
          if (size <= large) sort_run<!kMoved>(other + begin_of(b), items + begin_of(b), size, {base, shift, low});
        }
      }
    });
    for (std::int64_t b = 0; b < buckets; ++b)
      if (const std::int64_t size = begin_of(b + 1) - begin_of(b); size > large)
        sort_on_threads<!kMoved>(other + begin_of(b), items + begin_of(b), size, low);
  }

  /// Bits [low, top) of word - least are to be sorted by; higher ones are 0.
  struct Span {
    std::uint64_t least;
    int top;
    int low;
  };

  template <bool kMoved>
  static void sort_run(Item* items, Item* other, std::int64_t count, const Span& span) {
    if (count <= kFew || span.top <= span.low) {
      if constexpr (kMoved) std::copy_n(items, count, other);
      if (span.top > span.low) sort_few(kMoved ? other : items, count);
      return;
    }
    const int bits = std::min({span.top - span.low, width(count), kMostBitsInCache});
    const int shift = span.top - bits;
    const auto digit = [&](const Item& item) { return (word(item) - span.least) >> shift; };
    const std::int64_t digits = std::int64_t{1} << bits;
    Counts counts;
    std::fill_n(counts.of, digits + 1, 0u);
    for (std::int64_t i = 0; i < count; ++i) ++counts.of[digit(items[i]) + 1];
    std::uint32_t longest = 0;
    std::uint32_t sum = 0;
    if (counts.of[digit(items[0]) + 1] == count) return sort_narrower<kMoved>(items, other, count, span);
    for (std::int64_t d = 1; d <= digits; ++d) {
      longest = std::max(longest, counts.of[d]);
      counts.of[d] = sum += counts.of[d];
    }
    for (std::int64_t i = 0; i < count; ++i) other[counts.of[digit(items[i])]++] = items[i];
    if (longest <= kFew) {
      if (shift > span.low) sort_few(other, count);
      if constexpr (!kMoved) std::copy_n(other, count, items);
      return;
    }
    std::int64_t begin = 0;
    for (std::int64_t d = 0; d < digits; ++d) {
      const std::int64_t end = counts.of[d];
      const std::uint64_t base = span.least + (static_cast<std::uint64_t>(d) << shift);
      if (end > begin) sort_run<!kMoved>(other + begin, items + begin, end - begin, {base, shift, span.low});
      begin = end;
    }
  }

  /// The run's items agree in the digit they were to be dealt out by: looks how many bits are left.
  template <bool kMoved>
  static void sort_narrower(Item* items, Item* other, std::int64_t count, const Span& span) {
    std::uint64_t least = word(items[0]);
    std::uint64_t most = least;
    for (std::int64_t i = 0; i < count; ++i) {
      least = std::min(least, word(items[i]));
      most = std::max(most, word(items[i]));
    }
    least = least >> span.low << span.low;
    sort_run<kMoved>(items, other, count, {least, static_cast<int>(std::bit_width(most - least)), span.low});
  }

  static void sort_few(Item* items, std::int64_t count) {
    for (std::int64_t i = 1; i < count; ++i) {
      const Item item = items[i];
      std::int64_t to = i;
      for (; to > 0 && word(items[to - 1]) > word(item); --to) items[to] = items[to - 1];
      items[to] = item;
    }
  }
};

}  // namespace gpuhash::host
