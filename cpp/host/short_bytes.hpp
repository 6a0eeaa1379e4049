#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "shared/hash.hpp"
#include "shared/layout.hpp"

/// Few bytes, of a number that is known only when it runs, at any alignment: by two moves that may overlap, and none
/// beyond their end. memcpy() is called for each, and takes 5 to 14 ns, more where its masked moves meet others.
namespace gpuhash::host {

namespace detail {

template <class Word>
Word load_whole(const void* from) {
  Word word;
  std::memcpy(&word, from, sizeof(Word));
  return word;
}

template <class Word>
void store_whole(void* to, const Word& word) {
  std::memcpy(to, &word, sizeof(Word));
}

/// Calls body(part) with a word of which two cover `bytes` bytes, 1 to 16.
template <class Body>
auto with_half(std::int64_t bytes, const Body& body) {
  if (bytes >= 8) return body(std::uint64_t{});
  if (bytes >= 4) return body(std::uint32_t{});
  if (bytes >= 2) return body(std::uint16_t{});
  return body(std::uint8_t{});
}

template <class Part>
void copy_both(void* to, const void* from, std::int64_t bytes) {
  const std::int64_t second = bytes - static_cast<std::int64_t>(sizeof(Part));
  const auto low = load_whole<Part>(from);
  const auto high = load_whole<Part>(static_cast<const std::byte*>(from) + second);
  store_whole(to, low);
  store_whole(static_cast<std::byte*>(to) + second, high);
}

/// The low bytes of a word, 1 to 8; the others are zero.
inline std::uint64_t load_short(const void* from, std::int64_t bytes) {
  if (bytes == 8) return load_whole<std::uint64_t>(from);
  return with_half(bytes, [&]<class Part>(Part) {
    const std::int64_t second = bytes - static_cast<std::int64_t>(sizeof(Part));
    const std::uint64_t low = load_whole<Part>(from);
    return low | std::uint64_t{load_whole<Part>(static_cast<const std::byte*>(from) + second)} << (8 * second);
  });
}

/// Calls body(store), where store(to, word) writes the `bytes` low bytes of a word, 1 to sizeof(Word).
template <class Word, class Body>
void with_low_bytes_store(std::int64_t bytes, const Body& body) {
  if constexpr (sizeof(Word) == 16) {
    if (bytes > 8) {
      const std::int64_t second = bytes - 8;  // 1 to 8
      return body([second](void* to, const Word& word) {
        const std::uint64_t last = word.low >> (8 * (second - 1)) >> 8 | word.high << (8 * (8 - second));
        store_whole(to, word.low);
        store_whole(static_cast<std::byte*>(to) + second, last);
      });
    }
  }
  const auto low = [](const Word& word) -> std::uint64_t {
    if constexpr (sizeof(Word) == 16)
      return word.low;
    else
      return word;
  };
  with_half(bytes, [&]<class Part>(Part) {
    const std::int64_t second = bytes - static_cast<std::int64_t>(sizeof(Part));
    body([second, low](void* to, const Word& word) {
      store_whole(to, static_cast<Part>(low(word)));
      store_whole(static_cast<std::byte*>(to) + second, static_cast<Part>(low(word) >> (8 * second)));
    });
  });
}

}  // namespace detail

/// Reads `bytes` bytes, 1 to sizeof(Word), as the low ones of a word; the others are zero.
template <class Word>
Word load_low_bytes(const void* from, std::int64_t bytes) {
  if constexpr (sizeof(Word) == 16) {
    if (bytes <= 8) return {detail::load_short(from, bytes), 0};
    const auto* const end = static_cast<const std::byte*>(from) + bytes;
    return {detail::load_whole<std::uint64_t>(from), detail::load_whole<std::uint64_t>(end - 8) >> (8 * (16 - bytes))};
  } else {
    return static_cast<Word>(detail::load_short(from, bytes));
  }
}

template <class Word>
void store_low_bytes(void* to, std::int64_t bytes, const Word& word) {
  detail::with_low_bytes_store<Word>(bytes, [&](const auto& store) { store(to, word); });
}

/// The index-th of an array of words of `bytes` bytes each, of any alignment. The common sizes are single moves.
template <class Word>
Word load_word(const void* data, std::int64_t index, std::int64_t bytes) {
  const void* const from = static_cast<const char*>(data) + index * bytes;
  if (bytes == sizeof(Word)) return detail::load_whole<Word>(from);
  if (sizeof(Word) > 4 && bytes == 4) return key_from_word<Word>(detail::load_whole<std::uint32_t>(from));
  return load_low_bytes<Word>(from, bytes);
}

template <class Word>
void store_word(void* data, std::int64_t index, std::int64_t bytes, const Word& word) {
  void* const to = static_cast<char*>(data) + index * bytes;
  if (bytes == sizeof(Word))
    detail::store_whole(to, word);
  else
    store_low_bytes(to, bytes, word);
}

/// memcpy() of mostly few bytes; of none, which may lie nowhere. Where one move does it there is no second one: what
/// waits to be written has few places.
inline void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes == 4) return detail::store_whole(to, detail::load_whole<std::uint32_t>(from));
  if (bytes == 8) return detail::store_whole(to, detail::load_whole<std::uint64_t>(from));
  if (bytes == 16) return detail::store_whole(to, detail::load_whole<Uint128>(from));
  if (bytes > 16)
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  else if (bytes != 0)
    detail::with_half(bytes, [&]<class Part>(Part) { detail::copy_both<Part>(to, from, bytes); });
}

}  // namespace gpuhash::host
