#pragma once

#include <cstdint>

#include "core/random_seed.hpp"

namespace gpuhash::host {

/// Hash of a word for tables that live as long as a call; one that processors do eight at a time.
///
/// The first two steps map different words to different words. The third is the multiplication of late_hash()
/// (shared/hash.hpp): for whoever does not know the factor, two words agree in the highest b bits by chance alone, with
/// a probability of at most 2^(1-b). The first two see to it that regular words spread like random ones.
class WordHash {
 public:
  std::uint64_t operator()(std::uint64_t word) const {
    std::uint64_t h = word * first_;
    h ^= h >> 32;
    return h * second_;
  }

  /// to[j] = bits of the hash of words[j], from `shift` on, for j in [0, count). The loop becomes vector instructions.
  template <class To>
  void bits_of(const std::uint64_t* words, std::int64_t count, int shift, std::uint32_t mask, To* to) const {
    const WordHash hash = *this;
    for (std::int64_t j = 0; j < count; ++j) to[j] = static_cast<To>(static_cast<To>(hash(words[j]) >> shift) & mask);
  }

 private:
  std::uint64_t first_ = random_seed() | 1;
  std::uint64_t second_ = random_seed() | 1;
};

}  // namespace gpuhash::host
