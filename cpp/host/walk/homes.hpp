#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "host/simd/simd.hpp"
#include "host/walk/walk.hpp"
#include "shared/hash.hpp"
#include "shared/probe_sequence.hpp"

/// Where the walks of a block of keys begin.
namespace gpuhash::host {

#if defined(__x86_64__)

namespace detail {

/// Eight lanes of 64 bits.
struct Words512 {
  /// hash_key() of eight words that load() has read: of 32 bits, with zeros before them, or of 64.
  template <class Word>
  GPUHASH_AVX512 static __m512i hash(__m512i keys, std::uint64_t seed) {
    const std::uint64_t whiten = gpuhash::detail::kHashWhiten ^ seed;
    __m512i h;
    if constexpr (sizeof(Word) == 4)
      h = fold_known_high(_mm512_xor_si512(keys, all(whiten & kLow)), whiten >> 32, gpuhash::detail::kHashFold);
    else
      h = fold(_mm512_xor_si512(keys, all(whiten)), gpuhash::detail::kHashFold);
    h = _mm512_xor_si512(h, _mm512_srli_epi64(h, 32));
    return _mm512_mullo_epi64(h, all(gpuhash::detail::kHashFinish));
  }
  GPUHASH_AVX512 static __m512i load(const std::uint64_t* words) { return _mm512_loadu_si512(words); }
  GPUHASH_AVX512 static __m512i load(const std::uint32_t* words) {
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
  }
  template <class Key>
  GPUHASH_AVX512 static void store_regions(const Key* keys, const Geometry& geometry, std::uint32_t* to) {
    const __m512i key = load(keys);
    const __m512i region = part_of(hash<Key>(key, geometry.seeds.hash), geometry.region_count);
    store(to, _mm512_mask_mov_epi64(region, stray<Key>(key), _mm512_setzero_si512()));
  }
  template <class Word>
  GPUHASH_AVX512 static void store_highest(const Word* words, std::uint64_t seed, int bits, std::uint16_t* to) {
    const __m512i highest = _mm512_srl_epi64(hash<Word>(load(words), seed), _mm_cvtsi32_si128(64 - bits));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi64_epi16(highest));
  }
  /// Which of `count` equal parts of all hashes it lies in: buckets, or regions.
  GPUHASH_AVX512 static __m512i part_of(__m512i hash, std::uint32_t count) {
    return _mm512_srli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(hash, 32), all(count)), 32);
  }
  /// Those that are a mark. The marks differ in their lowest bit only.
  template <class Key>
  GPUHASH_AVX512 static __mmask8 stray(__m512i keys) {
    return _mm512_cmple_epu64_mask(_mm512_xor_si512(keys, all(empty_key<Key>())), all(1));
  }
  GPUHASH_AVX512 static void store(std::uint32_t* to, __m512i words) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi64_epi32(words));
  }
  GPUHASH_AVX512 static __m512i all(std::uint64_t word) { return _mm512_set1_epi64(static_cast<long long>(word)); }

 private:
  static constexpr std::uint64_t kLow = 0xffffffffu;
  static constexpr __mmask16 kHighHalves = 0xaaaa;

  /// fold() with the same factor for all.
  GPUHASH_AVX512 static __m512i fold(__m512i a, std::uint64_t b) {
    const __m512i a_high = _mm512_srli_epi64(a, 32);
    return fold_by_halves(a, _mm512_mul_epu32(a_high, all(b & kLow)), _mm512_mul_epu32(a_high, all(b >> 32)), b);
  }
  /// Likewise, where the high halves of all are the same, in place of those that `a` has.
  GPUHASH_AVX512 static __m512i fold_known_high(__m512i a, std::uint64_t a_high, std::uint64_t b) {
    return fold_by_halves(a, all(a_high * (b & kLow)), all(a_high * (b >> 32)), b);
  }
  /// From the products of the high half of `a` with both halves of `b`. The low half of the whole product is put
  /// together from those of halves, too: that takes less time than the multiplication that gives it alone.
  GPUHASH_AVX512 static __m512i fold_by_halves(__m512i a, __m512i high_by_low, __m512i high_by_high, std::uint64_t b) {
    const __m512i low_by_low = _mm512_mul_epu32(a, all(b & kLow));
    const __m512i low_by_high = _mm512_mul_epu32(a, all(b >> 32));
    const __m512i middle = _mm512_add_epi64(high_by_low, _mm512_srli_epi64(low_by_low, 32));
    const __m512i cross = _mm512_add_epi64(low_by_high, _mm512_and_si512(middle, all(kLow)));
    const __m512i carried = _mm512_add_epi64(_mm512_srli_epi64(middle, 32), _mm512_srli_epi64(cross, 32));
    const __m512i low = _mm512_mask_mov_epi32(low_by_low, kHighHalves, _mm512_slli_epi64(cross, 32));
    return _mm512_xor_si512(_mm512_add_epi64(high_by_high, carried), low);
  }
};

}  // namespace detail

#endif

/// to[j] = the highest `bits` bits of the hash that a table with that seed has of words[j], for j in [0, count).
template <class Simd, class Word>
void table_bits_of(const Simd&, const Word* words, std::int64_t count, std::uint64_t seed, int bits,
                   std::uint16_t* to) {
  std::int64_t j = 0;
#if defined(__x86_64__)
  if constexpr (Simd::template kHashesByEight<Word>)
    for (; j + 8 <= count; j += 8) detail::Words512::store_highest(words + j, seed, bits, to + j);
#endif
  for (; j < count; ++j) to[j] = static_cast<std::uint16_t>(hash_key(words[j], seed) >> (64 - bits));
}

/// to[j] = the region of keys[j], for j in [0, count).
template <class Simd, class Key>
void regions_of(const Simd&, const Key* keys, std::int64_t count, const Geometry& table, std::uint32_t* to) {
  const Geometry geometry = table;  // a copy, in registers
  std::int64_t j = 0;
#if defined(__x86_64__)
  if constexpr (Simd::template kHashesByEight<Key>)
    for (; j + 8 <= count; j += 8) detail::Words512::store_regions(keys + j, geometry, to + j);
#endif
  for (; j < count; ++j) to[j] = Probe<Key>(keys[j], geometry).region(geometry);
}

/// Keys in a block, at most.
inline constexpr std::size_t kHomes = 64;

/// The home buckets of a block of keys. Not initialised: a batch of one key pays for one.
template <class Key>
class Homes {
 public:
  const Key* stored() const { return stored_; }
  const std::uint32_t* buckets() const { return buckets_; }
  const Key& stored(std::size_t b) const { return stored_[b]; }
  std::uint32_t bucket(std::size_t b) const { return buckets_[b]; }
  std::uint8_t filter_bit(std::size_t b) const { return Probe<Key>::filter_bit_of(hashes_[b]); }
  Probe<Key> probe(std::size_t b) const { return {stored_[b], hashes_[b], buckets_[b]}; }

  /// Of the b-th key.
  void fill_one(std::size_t b, const Key& key, const Geometry& geometry) {
    const Probe<Key> probe(key, geometry);
    stored_[b] = probe.stored();
    buckets_[b] = probe.bucket();
    hashes_[b] = probe.hash();
  }
  /// Of `size` keys. A function of its own for each instruction set, so that loops around it are compiled once.
  void fill(const Key* keys, std::size_t size, const Geometry& geometry) {
#if defined(__x86_64__)
    if constexpr (sizeof(Key) <= 8)
      if (instruction_set() == InstructionSet::kAvx512) return fill_by_eight(keys, size, geometry);
#endif
    fill_each(keys, 0, size, geometry);
  }

 private:
  [[gnu::noinline]] void fill_each(const Key* keys, std::size_t begin, std::size_t end, const Geometry& table) {
    const Geometry geometry = table;  // a copy, in registers
    for (std::size_t b = begin; b < end; ++b) fill_one(b, keys[b], geometry);
  }

#if defined(__x86_64__)
  GPUHASH_AVX512 [[gnu::noinline]] void fill_by_eight(const Key* keys, std::size_t size, const Geometry& table) {
    using Words = detail::Words512;
    const Geometry geometry = table;  // a copy, in registers
    std::size_t b = 0;
    for (; b + 8 <= size; b += 8) {
      const __m512i key = Words::load(keys + b);
      const __m512i hash = Words::template hash<Key>(key, geometry.seeds.hash);
      const __m512i bucket = Words::part_of(hash, geometry.bucket_count);
      if constexpr (sizeof(Key) == 8)
        _mm512_store_si512(stored_ + b, key);
      else
        Words::store(stored_ + b, key);
      Words::store(buckets_ + b, bucket);
      _mm512_store_si512(hashes_ + b, hash);
      auto stray = static_cast<unsigned>(Words::template stray<Key>(key));
      for (; stray != 0; stray &= stray - 1) {
        const std::size_t s = b + static_cast<std::size_t>(std::countr_zero(stray));
        fill_one(s, keys[s], geometry);
      }
    }
    fill_each(keys, b, size, geometry);
  }
#endif

  alignas(64) Key stored_[kHomes];
  alignas(64) std::uint32_t buckets_[kHomes];
  alignas(64) std::uint64_t hashes_[kHomes];
};

}  // namespace gpuhash::host
