#pragma once

#include <cstddef>
#include <cstdint>

#include "shared/hash.hpp"
#include "shared/host_device.hpp"

/// The memory layout, one definition for host and device.
///
/// A table is an array of *buckets* of 64 bytes (one host cache line, two GPU sectors: one memory access), each with as
/// many *slots* as fit, key and value side by side. Apart from them lies one *filter* byte per bucket.
///
/// A key's probe sequence is: the bucket that the high half of its hash picks; then kRegionHops buckets of the same
/// region and kTableHops of the whole table, each picked by another hash; then all buckets, one after the other from a
/// place that the table's late seed picks. Keys whose hashes were made to agree part there: without the seed nobody can
/// pick keys that go on together, so that a batch of them takes time in proportion to its length. A key
/// that is stored behind a full bucket of its sequence has left its bit in that bucket's filter. So there are two
/// invariants:
///
///   1. A key lies in its sequence before the first bucket whose filter lacks the key's bit, or in that bucket.
///   2. A bucket with an empty slot has never been passed by a key: its filter need not be read.
///
/// To keep the second, erasing from a bucket without an empty slot leaves an *erased* mark, not an empty slot. Erased
/// slots take new keys like empty ones, once the search has made sure that the key lies nowhere behind them.
///
/// Two key patterns mark empty and erased slots. The two keys with those patterns are stored in the *stray bucket*, one
/// more bucket at the end, under the stored patterns 0 and 1; so every key is legal, and no kernel has a special case.
///
/// A *region* is a range of buckets of at most kRegionBytes. Nearly all keys lie in the region of their home bucket. So
/// host threads that own different regions do not touch the same memory, and a block of GPU threads can work on a
/// region in shared memory (cuda/region/shared_region.cuh).
namespace gpuhash {

/// The value type of sets.
struct NoValue {};

/// One slot; its size is a power of two so that it never straddles a sector.
template <class Key, class Value>
struct alignas(2 * sizeof(Key)) Slot {
  Key key;
  Value value;
};

template <class Key>
struct alignas(sizeof(Key)) Slot<Key, NoValue> {
  Key key;
};

/// Counters of one table, in the table's memory space; the device adds to them without the host waiting.
struct Control {
  std::uint64_t size;         // live keys
  std::uint64_t missing;      // keys not found by the last find that counted them
  std::uint64_t absent;       // keys that list_absent has listed or count_absent has counted
  std::uint64_t undecided;    // keys of which count_absent cannot say
  std::uint64_t filter_bits;  // filter bits set since the last rebuild
  std::uint64_t erased;       // keys erased since the last rebuild
  std::uint64_t dropped;      // keys that found no slot or row: only a replayed CUDA graph can overfill a table
  std::uint64_t left;         // keys for which an insertion's budget had no slot; 0 between calls
  std::uint64_t far_keys;     // keys that insertions took past kFarHops full buckets, since the last rebuild
  std::uint64_t next_row;     // rows [0, next_row) have been handed out
  std::uint64_t free_rows;    // rows waiting in RowView::free
  std::uint64_t row_tickets;  // rows taken by the insertion under way
  std::uint64_t row_epoch;    // insertions into row storage since the tags were last cleared
  std::uint64_t listed;       // keys that a find_or_insert under way has yet to insert; 0 between calls
};

/// Row storage of values that do not fit beside their key; the slot holds the row number.
struct RowView {
  std::byte* data;        // [capacity, bytes]
  std::int64_t* free;     // [capacity], numbers of erased rows, a stack
  std::uint32_t* tags;    // [capacity], scratch that elects one writer per row; zeros wherever row_epoch is 0
  std::int64_t capacity;  // rows
  std::int64_t bytes;     // bytes per row; 0: the table has no row storage
};

/// What decides where keys lie: bucket counts and seeds.
struct Geometry {
  std::uint32_t bucket_count;  // without the stray bucket: region_count * region_buckets
  std::uint32_t region_count;
  std::uint32_t region_buckets;
  Seeds seeds;
};

inline constexpr std::uint32_t kRegionBytes = 1 << 16;
inline constexpr std::uint64_t kMaxBuckets = std::uint64_t{1} << 31;

/// Every byte of an empty slot's key, so that a byte fill makes a table empty. Any pattern would do; keys such as 0, -1
/// or ASCII text should not be stray often, because stray keys share one bucket.
inline constexpr std::uint8_t kEmptyByte = 0xb7;

template <class Key>
GPUHASH_HD constexpr Key empty_key() {
  return static_cast<Key>(0xb7b7b7b7b7b7b7b7ull);
}
template <>
GPUHASH_HD constexpr Uint128 empty_key<Uint128>() {
  return {0xb7b7b7b7b7b7b7b7ull, 0xb7b7b7b7b7b7b7b7ull};
}
template <class Key>
GPUHASH_HD constexpr Key erased_key() {
  return empty_key<Key>() ^ 1u;
}
template <>
GPUHASH_HD constexpr Uint128 erased_key<Uint128>() {
  return {empty_key<Uint128>().low ^ 1u, empty_key<Uint128>().high};
}
template <class Key>
GPUHASH_HD constexpr Key key_from_word(std::uint64_t word) {
  return static_cast<Key>(word);
}
template <>
GPUHASH_HD constexpr Uint128 key_from_word<Uint128>(std::uint64_t word) {
  return {word, 0};
}

/// A slot holds a key iff this.
template <class Key>
GPUHASH_HD constexpr bool is_live(const Key& stored) {
  return !(stored == empty_key<Key>()) && !(stored == erased_key<Key>());
}

/// The pattern that an empty slot's value has, too: a compare-and-swap of key and value together expects it.
template <class Value>
GPUHASH_HD constexpr Value empty_value() {
  return static_cast<Value>(0xb7b7b7b7b7b7b7b7ull);
}

/// Does a search end in a bucket of its sequence that does not hold the key? By both invariants; filter_has() says
/// whether the bucket's filter has the key's bit. It is called only where the bucket has no empty slot: elsewhere the
/// filter stays unread.
template <class FilterHas>
GPUHASH_HD constexpr bool search_ends(bool any_empty, FilterHas filter_has) {
  return any_empty || !filter_has();
}

/// What takes the place of a key that is erased: no key has passed a bucket with an empty slot, and in any other one an
/// empty slot would hide those that have.
template <class Key>
GPUHASH_HD constexpr Key mark_of_erased(bool any_empty) {
  return any_empty ? empty_key<Key>() : erased_key<Key>();
}

/// Non-owning view of one table; kernels take it by value.
template <class Key_, class Value_>
struct TableView {
  using Key = Key_;
  using Value = Value_;
  using SlotType = Slot<Key, Value>;

  static constexpr bool kHasValue = sizeof(SlotType) > sizeof(Key);
  static constexpr std::uint32_t kBucketBytes = sizeof(SlotType) > 16 ? 128 : 64;
  static constexpr std::uint32_t kSlots = kBucketBytes / sizeof(SlotType);  // per bucket
  static constexpr std::uint32_t kMaxRegionBuckets = kRegionBytes / kBucketBytes;

  SlotType* slots;        // [(bucket_count + 1) * kSlots], the last bucket is the stray one
  std::uint8_t* filters;  // [bucket_count + 1], rounded up to a multiple of 4
  Control* control;
  RowView rows;
  Geometry geometry;
  bool may_have_erased;  // slots may hold the erased mark; where they do not, insertion has less to look for

  static constexpr std::size_t slot_bytes(std::uint64_t buckets) { return (buckets + 1) * kBucketBytes; }
  static constexpr std::size_t filter_bytes(std::uint64_t buckets) { return (buckets + 1 + 3) / 4 * 4; }
  GPUHASH_HD std::uint64_t slot_count() const { return (std::uint64_t{geometry.bucket_count} + 1) * kSlots; }
};

/// Tables whose values may be row numbers.
template <class View>
inline constexpr bool kMayHaveRows = sizeof(typename View::Value) == sizeof(std::uint64_t);

/// The key that a live slot stands for; `in_stray_bucket`: it lies in the last bucket.
template <class Key>
GPUHASH_HD Key key_of_slot(const Key& stored, bool in_stray_bucket) {
  if (!in_stray_bucket) return stored;
  return stored == key_from_word<Key>(0) ? empty_key<Key>() : erased_key<Key>();
}

namespace detail {

/// Shifts, not copies byte by byte: on a GPU an addressed local word would live in memory.
template <class Part, class Word>
GPUHASH_HD void put_part(Word& word, std::uint32_t part, Part bits) {
  const std::uint32_t shift = part * 8 * static_cast<std::uint32_t>(sizeof(Part));
  if constexpr (sizeof(Word) == 16) {
    (shift < 64 ? word.low : word.high) |= static_cast<std::uint64_t>(bits) << (shift % 64);
  } else {
    word |= static_cast<Word>(static_cast<std::uint64_t>(bits) << shift);
  }
}

template <class Part, class Word>
GPUHASH_HD Part part_of(const Word& word, std::uint32_t part) {
  const std::uint32_t shift = part * 8 * static_cast<std::uint32_t>(sizeof(Part));
  if constexpr (sizeof(Word) == 16) {
    return static_cast<Part>((shift < 64 ? word.low : word.high) >> (shift % 64));
  } else {
    return static_cast<Part>(static_cast<std::uint64_t>(word) >> shift);
  }
}

/// On a GPU this loop and the next one are not unrolled: what seldom runs was a seventh of the kernels' code.
template <class Part, class Word>
GPUHASH_HD Word load_parts(const void* from, std::uint32_t parts) {
  Word word{};
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
  for (std::uint32_t p = 0; p < parts; ++p) put_part(word, p, static_cast<const Part*>(from)[p]);
  return word;
}

template <class Part, class Word>
GPUHASH_HD void store_parts(void* to, std::uint32_t parts, const Word& word) {
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
  for (std::uint32_t p = 0; p < parts; ++p) static_cast<Part*>(to)[p] = part_of<Part>(word, p);
}

}  // namespace detail

/// Reads `bytes` (1 to sizeof(Word)) as the low bytes of a word; the others are zero. Little-endian, like all our
/// targets. Arrays are aligned to their elements only: two int8 or four int32 make a key that no wider load may read.
template <class Word>
GPUHASH_HD Word load_bytes(const void* data, std::int64_t index, std::uint32_t bytes) {
  const char* from = static_cast<const char*>(data) + index * static_cast<std::int64_t>(bytes);
  if (bytes == sizeof(Word) && reinterpret_cast<std::uintptr_t>(from) % alignof(Word) == 0)
    return *reinterpret_cast<const Word*>(from);
  if (bytes % 4 == 0 && reinterpret_cast<std::uintptr_t>(from) % 4 == 0)
    return detail::load_parts<std::uint32_t, Word>(from, bytes / 4);
  return detail::load_parts<std::uint8_t, Word>(from, bytes);
}

template <class Word>
GPUHASH_HD void store_bytes(void* data, std::int64_t index, std::uint32_t bytes, const Word& word) {
  char* to = static_cast<char*>(data) + index * static_cast<std::int64_t>(bytes);
  if (bytes == sizeof(Word) && reinterpret_cast<std::uintptr_t>(to) % alignof(Word) == 0)
    *reinterpret_cast<Word*>(to) = word;
  else if (bytes % 4 == 0 && reinterpret_cast<std::uintptr_t>(to) % 4 == 0)
    detail::store_parts<std::uint32_t>(to, bytes / 4, word);
  else
    detail::store_parts<std::uint8_t>(to, bytes, word);
}

}  // namespace gpuhash
