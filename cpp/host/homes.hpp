#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "host/simd.hpp"
#include "host/walk.hpp"
#include "shared/hash.hpp"
#include "shared/probe_sequence.hpp"

/// Where the walks of a block of keys begin.
namespace gpuhash::host {

#if defined(__x86_64__)

namespace detail {

/// Eight lanes of 64 bits.
struct Words512 {
  /// hash_key() of 8-byte keys, or of shorter ones with zeros before them.
  GPUHASH_AVX512 static __m512i hash(__m512i keys, std::uint64_t seed) {
    __m512i h = fold(_mm512_xor_si512(keys, all(gpuhash::detail::kHashWhiten ^ seed)), gpuhash::detail::kHashFold);
    h = _mm512_xor_si512(h, _mm512_srli_epi64(h, 32));
    return _mm512_mullo_epi64(h, all(gpuhash::detail::kHashFinish));
  }
  GPUHASH_AVX512 static __m512i load(const std::uint64_t* words) { return _mm512_loadu_si512(words); }
  GPUHASH_AVX512 static __m512i load(const std::uint32_t* words) {
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)));
  }
  template <class Word>
  GPUHASH_AVX512 static void store_highest(const Word* words, std::uint64_t seed, int bits, std::uint16_t* to) {
    const __m512i highest = _mm512_srl_epi64(hash(load(words), seed), _mm_cvtsi32_si128(64 - bits));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi64_epi16(highest));
  }
  GPUHASH_AVX512 static __m512i all(std::uint64_t word) { return _mm512_set1_epi64(static_cast<long long>(word)); }

 private:
  /// fold() with the same factor for all; the high half of the product by halves of both.
  GPUHASH_AVX512 static __m512i fold(__m512i a, std::uint64_t b) {
    const __m512i low_half = all(0xffffffffu);
    const __m512i a_high = _mm512_srli_epi64(a, 32);
    const __m512i b_low = all(b & 0xffffffffu);
    const __m512i b_high = all(b >> 32);
    const __m512i low = _mm512_mul_epu32(a, b_low);
    const __m512i middle = _mm512_add_epi64(_mm512_mul_epu32(a_high, b_low), _mm512_srli_epi64(low, 32));
    const __m512i cross = _mm512_add_epi64(_mm512_mul_epu32(a, b_high), _mm512_and_si512(middle, low_half));
    const __m512i high =
        _mm512_add_epi64(_mm512_mul_epu32(a_high, b_high),
                         _mm512_add_epi64(_mm512_srli_epi64(middle, 32), _mm512_srli_epi64(cross, 32)));
    return _mm512_xor_si512(high, _mm512_mullo_epi64(a, all(b)));
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
  if constexpr (Simd::kHashesByEight)
    for (; j + 8 <= count; j += 8) detail::Words512::store_highest(words + j, seed, bits, to + j);
#endif
  for (; j < count; ++j) to[j] = static_cast<std::uint16_t>(hash_key(words[j], seed) >> (64 - bits));
}

/// Keys in a block, at most.
inline constexpr std::size_t kHomes = 64;

/// The home buckets of a block of keys. Not initialised: a batch of one key pays for one.
template <class Key>
class Homes {
 public:
  /// Are they computed faster together than one by one?
  template <class Simd>
  static constexpr bool kByEight = Simd::kHashesByEight && sizeof(Key) <= 8;

  const Key* stored() const { return stored_; }
  const std::uint32_t* buckets() const { return buckets_; }
  const Key& stored(std::size_t b) const { return stored_[b]; }
  std::uint32_t bucket(std::size_t b) const { return buckets_[b]; }
  std::uint8_t filter_bit(std::size_t b) const { return Probe<Key>::filter_bit_of(hashes_[b]); }
  /// As Probe::region(), in the form that is computed for several keys at once.
  std::uint32_t region(std::size_t b, const Geometry& geometry) const {
    const std::uint32_t home = multiply_high(static_cast<std::uint32_t>(hashes_[b] >> 32), geometry.region_count);
    return buckets_[b] == geometry.bucket_count ? 0 : home;
  }
  Probe<Key> probe(std::size_t b) const { return {stored_[b], hashes_[b], buckets_[b]}; }

  template <class Simd>
  void fill(const Simd&, const Key* keys, std::size_t size, const Geometry& geometry) {
    std::size_t b = 0;
#if defined(__x86_64__)
    if constexpr (kByEight<Simd>)
      for (; b + 8 <= size; b += 8) fill_eight(keys, b, geometry);
#endif
    for (; b < size; ++b) fill_one(keys, b, geometry);
  }
  /// Behind the last key, some bucket: one that may be asked for.
  void pad(std::size_t size) {
    for (std::size_t b = size; b < kHomes; ++b) buckets_[b] = 0;
  }

 private:
  void fill_one(const Key* keys, std::size_t b, const Geometry& geometry) {
    const Probe<Key> probe(detail::load_whole<Key>(keys + b), geometry);
    stored_[b] = probe.stored();
    buckets_[b] = probe.bucket();
    hashes_[b] = probe.hash();
  }

#if defined(__x86_64__)
  GPUHASH_AVX512 void fill_eight(const Key* keys, std::size_t b, const Geometry& geometry) {
    using Words = detail::Words512;
    const __m512i key = Words::load(keys + b);
    const __m512i hash = Words::hash(key, geometry.seeds.hash);
    const __m512i count = Words::all(geometry.bucket_count);
    const __m512i bucket = _mm512_srli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(hash, 32), count), 32);
    if constexpr (sizeof(Key) == 8)
      _mm512_store_si512(stored_ + b, key);
    else
      _mm256_store_si256(reinterpret_cast<__m256i*>(stored_ + b), _mm512_cvtepi64_epi32(key));
    _mm256_store_si256(reinterpret_cast<__m256i*>(buckets_ + b), _mm512_cvtepi64_epi32(bucket));
    _mm512_store_si512(hashes_ + b, hash);
    // The marks differ in their lowest bit only.
    const __m512i from_mark = _mm512_xor_si512(key, Words::all(empty_key<Key>()));
    auto stray = static_cast<unsigned>(_mm512_cmple_epu64_mask(from_mark, Words::all(1)));
    for (; stray != 0; stray &= stray - 1)
      fill_one(keys, b + static_cast<std::size_t>(std::countr_zero(stray)), geometry);
  }
#endif

  alignas(64) Key stored_[kHomes];
  alignas(64) std::uint32_t buckets_[kHomes];
  alignas(64) std::uint64_t hashes_[kHomes];
};

}  // namespace gpuhash::host
