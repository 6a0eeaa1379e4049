#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "shared/layout.hpp"

#if defined(__x86_64__)
// GCC 12 warns of the words that its AVX-512 intrinsics leave undefined on purpose (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#endif

/// Comparing a whole bucket at once, with what the processor has. The package is built for any x86-64, so the widest
/// instructions are chosen when it runs: with_simd() runs a loop with one of the types below.
namespace gpuhash::host {

/// The same word, of which the compiler does not know where it comes from: knowing that two words tell of the same
/// thing, it would put the branch there that they were made to avoid.
template <class Word>
Word opaque(Word word) {
  asm("" : "+r"(word));
  return word;
}

/// Some slots of one bucket. Slot s is bit s * kStride: comparing lanes yields a bit per lane.
template <class View, std::uint32_t kStride>
class SlotMask {
 public:
  using SlotType = typename View::SlotType;
  explicit SlotMask(std::uint32_t bits) : bits_(bits) {}

  bool any() const { return bits_ != 0; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(std::popcount(bits_)); }
  /// These, and the others if `wanted`, without a branch.
  SlotMask with(SlotMask others, bool wanted) const {
    return SlotMask(bits_ | (others.bits_ & -static_cast<std::uint32_t>(opaque(std::uint32_t{wanted}))));
  }
  /// The first of them; where there are none, the last slot of the bucket.
  SlotType* first(SlotType* bucket) const {
    constexpr std::uint32_t kLast = std::uint32_t{1} << ((View::kSlots - 1) * kStride);
    const auto lane = static_cast<std::size_t>(std::countr_zero(bits_ | kLast));
    return reinterpret_cast<SlotType*>(reinterpret_cast<char*>(bucket) + lane * (sizeof(SlotType) / kStride));
  }

 private:
  std::uint32_t bits_;
};

/// What a look at a bucket tells of a key. Whole words: GCC 12 packs two of type bool into one register and takes them
/// apart again, 0.5 ns.
template <class View>
struct Look {
  typename View::Value value;  // the key's; what stands for it where it was not found
  std::uint64_t match;         // nonzero: it was found
  std::uint64_t empty;         // nonzero: the bucket has an empty slot
};

/// What looks for up to 64 keys tell: bit i is the i-th key's.
struct LooksOf64 {
  std::uint64_t match;      // it was found
  std::uint64_t undecided;  // the bucket is full and lacks it
};

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

#if defined(__x86_64__)

#define GPUHASH_AVX2 [[gnu::target("avx2,bmi,bmi2")]]
#define GPUHASH_AVX512 [[gnu::target("avx2,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]]

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

enum class InstructionSet { kPortable, kAvx2, kAvx512 };

/// The best that this processor has; GPUHASH_SIMD ("portable", "avx2", "avx512") asks for less. Looked up once.
InstructionSet instruction_set();

/// What is dealt out to hundreds of places is streamed there, past the caches, if it has so many bytes or more.
std::int64_t least_streamed_bytes();

namespace detail {

// flatten: everything that the loop calls becomes part of this function and is compiled for its instruction set.
#if defined(__x86_64__)
template <class Loop>
GPUHASH_AVX512 [[gnu::flatten]] void run_avx512(const Loop& loop) {
  loop(Avx512{});
}
template <class Loop>
GPUHASH_AVX2 [[gnu::flatten]] void run_avx2(const Loop& loop) {
  loop(Avx2{});
}
#endif
template <class Loop>
[[gnu::flatten]] void run_portable(const Loop& loop) {
  loop(Portable{});
}

}  // namespace detail

/// Calls loop(simd), a template over the type of `simd`.
template <class Loop>
void with_simd(const Loop& loop) {
  switch (instruction_set()) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512:
      return detail::run_avx512(loop);
    case InstructionSet::kAvx2:
      return detail::run_avx2(loop);
#endif
    default:
      return detail::run_portable(loop);
  }
}

}  // namespace gpuhash::host
