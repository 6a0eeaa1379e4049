#pragma once

#include <cstdint>
#include <cstring>

#include <gpuhash/factorization.hpp>
#include "host/factorize/key_reader.hpp"
#include "host/short_bytes.hpp"

/// A *word* is a key of up to 8 bytes in its canonical form, as one unsigned number: equal keys are equal words, also
/// 0.0 and -0.0. All files here with "word" in their names compare, hash and copy words, and know of no dtypes.
namespace gpuhash::host {

/// Keys that are read at a time: their words and what is found out about them stay in the first cache.
inline constexpr std::int64_t kWordBlock = 1024;

/// The keys of a batch, of up to 8 bytes each, as canonical words; words of 32 bits where they are of up to 4.
template <class WordType>
class WordBlocks {
 public:
  using Word = WordType;
  explicit WordBlocks(const NumberKeys& keys)
      : reader_(keys),
        data_(static_cast<const char*>(keys.data)),
        in_place_(reader_.format().compares_bits() && keys.bytes() == sizeof(Word) &&
                  reinterpret_cast<std::uintptr_t>(keys.data) % alignof(Word) == 0) {}

  /// Are the batch's keys such words, and read where they lie?
  bool in_place() const { return in_place_; }
  /// Is the word all that there is to know of a key?
  bool compares_bits() const { return reader_.format().compares_bits(); }
  std::int64_t bytes() const { return reader_.bytes(); }
  const NumberFormat& format() const { return reader_.format(); }

  /// The words of keys [begin, begin + count): those of the batch, or `buffer`'s.
  const Word* read(std::int64_t begin, std::int64_t count, Word* buffer) const {
    if (in_place_) return reinterpret_cast<const Word*>(data_) + begin;
    if (is_float(8))
      read_floats<std::uint64_t>(begin, count, buffer);
    else if (is_float(4))
      read_floats<std::uint32_t>(begin, count, buffer);
    else if (!compares_bits())
      for (std::int64_t j = 0; j < count; ++j) buffer[j] = static_cast<Word>(reader_[begin + j]);
    else if (bytes() == 4)
      widen<std::uint32_t>(begin, count, buffer);
    else if (bytes() == 1)
      widen<std::uint8_t>(begin, count, buffer);
    else if (bytes() == 2)
      widen<std::uint16_t>(begin, count, buffer);
    else
      for (std::int64_t j = 0; j < count; ++j) buffer[j] = static_cast<Word>(reader_.raw(begin + j));
    return buffer;
  }

  /// What is given back of key i.
  std::uint64_t given_back(std::int64_t i) const { return gpuhash::given_back(reader_.raw(i), format()); }

  /// Writes what is given back of `count` keys, whose words and positions are word_at(k) and position_at(k), to
  /// uniques[id] and those after it.
  template <class WordAt, class PositionAt>
  void give_back(std::int64_t count, WordAt word_at, PositionAt position_at, void* uniques, std::int64_t id) const {
    const auto write = [&]<class Narrow>(Narrow) {
      constexpr std::int64_t kBytes = sizeof(Narrow);
      for (std::int64_t k = 0; k < count; ++k) {
        const auto word = static_cast<Narrow>(word_at(k));
        std::memcpy(static_cast<char*>(uniques) + (id + k) * kBytes, &word, kBytes);
      }
    };
    const auto copy = [&]<class Narrow>(Narrow) {
      constexpr std::int64_t kBytes = sizeof(Narrow);
      for (std::int64_t k = 0; k < count; ++k)
        std::memcpy(static_cast<char*>(uniques) + (id + k) * kBytes, data_ + position_at(k) * kBytes, kBytes);
    };
    if (compares_bits() && bytes() == 8)
      write(std::uint64_t{});
    else if (compares_bits() && bytes() == 4)
      write(std::uint32_t{});
    else if (compares_bits() && bytes() == 2)
      write(std::uint16_t{});
    else if (is_float(8))
      copy(std::uint64_t{});
    else if (is_float(4))
      copy(std::uint32_t{});
    else
      for (std::int64_t k = 0; k < count; ++k) store_word(uniques, id + k, bytes(), given_back(position_at(k)));
  }

 private:
  template <class Narrow>
  void widen(std::int64_t begin, std::int64_t count, Word* buffer) const {
    const char* const from = data_ + begin * static_cast<std::int64_t>(sizeof(Narrow));
    for (std::int64_t j = 0; j < count; ++j) {
      Narrow word;
      std::memcpy(&word, from + j * static_cast<std::int64_t>(sizeof(Narrow)), sizeof(Narrow));
      buffer[j] = static_cast<Word>(word);
    }
  }

  /// Is a key one float of as many bytes?
  bool is_float(std::int64_t bytes) const {
    return format().is_float && format().elements == 1 && reader_.bytes() == bytes;
  }

  /// Canonical words of floats, by a loop that knows their width and so takes no branch for a key.
  template <class Narrow>
  void read_floats(std::int64_t begin, std::int64_t count, Word* buffer) const {
    const NumberFormat format = this->format();
    widen<Narrow>(begin, count, buffer);
    for (std::int64_t j = 0; j < count; ++j)
      buffer[j] = static_cast<Word>(gpuhash::detail::canonical_float(std::uint64_t{buffer[j]}, format));
  }

  KeyReader<std::uint64_t> reader_;
  const char* data_;
  bool in_place_;
};

/// Calls body(begin, count) for blocks of [begin, end), in order.
template <class Body>
void for_each_word_block(std::int64_t begin, std::int64_t end, Body body) {
  for (; begin < end; begin += kWordBlock) body(begin, std::min(kWordBlock, end - begin));
}

/// Calls body(words, count, base) for the blocks of [begin, end), in order; base: where the block begins.
template <class Word, class Body>
void for_each_block_of_words(const WordBlocks<Word>& blocks, std::int64_t begin, std::int64_t end, Body body) {
  Word buffer[kWordBlock];
  for_each_word_block(
      begin, end, [&](std::int64_t base, std::int64_t count) { body(blocks.read(base, count, buffer), count, base); });
}

}  // namespace gpuhash::host
