#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "host/simd/intrinsics.hpp"
#include "host/simd/lanes.hpp"
#include "host/simd/looks.hpp"
#include "host/simd/portable.hpp"
#include "shared/layout.hpp"

namespace gpuhash::host {

#if defined(__x86_64__)

struct Avx2 : detail::Lanes<Avx2>, private detail::Halves {
  template <class Key>
  static constexpr bool kHashesByEight = false;

  template <class Item>
  static void store_chosen(std::uint32_t bits, const Item* from, Item* to) {
    Portable::store_chosen(bits, from, to);
  }
  GPUHASH_AVX2 static void store_chosen(std::uint32_t bits, const std::uint32_t* from, std::uint32_t* to) {
    store(to, chosen_lanes(load(from), kChosen.of_eight[bits]));
  }
  GPUHASH_AVX2 static void store_chosen(std::uint32_t bits, const std::uint64_t* from, std::uint64_t* to) {
    const __m256i low = load(from);
    const __m256i high = load(from + 4);
    store(to, chosen_lanes(low, kChosen.of_four[bits & 15]));
    store(to + std::popcount(bits & 15), chosen_lanes(high, kChosen.of_four[bits >> 4]));
  }
  GPUHASH_AVX2 static void store_numbers(std::uint32_t bits, std::uint32_t first, std::uint32_t* to) {
    const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kChosen.of_eight[bits]));
    store(to, _mm256_add_epi32(_mm256_cvtepu8_epi32(lanes), all_lanes(first)));
  }
  GPUHASH_AVX2 static std::uint32_t counting_from(std::uint32_t first, const std::uint32_t* numbers) {
    const __m256i wanted = _mm256_add_epi32(all_lanes(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return bits_of(_mm256_cmpeq_epi32(load(numbers), wanted));
  }
  GPUHASH_AVX2 static std::uint32_t counting_from(std::uint16_t first, const std::uint16_t* numbers) {
    const __m128i wanted =
        _mm_add_epi16(_mm_set1_epi16(static_cast<short>(first)), _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7));
    const __m128i equal = _mm_cmpeq_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)), wanted);
    return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())));
  }
  GPUHASH_AVX2 static std::uint32_t odd_of(const std::uint32_t* words) {
    return bits_of(_mm256_slli_epi32(load(words), 31));
  }
  static void put_number(std::uint32_t bits, std::uint16_t number, std::uint16_t* to) {
    Portable::put_number(bits, number, to);
  }

  GPUHASH_AVX2 static std::uint32_t lanes_with(const void* line, std::uint32_t pattern, std::uint32_t asked) {
    const auto* const halves = static_cast<const __m256i*>(line);
    const __m256i wanted = _mm256_set1_epi32(static_cast<int>(pattern));
    const __m256i low = _mm256_cmpeq_epi32(_mm256_load_si256(halves), wanted);
    const __m256i high = _mm256_cmpeq_epi32(_mm256_load_si256(halves + 1), wanted);
    return asked & static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(low)) |
                                              _mm256_movemask_ps(_mm256_castsi256_ps(high)) << 8);
  }
  GPUHASH_AVX2 static std::uint32_t lanes_with(const void* line, std::uint64_t pattern, std::uint32_t asked) {
    return asked & words_with(line, pattern);
  }
  GPUHASH_AVX2 static std::uint32_t words_equal(const std::uint64_t* line, std::uint64_t pattern) {
    return words_with(line, pattern);
  }
  GPUHASH_AVX2 static std::uint32_t words_equal(const std::uint32_t* line, std::uint32_t pattern) {
    return bits_of(equal_of(line, pattern));
  }
  /// One mask for both halves, as which lane it is does not matter.
  template <class Word>
  GPUHASH_AVX2 static void store_any_equal(const Word* line, Word pattern, std::uint8_t* to) {
    *to = _mm256_movemask_epi8(equal_of(line, pattern)) != 0 ? 1 : 0;
  }
  /// Bit i: is bytes[i] 1 and not 0? Of 64, which are read by loads: where a vector was read through a pointer that
  /// `auto` had named, GCC 12 took it for memory that holds no bytes, and read it before they were written.
  GPUHASH_AVX2 static std::uint64_t bits_of_bytes(const std::uint8_t* bytes) {
    std::uint64_t bits = 0;
    for (int half = 0; half < 2; ++half) {
      const __m256i of_half = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes) + half);
      bits |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_slli_epi64(of_half, 7)))}
              << 32 * half;
    }
    return bits;
  }
  /// Bit i to flags[i].
  GPUHASH_AVX2 static void store_flags(bool* flags, std::uint64_t bits, std::size_t count) {
    if (count < 64) return Portable::store_flags(flags, bits, count);
    const __m256i bytes = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i places = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    for (int half = 0; half < 2; ++half) {
      const __m256i word = _mm256_set1_epi32(static_cast<int>(bits >> 32 * half));
      const __m256i of_place = _mm256_and_si256(_mm256_shuffle_epi8(word, bytes), places);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(flags) + half,
                          _mm256_and_si256(_mm256_cmpeq_epi8(of_place, places), _mm256_set1_epi8(1)));
    }
  }

  /// Both halves of a bucket with keys and values put apart: taking the value from its vector avoids the way from the
  /// lane's number to an address.
  template <class View>
    requires(sizeof(typename View::Key) <= 8)
  GPUHASH_AVX2 static Look<View> look_at(const typename View::SlotType* bucket, typename View::Key stored,
                                         [[maybe_unused]] typename View::Value fallback) {
    using Key = typename View::Key;
    const auto* const halves = reinterpret_cast<const __m256i*>(bucket);
    const __m256i low = _mm256_load_si256(halves);
    const __m256i high = _mm256_load_si256(halves + 1);
    const __m256i wanted = all_lanes(stored);
    const __m256i empty = all_lanes(empty_key<Key>());
    Look<View> look{};
    __m256i match;
    __m256i vacant;
    if constexpr (View::kHasValue) {
      const __m256i keys = even_lanes<Key>(low, high);
      match = equal_lanes<Key>(keys, wanted);
      vacant = equal_lanes<Key>(keys, empty);
      // At most one lane matches. Its difference from the fallback is what is left of the others' zeros.
      const __m256i base = all_lanes(fallback);
      const __m256i lanes = _mm256_and_si256(match, _mm256_xor_si256(odd_lanes<Key>(low, high), base));
      const __m128i pair = _mm_or_si128(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
      const __m128i word = _mm_or_si128(pair, _mm_unpackhi_epi64(pair, pair));
      const auto bits = static_cast<std::uint64_t>(
          _mm_cvtsi128_si64(sizeof(Key) == 8 ? word : _mm_or_si128(word, _mm_srli_epi64(word, 32))));
      look.value = static_cast<typename View::Value>(bits) ^ fallback;
    } else {
      match = _mm256_or_si256(equal_lanes<Key>(low, wanted), equal_lanes<Key>(high, wanted));
      vacant = _mm256_or_si256(equal_lanes<Key>(low, empty), equal_lanes<Key>(high, empty));
    }
    look.match = bits_of(match);
    look.empty = bits_of(vacant);
    return look;
  }

 private:
  static constexpr detail::ChosenLanes kChosen{};

  GPUHASH_AVX2 static __m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  GPUHASH_AVX2 static void store(void* to, __m256i words) { _mm256_storeu_si256(static_cast<__m256i*>(to), words); }
  GPUHASH_AVX2 static __m256i chosen_lanes(__m256i words, const std::uint8_t (&lanes)[8]) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(lanes));
    return _mm256_permutevar8x32_epi32(words, _mm256_cvtepu8_epi32(bytes));
  }
  GPUHASH_AVX2 static std::uint32_t bits_of(__m256i lanes) {
    return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes)));
  }
  template <class Key>
  GPUHASH_AVX2 static __m256i equal_lanes(__m256i a, __m256i b) {
    return sizeof(Key) == 8 ? _mm256_cmpeq_epi64(a, b) : _mm256_cmpeq_epi32(a, b);
  }
  /// Lanes of eight words that are equal to `pattern`; of words of 64 bits, those of both halves put together.
  GPUHASH_AVX2 static __m256i equal_of(const std::uint64_t* line, std::uint64_t pattern) {
    const auto* const halves = reinterpret_cast<const __m256i*>(line);
    const __m256i wanted = all_lanes(pattern);
    return _mm256_or_si256(_mm256_cmpeq_epi64(_mm256_load_si256(halves), wanted),
                           _mm256_cmpeq_epi64(_mm256_load_si256(halves + 1), wanted));
  }
  GPUHASH_AVX2 static __m256i equal_of(const std::uint32_t* line, std::uint32_t pattern) {
    return _mm256_cmpeq_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)), all_lanes(pattern));
  }
  GPUHASH_AVX2 static std::uint32_t words_with(const void* line, std::uint64_t pattern) {
    const auto* const halves = static_cast<const __m256i*>(line);
    const __m256i wanted = all_lanes(pattern);
    const __m256i low = _mm256_cmpeq_epi64(_mm256_loadu_si256(halves), wanted);
    const __m256i high = _mm256_cmpeq_epi64(_mm256_loadu_si256(halves + 1), wanted);
    return static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(low)) |
                                      _mm256_movemask_pd(_mm256_castsi256_pd(high)) << 4);
  }
};

#endif

}  // namespace gpuhash::host
