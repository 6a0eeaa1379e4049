#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "host/simd/intrinsics.hpp"
#include "host/simd/looks.hpp"
#include "shared/layout.hpp"

namespace gpuhash::host {

/// What every processor can do. No branch: the compiler unrolls the loops.
struct Portable {
  template <class Key>
  static constexpr bool kHashesByEight = false;

#if defined(__x86_64__)
  static constexpr bool kStreams = true;
  /// Writes 64 bytes past the caches; both addresses are multiples of that.
  static void stream_line(const void* from, void* to) {
    for (int quarter = 0; quarter < 4; ++quarter)
      _mm_stream_si128(static_cast<__m128i*>(to) + quarter,
                       _mm_load_si128(static_cast<const __m128i*>(from) + quarter));
  }
  /// What was written by stream_line() comes before what this thread writes now.
  static void finish_streams() { _mm_sfence(); }

  /// Every x86-64 compares four lanes of 32 bits at once.
  template <class View>
  static auto slots_with(const typename View::SlotType* bucket, const typename View::Key& pattern) {
    using Key = typename View::Key;
    constexpr std::uint32_t kStride = sizeof(typename View::SlotType) / 4;
    constexpr std::uint32_t kFirstLanes = ~std::uint32_t{0} / ((std::uint64_t{1} << kStride) - 1);  // of each slot
    const __m128i wanted = all_lanes(pattern);
    std::uint32_t lanes = lanes_with(bucket, wanted);
    if constexpr (View::kBucketBytes == 128)
      lanes |= lanes_with(reinterpret_cast<const char*>(bucket) + 64, wanted) << 16;
    if constexpr (sizeof(Key) == 16) lanes &= lanes >> 2;
    if constexpr (sizeof(Key) >= 8) lanes &= lanes >> 1;
    return SlotMask<View, kStride>(lanes & kFirstLanes);
  }
#else
  static constexpr bool kStreams = false;  // has it stream_line()?

  template <class View>
  static SlotMask<View, 1> slots_with(const typename View::SlotType* bucket, const typename View::Key& pattern) {
    std::uint32_t bits = 0;
    for (std::uint32_t s = 0; s < View::kSlots; ++s) bits |= static_cast<std::uint32_t>(bucket[s].key == pattern) << s;
    return SlotMask<View, 1>(bits);
  }
#endif

  /// Bit s: is the s-th of eight words equal to `pattern`?
#if defined(__x86_64__)
  static std::uint32_t words_equal(const std::uint32_t* line, std::uint32_t pattern) {
    const auto* const halves = reinterpret_cast<const __m128i*>(line);
    const __m128i wanted = all_lanes(pattern);
    return bits_of(_mm_cmpeq_epi32(_mm_loadu_si128(halves), wanted),
                   _mm_cmpeq_epi32(_mm_loadu_si128(halves + 1), wanted));
  }
  static std::uint32_t words_equal(const std::uint64_t* line, std::uint64_t pattern) {
    const auto* const quarters = reinterpret_cast<const __m128i*>(line);
    const __m128i wanted = all_lanes(pattern);
    const auto equal = [&](int q) { return _mm_castsi128_ps(_mm_cmpeq_epi32(_mm_loadu_si128(quarters + q), wanted)); };
    const auto equal_words = [&](int q) {  // lanes of two vectors, put together from their low and high halves
      const __m128 a = equal(q);
      const __m128 b = equal(q + 1);
      return _mm_castps_si128(_mm_and_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xdd)));
    };
    return bits_of(equal_words(0), equal_words(2));
  }
#else
  template <class Word>
  static std::uint32_t words_equal(const Word* line, Word pattern) {
    std::uint32_t bits = 0;
    for (std::uint32_t s = 0; s < 8; ++s) bits |= static_cast<std::uint32_t>(line[s] == pattern) << s;
    return bits;
  }
#endif
  /// Looks at eight words for each of up to 64 wanted ones, after ask(i): those of line numbers[i].
  template <class Word, class Ask>
  static LooksOf64 look_at_lines(const Word* lines, const std::uint32_t* numbers, const Word* wanted, std::size_t count,
                                 const Ask& ask) {
    LooksOf64 looks{};
    for (std::size_t i = 0; i < count; ++i) {
      ask(i);
      const Word* const line = lines + std::size_t{numbers[i]} * 8;
      const auto found = static_cast<std::uint64_t>(words_equal(line, wanted[i]) != 0);
      looks.match |= found << i;
      looks.undecided |= (static_cast<std::uint64_t>(line[7] != 0) & (found ^ 1)) << i;
    }
    return looks;
  }
  /// Writes those of eight items, of any alignment, whose bit is set `to` [8], of which the rest gets anything. It may
  /// overlap `from` if it does not lie behind.
  template <class Item>
  static void store_chosen(std::uint32_t bits, const Item* from, Item* to) {
    std::uint32_t chosen = 0;
    for (std::uint32_t s = 0; s < 8; ++s) {
      std::memcpy(to + chosen, from + s, sizeof(Item));
      chosen += bits >> s & 1;
    }
  }
  /// Likewise, of numbers from `first` on.
  static void store_numbers(std::uint32_t bits, std::uint32_t first, std::uint32_t* to) {
    std::uint32_t chosen = 0;
    for (std::uint32_t s = 0; s < 8; ++s) {
      to[chosen] = first + s;
      chosen += bits >> s & 1;
    }
  }
  /// Bit s: is the s-th of eight numbers `first` + s?
  template <class Number>
  static std::uint32_t counting_from(Number first, const Number* numbers) {
    std::uint32_t bits = 0;
    for (std::uint32_t s = 0; s < 8; ++s) bits |= static_cast<std::uint32_t>(numbers[s] == first + s) << s;
    return bits;
  }
  /// Bit s: is the s-th of eight words odd?
  static std::uint32_t odd_of(const std::uint32_t* words) {
    std::uint32_t bits = 0;
    for (std::uint32_t s = 0; s < 8; ++s) bits |= (words[s] & 1) << s;
    return bits;
  }
  /// Writes `number` to those of eight whose bit is set.
  static void put_number(std::uint32_t bits, std::uint16_t number, std::uint16_t* to) {
    for (std::uint32_t s = 0; s < 8; ++s) to[s] = (bits >> s & 1) != 0 ? number : to[s];
  }
  /// Bit i: is words[i] equal to 0? Of up to 64 words.
  template <class Word>
  static std::uint64_t zeros_of(const Word* words, std::size_t count) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < count; ++i) bits |= static_cast<std::uint64_t>(words[i] == 0) << i;
    return bits;
  }
  /// Bit i to flags[i].
  static void store_flags(bool* flags, std::uint64_t bits, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) flags[i] = (bits >> i & 1) != 0;
  }

#if defined(__x86_64__)
 private:
  static __m128i all_lanes(std::uint32_t word) { return _mm_set1_epi32(static_cast<int>(word)); }
  static __m128i all_lanes(std::uint64_t word) { return _mm_set1_epi64x(static_cast<long long>(word)); }
  static __m128i all_lanes(const Uint128& word) {
    return _mm_set_epi64x(static_cast<long long>(word.high), static_cast<long long>(word.low));
  }
  /// Of two vectors of four lanes each.
  static std::uint32_t bits_of(__m128i low, __m128i high) {
    const __m128i lanes = _mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128());
    return static_cast<std::uint32_t>(_mm_movemask_epi8(lanes));
  }
  /// A bit for each of the 16 lanes of a line that is equal.
  static std::uint32_t lanes_with(const void* line, __m128i wanted) {
    const auto* const quarters = static_cast<const __m128i*>(line);
    const auto equal = [&](int q) { return _mm_cmpeq_epi32(_mm_load_si128(quarters + q), wanted); };
    const __m128i low = _mm_packs_epi32(equal(0), equal(1));
    const __m128i high = _mm_packs_epi32(equal(2), equal(3));
    return static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));
  }
#endif
};

/// For all that is compiled once.
using Baseline = Portable;

}  // namespace gpuhash::host
