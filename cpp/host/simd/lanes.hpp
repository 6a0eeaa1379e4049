#pragma once

#include <cstddef>
#include <cstdint>

#include "host/simd/intrinsics.hpp"
#include "host/simd/looks.hpp"
#include "host/simd/portable.hpp"
#include "shared/layout.hpp"

namespace gpuhash::host {

#if defined(__x86_64__)

namespace detail {

/// What the instruction sets have in common: bits of lanes made into bits of slots, and of words. Isa::lanes_with()
/// compares those of the lanes of 64 bytes that are asked for. Not inlined by force: the compiler would want to do it
/// before with_simd() takes the loop in, where the instructions are not known yet.
template <class Isa>
struct Lanes {
  template <class View>
  static auto slots_with(const typename View::SlotType* bucket, const typename View::Key& pattern) {
    using Key = typename View::Key;
    constexpr std::uint32_t kLaneBytes = sizeof(Key);
    constexpr std::uint32_t kStride = sizeof(typename View::SlotType) / kLaneBytes;
    constexpr std::uint32_t kFirstLanes = kStride == 1 ? 0xffffu : 0x5555u;  // of each slot
    return SlotMask<View, kStride>(Isa::lanes_with(bucket, pattern, kFirstLanes));
  }
  /// What is found out of each line goes to memory, and of 64 lines is tested at once.
  template <class Word, class Ask>
  static LooksOf64 look_at_lines(const Word* lines, const std::uint32_t* numbers, const Word* wanted, std::size_t count,
                                 const Ask& ask) {
    alignas(64) std::uint8_t found[64];
    alignas(64) std::uint8_t full[64];
    for (std::size_t i = 0; i < count; ++i) {
      ask(i);
      const Word* const line = lines + std::size_t{numbers[i]} * 8;
      Isa::store_any_equal(line, wanted[i], found + i);
      full[i] = line[7] != 0 ? 1 : 0;
    }
    const std::uint64_t asked = ~std::uint64_t{0} >> (64 - count);
    const std::uint64_t match = Isa::bits_of_bytes(found) & asked;
    return {match, Isa::bits_of_bytes(full) & asked & ~match};
  }
  template <class Word>
  static std::uint64_t zeros_of(const Word* words, std::size_t count) {
    if (count < 64) return Portable::zeros_of(words, count);
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 64; i += 8) bits |= std::uint64_t{Isa::words_equal(words + i, Word{0})} << i;
    return bits;
  }
};

/// Which lanes of 32 bits a vector is made of that begins with those that a mask chooses: of eight words, or of four of
/// two lanes each.
struct ChosenLanes {
  std::uint8_t of_eight[256][8] = {};
  std::uint8_t of_four[16][8] = {};

  constexpr ChosenLanes() {
    for (std::uint32_t bits = 0; bits < 256; ++bits)
      for (std::uint32_t s = 0, chosen = 0; s < 8; ++s)
        if ((bits >> s & 1) != 0) of_eight[bits][chosen++] = static_cast<std::uint8_t>(s);
    for (std::uint32_t bits = 0; bits < 16; ++bits)
      for (std::uint32_t s = 0, chosen = 0; s < 8; ++s)
        if ((bits >> s / 2 & 1) != 0) of_four[bits][chosen++] = static_cast<std::uint8_t>(s);
  }
};

/// The two halves of a bucket, as vectors of keys and of values.
struct Halves {
  GPUHASH_AVX2 static __m256i all_lanes(std::uint32_t word) { return _mm256_set1_epi32(static_cast<int>(word)); }
  GPUHASH_AVX2 static __m256i all_lanes(std::uint64_t word) { return _mm256_set1_epi64x(static_cast<long long>(word)); }
  /// Of two vectors; in what order is all the same, as long as it is one for both functions.
  template <class Word>
  GPUHASH_AVX2 static __m256i even_lanes(__m256i a, __m256i b) {
    if constexpr (sizeof(Word) == 8) return _mm256_unpacklo_epi64(a, b);
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
  }
  template <class Word>
  GPUHASH_AVX2 static __m256i odd_lanes(__m256i a, __m256i b) {
    if constexpr (sizeof(Word) == 8) return _mm256_unpackhi_epi64(a, b);
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd));
  }
};

}  // namespace detail

#endif

}  // namespace gpuhash::host
