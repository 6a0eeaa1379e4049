#include "host/factorize/word_hash.hpp"

#include "host/simd/simd.hpp"

namespace gpuhash::host {

template <std::unsigned_integral Word>
template <class To>
void WordHash<Word>::bits_of(const Word* words, std::int64_t count, int shift, std::uint32_t mask, To* to) const {
  with_simd([=, hash = *this](auto) {
    for (std::int64_t j = 0; j < count; ++j) to[j] = static_cast<To>(static_cast<To>(hash(words[j]) >> shift) & mask);
  });
}

template void WordHash<std::uint32_t>::bits_of(const std::uint32_t*, std::int64_t, int, std::uint32_t,
                                               std::uint16_t*) const;
template void WordHash<std::uint32_t>::bits_of(const std::uint32_t*, std::int64_t, int, std::uint32_t,
                                               std::uint32_t*) const;
template void WordHash<std::uint64_t>::bits_of(const std::uint64_t*, std::int64_t, int, std::uint32_t,
                                               std::uint16_t*) const;
template void WordHash<std::uint64_t>::bits_of(const std::uint64_t*, std::int64_t, int, std::uint32_t,
                                               std::uint32_t*) const;

}  // namespace gpuhash::host
