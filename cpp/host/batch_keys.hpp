#pragma once

#include <cstddef>
#include <cstdint>

#include <gpuhash/batches.hpp>
#include "host/walk.hpp"

/// How the keys of a batch are read: by their numbers from some position on.
namespace gpuhash::host {

/// Keys in a row, each a word: as wide as the table's, or half as wide. Lists of them have words likewise.
template <class Key, class Word>
struct RowKeys {
  using ListedWord = Word;
  const Word* data;  // of any alignment
  Key operator[](std::int64_t n) const { return Key{detail::load_whole<Word>(data + n)}; }
};
/// Keys in a row, of any width; in lists as wide as the table's.
template <class Key>
struct AnyKeys {
  using ListedWord = Key;
  const void* data;
  std::int64_t bytes;
  Key operator[](std::int64_t n) const { return load_word<Key>(data, n, bytes); }
};

template <class Keys>
inline constexpr bool kAreWords = false;
template <class Key, class Word>
inline constexpr bool kAreWords<RowKeys<Key, Word>> = true;

/// Are there loops for keys of half a word, too? int32 keys have slots of 8 bytes where the values have as many.
template <class View>
inline constexpr bool kHasHalfWords = View::kHasValue && sizeof(typename View::Key) == 2 * sizeof(std::uint32_t);

/// Are keys words, for which there are loops of their own? They are faster than those for keys of any width.
template <class View>
bool are_words(const KeyBatch& keys) {
  return keys.bytes == sizeof(typename View::Key) || (kHasHalfWords<View> && keys.bytes == sizeof(std::uint32_t));
}

/// Calls body(word) with a value of the type that a list of these keys has: as wide as words are, else as the table's.
template <class View, class Body>
void with_word_type(const KeyBatch& keys, const Body& body) {
  if constexpr (kHasHalfWords<View>)
    if (keys.bytes == sizeof(std::uint32_t)) return body(std::uint32_t{});
  body(typename View::Key{});
}

/// Calls body(keys) with what reads words from the `first` one of the batch on.
template <class View, class Body>
void with_words(const KeyBatch& batch, std::int64_t first, const Body& body) {
  with_word_type<View>(batch, [&]<class Word>(Word) {
    body(RowKeys<typename View::Key, Word>{static_cast<const Word*>(batch.data) + first});
  });
}

template <class View>
AnyKeys<typename View::Key> any_keys(const KeyBatch& batch, std::int64_t first) {
  return {static_cast<const std::byte*>(batch.data) + first * batch.bytes, batch.bytes};
}

/// Calls body(keys) with what reads the keys of a batch from the `first` one on.
template <class View, class Body>
void with_keys(const KeyBatch& batch, std::int64_t first, const Body& body) {
  if (are_words<View>(batch)) return with_words<View>(batch, first, body);
  body(any_keys<View>(batch, first));
}

}  // namespace gpuhash::host
