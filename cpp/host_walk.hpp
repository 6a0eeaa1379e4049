#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <new>

#include "executor.hpp"
#include "layout.hpp"

/// The walk along a key's probe sequence, on the host: one definition for lookup, insertion and erasure.
namespace gpuhash::host {

namespace detail {

template <class Word>
[[gnu::noinline]] Word load_odd(const void* from, std::int64_t bytes) {
  Word word{};
  std::memcpy(&word, from, static_cast<std::size_t>(bytes));
  return word;
}

template <class Word>
Word load_whole(const void* from) {
  Word word;
  std::memcpy(&word, from, sizeof(Word));
  return word;
}

}  // namespace detail

/// load_bytes() and store_bytes() for the host: the common sizes are single moves at any alignment. The others are kept
/// out of line, or the word of the common ones would live in memory, too.
template <class Word>
Word load_word(const void* data, std::int64_t index, std::int64_t bytes) {
  const void* const from = static_cast<const char*>(data) + index * bytes;
  if (bytes == sizeof(Word)) return detail::load_whole<Word>(from);
  if (sizeof(Word) > 4 && bytes == 4) return key_from_word<Word>(detail::load_whole<std::uint32_t>(from));
  return detail::load_odd<Word>(from, bytes);
}

template <class Word>
void store_word(void* data, std::int64_t index, std::int64_t bytes, const Word& word) {
  void* const to = static_cast<char*>(data) + index * bytes;
  if (bytes == sizeof(Word))
    std::memcpy(to, &word, sizeof(Word));
  else if (bytes == 4)
    std::memcpy(to, &word, 4);
  else
    std::memcpy(to, &word, static_cast<std::size_t>(bytes));
}

/// Bit s is set where slot s of the bucket stores the pattern. No branch: the compiler unrolls it.
template <class View>
std::uint32_t slots_with(const typename View::SlotType* bucket, const typename View::Key& pattern) {
  std::uint32_t mask = 0;
  for (std::uint32_t s = 0; s < View::kSlots; ++s) mask |= static_cast<std::uint32_t>(bucket[s].key == pattern) << s;
  return mask;
}

template <class View>
typename View::SlotType* bucket_at(const View& view, std::uint64_t bucket) {
  return view.slots + bucket * View::kSlots;
}

/// The bucket that the slot lies in.
template <class View>
typename View::SlotType* bucket_of(const View& view, const typename View::SlotType* slot) {
  return bucket_at(view, static_cast<std::uint64_t>(slot - view.slots) / View::kSlots);
}

enum class Purpose { kLookup, kInsertion };

/// kRegion: the walk gives up where it would leave the key's region.
enum class Reach { kRegion, kTable };

/// Where a walk ended.
template <class View>
struct Place {
  typename View::SlotType* match = nullptr;   // the key's slot
  typename View::SlotType* vacant = nullptr;  // kInsertion, no match: the slot for the key; null where there is none
  std::uint32_t new_filter_bits = 0;          // kInsertion: set on the way
  bool left_region = false;                   // kRegion: undecided
};

/// Walks until the key is found or cannot lie further on. An insertion remembers the first slot it could use, but goes
/// on to the same end as a lookup: a key behind an erased slot would otherwise be stored twice. Only where there was no
/// such slot does it pass buckets that no key of its filter bit has passed before.
/// Inlined always: a call would pass probe and place through memory, which took half of the time of a find in cache.
template <Purpose kPurpose, Reach kReach, class View>
[[gnu::always_inline]] inline Place<View> walk(const View& view, Probe<typename View::Key> probe) {
  using Key = typename View::Key;
  Place<View> place;
  for (;; probe.next(view.geometry)) {
    auto* const bucket = bucket_at(view, probe.bucket());
    if (const std::uint32_t match = slots_with<View>(bucket, probe.stored()); match != 0) {
      place.match = bucket + std::countr_zero(match);
      return place;
    }
    const std::uint32_t empty = slots_with<View>(bucket, empty_key<Key>());
    if constexpr (kPurpose == Purpose::kInsertion) {
      if (place.vacant == nullptr) {
        const std::uint32_t vacant = empty | slots_with<View>(bucket, erased_key<Key>());
        if (vacant != 0) place.vacant = bucket + std::countr_zero(vacant);
      }
    }
    if (empty != 0) return place;
    if ((view.filters[probe.bucket()] & probe.filter_bit()) == 0) {
      if (kPurpose == Purpose::kLookup || place.vacant != nullptr) return place;
      view.filters[probe.bucket()] |= probe.filter_bit();
      ++place.new_filter_bits;
    }
    if (kReach == Reach::kRegion && probe.at_last_hop_in_region()) {
      place.left_region = true;
      return place;
    }
    if (probe.exhausted(view.geometry)) return place;
  }
}

template <class View>
void prefetch_bucket(const View& view, std::uint32_t bucket) {
  const auto* const first = reinterpret_cast<const char*>(bucket_at(view, bucket));
  for (std::uint32_t byte = 0; byte < View::kBucketBytes; byte += 64) __builtin_prefetch(first + byte);
}

/// Memory accesses under way at a time; a core has ten to twenty line fill buffers.
inline constexpr std::uint64_t kAhead = 16;

/// Calls body(i, probe) for the selected keys i of [begin, end), in order; the memory of the keys to come is fetched
/// meanwhile.
template <class View, class Select, class Body>
void for_each_probe(const View& view, const KeyBatch& keys, std::int64_t begin, std::int64_t end, Select select,
                    Body body) {
  using Key = typename View::Key;
  struct Pending {
    std::int64_t i;
    Probe<Key> probe;
  };
  union Lane {  // not initialised: a batch of one key pays for one
    Lane() {}
    Pending pending;
  };
  Lane ring[kAhead];
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  for (std::int64_t i = begin;;) {
    for (; i < end && last - first < kAhead; ++i) {
      const Probe<Key> probe(load_word<Key>(keys.data, i, keys.bytes), view.geometry);
      if (!select(probe)) continue;
      prefetch_bucket(view, probe.bucket());
      new (&ring[last++ % kAhead].pending) Pending{i, probe};
    }
    if (first == last) return;
    const Pending& pending = ring[first++ % kAhead].pending;
    body(pending.i, pending.probe);
  }
}

template <class View, class Body>
void for_each_probe(const View& view, const KeyBatch& keys, std::int64_t begin, std::int64_t end, Body body) {
  for_each_probe(view, keys, begin, end, [](const auto&) { return true; }, body);
}

/// Calls body(slot, in stray bucket) for the live slots of buckets [begin, end), in order.
template <class View, class Body>
void for_each_live(const View& view, std::uint64_t begin, std::uint64_t end, Body body) {
  auto* const last = bucket_at(view, end);
  auto* const stray = bucket_at(view, view.geometry.bucket_count);
  for (auto* slot = bucket_at(view, begin); slot != last; ++slot)
    if (is_live(slot->key)) body(slot, slot >= stray);
}

}  // namespace gpuhash::host
