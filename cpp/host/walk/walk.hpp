#pragma once

#include <cstdint>

#include "host/short_bytes.hpp"
#include "shared/layout.hpp"

/// What a walk along a probe sequence needs, on the host: buckets and filters. A *walk* is one search for a key: it
/// looks into buckets until it has found the key or a reason to stop. The walks themselves are in
/// host/walk/pipeline.hpp.
namespace gpuhash::host {

template <class View>
typename View::SlotType* bucket_at(const View& view, std::uint64_t bucket) {
  return view.slots + bucket * View::kSlots;
}

/// The bucket that the slot lies in.
template <class View>
typename View::SlotType* bucket_of(const View& view, const typename View::SlotType* slot) {
  return bucket_at(view, static_cast<std::uint64_t>(slot - view.slots) / View::kSlots);
}

template <class View>
bool filter_has(const View& view, std::uint32_t bucket, std::uint8_t bit) {
  return (view.filters[bucket] & bit) != 0;
}

/// Leaves a key's bit in the filter of a bucket that it passes, and counts it if it was not there.
template <class View, class Count>
void leave_bit(const View& view, std::uint32_t bucket, std::uint8_t bit, Count& new_filter_bits) {
  std::uint8_t& filter = view.filters[bucket];
  new_filter_bits += (filter & bit) == 0 ? 1 : 0;
  filter |= bit;
}

/// What walks leave behind, for Control.
struct Passed {
  std::uint64_t filter_bits = 0;  // new ones
  std::uint64_t far_keys = 0;
  std::int64_t keys = 0;  // that have walked: all, or the first ones
};

/// Insertions that take so many keys far from home stop soon after.
inline constexpr std::uint64_t kAnyFarKeys = ~std::uint64_t{0};

enum class Purpose { kLookup, kInsertion };

/// kRegion: the walk gives up where it would leave the key's region.
enum class Reach { kRegion, kTable };

/// GCC 12 takes a function that only prefetches for one without effect, and leaves its calls out: such functions become
/// part of their callers, or have this in them.
inline void keep_calls() { asm volatile(""); }

template <class View>
[[gnu::always_inline]] inline void prefetch_bucket(const View& view, std::uint32_t bucket) {
  const auto* const first = reinterpret_cast<const char*>(bucket_at(view, bucket));
  for (std::uint32_t byte = 0; byte < View::kBucketBytes; byte += 64) __builtin_prefetch(first + byte);
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
