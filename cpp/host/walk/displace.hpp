#pragma once

#include <algorithm>
#include <cstdint>

#include "host/walk/walk.hpp"
#include "shared/probe_sequence.hpp"

/// A place for a new key in a full bucket: that of a key which can move on to the next bucket of its own sequence (R.
/// P. Brent, "Reducing the retrieval time of scatter storage techniques", CACM 16, 1973).
///
/// Here only keys that lie at home move, one step. Both buckets are in one region, so whoever owns the one owns the
/// other. The bucket stays full and gets the bit of the key that has moved; and a walk for that key, wherever it waits,
/// has not passed the bucket it has moved to, for that had a slot which the walk would have taken: an empty one, or an
/// erased one and a filter without the key's bit.
namespace gpuhash::host {

/// Keys of a bucket that are considered. Each costs a line from memory.
inline constexpr std::uint32_t kMostMovable = 2;

namespace detail {

/// Calls body(slot, probe) for keys that lie at home in the full bucket; the probe is at their second bucket.
template <class View, class Body>
void for_each_movable(const View& view, std::uint32_t index, Body body) {
  auto* const bucket = bucket_at(view, index);
  for (std::uint32_t s = 0; s < std::min(View::kSlots, kMostMovable); ++s) {
    Probe<typename View::Key> probe(bucket[s].key, view.geometry);
    if (probe.bucket() != index) continue;
    probe.next(view.geometry);
    body(bucket + s, probe);
  }
}

}  // namespace detail

/// Asks for the lines that displace() will look at.
template <class View>
void ask_for_displacement(const View& view, std::uint32_t index) {
  detail::for_each_movable(view, index, [&](auto*, const auto& probe) {
    prefetch_bucket(view, probe.bucket());
    keep_calls();
  });
}

/// Moves a key out of a bucket that has no empty slot, to that of the buckets that its keys may move to which has most
/// room. Returns the slot, which still looks as before; null where no key can move. marks(): tables may have erased
/// slots.
template <class Simd, class Marks, class View>
typename View::SlotType* displace(Marks marks, const View& view, std::uint32_t index, std::uint64_t& new_filter_bits) {
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;
  SlotType* from = nullptr;
  SlotType* to = nullptr;
  std::uint8_t bit = 0;
  std::uint32_t most = 0;
  detail::for_each_movable(view, index, [&](SlotType* slot, const auto& probe) {
    SlotType* const bucket = bucket_at(view, probe.bucket());
    auto vacant = Simd::template slots_with<View>(bucket, empty_key<Key>());
    if constexpr (marks())
      vacant = vacant.with(Simd::template slots_with<View>(bucket, erased_key<Key>()),
                           !filter_has(view, probe.bucket(), probe.filter_bit()));
    if (vacant.count() <= most) return;
    most = vacant.count();
    from = slot;
    to = vacant.first(bucket);
    bit = probe.filter_bit();
  });
  if (from == nullptr) return nullptr;
  *to = *from;
  leave_bit(view, index, bit, new_filter_bits);
  return from;
}

}  // namespace gpuhash::host
