#pragma once

#include <cstddef>
#include <cstdint>

#include "host/simd/intrinsics.hpp"
#include "host/simd/lanes.hpp"
#include "host/simd/looks.hpp"
#include "host/simd/portable.hpp"
#include "shared/layout.hpp"

namespace gpuhash::host {

#if defined(__x86_64__)

struct Avx512 : detail::Lanes<Avx512>, private detail::Halves {
  template <class Key>
  static constexpr bool kHashesByEight = sizeof(Key) <= 8;  // host/walk/homes.hpp

  GPUHASH_AVX512 static std::uint32_t lanes_with(const void* line, std::uint32_t pattern, std::uint32_t asked) {
    return in_register(_mm512_mask_cmpeq_epi32_mask(static_cast<__mmask16>(asked), _mm512_load_si512(line),
                                                    _mm512_set1_epi32(static_cast<int>(pattern))));
  }
  GPUHASH_AVX512 static std::uint32_t lanes_with(const void* line, std::uint64_t pattern, std::uint32_t asked) {
    return in_register(_mm512_mask_cmpeq_epi64_mask(static_cast<__mmask8>(asked), _mm512_load_si512(line),
                                                    _mm512_set1_epi64(static_cast<long long>(pattern))));
  }

  /// Looks at one bucket for each of up to 64 keys, after ask(i). Masks are put together before they leave for other
  /// registers, and values are taken from their vector, as by Avx2::look_at().
  template <class View, class Ask>
    requires(sizeof(typename View::Key) <= 8)
  GPUHASH_AVX512 static LooksOf64 look_at_each(const View& view, const std::uint32_t* buckets,
                                               const typename View::Key* stored, std::size_t count,
                                               [[maybe_unused]] typename View::Value fallback,
                                               [[maybe_unused]] typename View::Value* values, const Ask& ask) {
    using Key = typename View::Key;
    alignas(64) __mmask8 matches[64];
    alignas(64) __mmask8 decided[64];
    const __m256i empty = all_lanes(empty_key<Key>());
    for (std::size_t i = 0; i < count; ++i) {
      ask(i);
      const auto* const halves = reinterpret_cast<const __m256i*>(view.slots + std::size_t{buckets[i]} * View::kSlots);
      const __m256i low = _mm256_load_si256(halves);
      const __m256i high = _mm256_load_si256(halves + 1);
      const __m256i wanted = all_lanes(stored[i]);
      __mmask8 match;
      __mmask8 vacant;
      if constexpr (View::kHasValue) {
        const __m256i keys = even_lanes<Key>(low, high);
        match = equal_lanes<Key>(keys, wanted);
        vacant = equal_lanes<Key>(keys, empty);
        if (values != nullptr) store_first_of(match, odd_lanes<Key>(low, high), fallback, values + i);
      } else {
        match = _kor_mask8(equal_lanes<Key>(low, wanted), equal_lanes<Key>(high, wanted));
        vacant = _kor_mask8(equal_lanes<Key>(low, empty), equal_lanes<Key>(high, empty));
      }
      _store_mask8(matches + i, match);
      _store_mask8(decided + i, _kor_mask8(match, vacant));
    }
    const __mmask64 asked = ~std::uint64_t{0} >> (64 - count);
    return {_mm512_mask_test_epi8_mask(asked, _mm512_load_si512(matches), _mm512_set1_epi8(-1)),
            _mm512_mask_testn_epi8_mask(asked, _mm512_load_si512(decided), _mm512_set1_epi8(-1))};
  }
  template <class Word>
  GPUHASH_AVX512 static std::uint32_t words_equal(const Word* line, Word pattern) {
    return in_register(mask_of_equal(line, pattern));
  }
  /// A mask goes to memory and not by way of a register.
  template <class Word>
  GPUHASH_AVX512 static void store_any_equal(const Word* line, Word pattern, std::uint8_t* to) {
    _store_mask8(reinterpret_cast<__mmask8*>(to), mask_of_equal(line, pattern));
  }
  /// Packed in a register: to memory some processors write the lanes one by one.
  GPUHASH_AVX512 static void store_chosen(std::uint32_t bits, const std::uint64_t* from, std::uint64_t* to) {
    const auto mask = static_cast<__mmask8>(bits);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi64(mask, _mm512_loadu_si512(from)));
  }
  GPUHASH_AVX512 static void store_chosen(std::uint32_t bits, const std::uint32_t* from, std::uint32_t* to) {
    const auto mask = static_cast<__mmask8>(bits);
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_compress_epi32(mask, all));
  }
  template <class Item>
  static void store_chosen(std::uint32_t bits, const Item* from, Item* to) {
    Portable::store_chosen(bits, from, to);
  }
  GPUHASH_AVX512 static void store_numbers(std::uint32_t bits, std::uint32_t first, std::uint32_t* to) {
    const __m256i all = _mm256_add_epi32(all_lanes(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_compress_epi32(static_cast<__mmask8>(bits), all));
  }
  GPUHASH_AVX512 static std::uint32_t counting_from(std::uint32_t first, const std::uint32_t* numbers) {
    const __m256i wanted = _mm256_add_epi32(all_lanes(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return in_register(_mm256_cmpeq_epi32_mask(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers)), wanted));
  }
  GPUHASH_AVX512 static std::uint32_t counting_from(std::uint16_t first, const std::uint16_t* numbers) {
    const __m128i wanted =
        _mm_add_epi16(_mm_set1_epi16(static_cast<short>(first)), _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7));
    return in_register(_mm_cmpeq_epi16_mask(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)), wanted));
  }
  GPUHASH_AVX512 static std::uint32_t odd_of(const std::uint32_t* words) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    return in_register(_mm256_test_epi32_mask(all, _mm256_set1_epi32(1)));
  }
  GPUHASH_AVX512 static void put_number(std::uint32_t bits, std::uint16_t number, std::uint16_t* to) {
    _mm_mask_storeu_epi16(to, static_cast<__mmask8>(bits), _mm_set1_epi16(static_cast<short>(number)));
  }
  /// Bit i: is bytes[i] not 0? Of 64.
  GPUHASH_AVX512 static std::uint64_t bits_of_bytes(const std::uint8_t* bytes) {
    return _mm512_test_epi8_mask(_mm512_load_si512(bytes), _mm512_set1_epi8(-1));
  }
  /// Bit i to flags[i].
  GPUHASH_AVX512 static void store_flags(bool* flags, std::uint64_t bits, std::size_t count) {
    _mm512_mask_storeu_epi8(flags, ~std::uint64_t{0} >> (64 - count), _mm512_maskz_set1_epi8(bits, 1));
  }

 private:
  GPUHASH_AVX512 static void store_first_of(__mmask8 match, __m256i values, std::uint64_t fallback, void* to) {
    const __m256i value = _mm256_mask_compress_epi64(all_lanes(fallback), match, values);
    _mm_storel_epi64(static_cast<__m128i*>(to), _mm256_castsi256_si128(value));
  }
  GPUHASH_AVX512 static void store_first_of(__mmask8 match, __m256i values, std::uint32_t fallback, void* to) {
    const __m256i value = _mm256_mask_compress_epi32(all_lanes(fallback), match, values);
    _mm_storeu_si32(to, _mm256_castsi256_si128(value));
  }
  template <class Key>
  GPUHASH_AVX512 static __mmask8 equal_lanes(__m256i a, __m256i b) {
    return sizeof(Key) == 8 ? _mm256_cmpeq_epi64_mask(a, b) : _mm256_cmpeq_epi32_mask(a, b);
  }
  GPUHASH_AVX512 static __mmask8 mask_of_equal(const std::uint64_t* line, std::uint64_t pattern) {
    return _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(line), _mm512_set1_epi64(static_cast<long long>(pattern)));
  }
  GPUHASH_AVX512 static __mmask8 mask_of_equal(const std::uint32_t* line, std::uint32_t pattern) {
    return _mm256_cmpeq_epi32_mask(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)),
                                   _mm256_set1_epi32(static_cast<int>(pattern)));
  }
  /// Widened to 32 bits here and now. Where a call comes before it is needed, GCC 12 may write the one byte of a mask
  /// of eight lanes to the stack and read four back: so 16-byte keys were lost under -fsanitize=thread.
  GPUHASH_AVX512 static std::uint32_t in_register(std::uint32_t mask) { return opaque(mask); }
};

#endif

}  // namespace gpuhash::host
