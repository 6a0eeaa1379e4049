#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include <gpuhash/factorization.hpp>
#include "host/factorize/key_reader.hpp"
#include "host/short_bytes.hpp"
#include "shared/key_numbers.hpp"

namespace gpuhash {
namespace {

using host::load_word;
using host::store_word;

constexpr std::int64_t kBlock = 1024;

/// Calls body(Word{}) with the unsigned integer that is as wide as a key.
template <class Body>
void with_word(const NumberKeys& keys, Body body) {
  if (!is_order_reversible(number_format(keys.dtype, keys.elements)))
    throw std::invalid_argument("order words are of keys of one number each, and not of complex ones");
  switch (keys.bytes()) {
    case 1:
      return body(std::uint8_t{});
    case 2:
      return body(std::uint16_t{});
    case 4:
      return body(std::uint32_t{});
    default:
      return body(std::uint64_t{});
  }
}

/// words[i] = change(word i of `from`); both may be the same. By way of a block in cache that nothing else refers to,
/// so that the compiler makes vectors of the loop.
template <class Word, class Change>
void change_each(const void* from, void* words, std::int64_t count, Change change) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Word));
  host::for_each_chunk(count, [&](std::int64_t begin, std::int64_t end) {
    const Change own = change;
    Word block[kBlock];
    for (; begin < end; begin += kBlock) {
      const std::int64_t size = std::min(kBlock, end - begin);
      std::memcpy(block, static_cast<const char*>(from) + begin * kBytes, static_cast<std::size_t>(size * kBytes));
      for (std::int64_t j = 0; j < size; ++j) block[j] = static_cast<Word>(own(block[j]));
      std::memcpy(static_cast<char*>(words) + begin * kBytes, block, static_cast<std::size_t>(size * kBytes));
    }
  });
}

/// Puts in words[at] the first key whose canonical word is `wanted`, as it stands. Leaves it as it is where there is
/// none: another thread may change the keys.
template <class Word>
void restore_first(void* words, std::int64_t at, const NumberKeys& keys, std::uint64_t wanted) {
  const NumberFormat format = number_format(keys.dtype, 1);
  const auto is_wanted = [&](std::int64_t i) {
    return gpuhash::detail::canonical_float(load_word<Word>(keys.data, i, sizeof(Word)), format) == wanted;
  };
  for (std::int64_t begin = 0; begin < keys.count; begin += kBlock) {
    const std::int64_t end = std::min(keys.count, begin + kBlock);
    std::int64_t met = 0;
    for (std::int64_t i = begin; i < end; ++i) met += is_wanted(i) ? 1 : 0;
    for (std::int64_t i = begin; met != 0 && i < end; ++i)
      if (is_wanted(i)) return store_word(words, at, sizeof(Word), load_word<Word>(keys.data, i, sizeof(Word)));
  }
}

/// The first of `count` ascending words that is no less than `word`.
template <class Word>
std::int64_t lower_bound(const void* words, std::int64_t count, Word word) {
  std::int64_t begin = 0;
  while (count > 0) {
    const std::int64_t half = count / 2;
    const bool less = load_word<Word>(words, begin + half, sizeof(Word)) < word;
    begin = less ? begin + half + 1 : begin;
    count = less ? count - half - 1 : half;
  }
  return begin;
}

}  // namespace

void write_order_words(const NumberKeys& keys, void* words) {
  const NumberFormat format = number_format(keys.dtype, keys.elements);
  with_word(keys, [&]<class Word>(Word) {
    const auto write = [&](auto canonical) {
      change_each<Word>(keys.data, words, keys.count, [format, canonical](std::uint64_t raw) {
        return gpuhash::detail::ordered(canonical(raw, format), format);
      });
    };
    if (format.is_float)
      write([](std::uint64_t raw, const NumberFormat& of) { return gpuhash::detail::canonical_float(raw, of); });
    else if (format.is_bool)
      write([](std::uint64_t raw, const NumberFormat&) { return gpuhash::detail::canonical_bools(raw); });
    else
      write([](std::uint64_t raw, const NumberFormat&) { return raw; });
  });
}

void read_order_words(void* words, std::int64_t count, const NumberKeys& keys) {
  const NumberFormat format = number_format(keys.dtype, keys.elements);
  with_word(keys, [&]<class Word>(Word) {
    const auto find = [&](std::uint64_t number) {
      const auto word = static_cast<Word>(gpuhash::detail::ordered(number, format));
      const std::int64_t at = lower_bound<Word>(words, count, word);
      return at < count && load_word<Word>(words, at, sizeof(Word)) == word ? at : count;
    };
    const std::uint64_t nan = gpuhash::detail::canonical_nan(format);
    const std::int64_t zero_at = find(0);
    const std::int64_t nan_at = find(nan);
    change_each<Word>(words, words, count, [format](std::uint64_t word) { return key_of_order(word, format); });
    if (format.is_float && zero_at < count) restore_first<Word>(words, zero_at, keys, 0);
    if (format.is_float && nan_at < count) restore_first<Word>(words, nan_at, keys, nan);
  });
}

}  // namespace gpuhash
