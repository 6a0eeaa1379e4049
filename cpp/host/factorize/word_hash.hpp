#pragma once

#include <concepts>
#include <cstdint>

#include "core/random_seed.hpp"
#include "shared/hash.hpp"

namespace gpuhash::host {

/// Hash of a word of 64 or 32 bits for tables that live as long as a call, as wide as the word; one that processors do
/// eight or sixteen at a time.
///
/// All steps map different words to different words. The third is the multiplication of late_hash()
/// (shared/hash.hpp): for whoever does not know the factor, two words agree in the highest b bits by chance alone, with
/// a probability of at most 2^(1-b). The first two see to it that regular words spread like random ones.
template <std::unsigned_integral Word>
class WordHash {
 public:
  static constexpr int kBits = 8 * sizeof(Word);

  /// One that nobody knows.
  WordHash() : WordHash(random_seed(), random_seed()) {}
  /// That of a seed.
  static WordHash of(std::uint64_t seed) {
    return WordHash(hash_key(std::uint64_t{1}, seed), hash_key(std::uint64_t{2}, seed));
  }

  Word operator()(Word word) const {
    Word h = word * first_;
    h ^= h >> (kBits / 2);
    return h * second_;
  }

  /// to[j] = bits of the hash of words[j], from `shift` on, for j in [0, count). The loop becomes vector instructions,
  /// of each instruction set; word_hash.cpp has them for uint16_t and uint32_t.
  template <class To>
  void bits_of(const Word* words, std::int64_t count, int shift, std::uint32_t mask, To* to) const;

 private:
  WordHash(std::uint64_t first, std::uint64_t second)
      : first_(static_cast<Word>(first | 1)), second_(static_cast<Word>(second | 1)) {}

  Word first_;
  Word second_;
};

}  // namespace gpuhash::host
