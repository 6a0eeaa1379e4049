#pragma once

#include <algorithm>
#include <cstdint>

#include "host_walk.hpp"

/// Room in a full bucket, made by moving a key on, as proposed by R. P. Brent, "Reducing the retrieval time of scatter
/// storage techniques", Communications of the ACM 16 (2), 1973: a new key that would lie far from home takes the place
/// of one that does not mind as much.
///
/// Only keys that lie at home move, and only to the second bucket of their sequence. That is in the same region, so the
/// thread that owns the bucket owns the other, too. The bucket that a key leaves stays full, and the one that it goes
/// to had an empty slot, so no walk that has seen it in vain has passed it.
namespace gpuhash::host {

/// Of a bucket with more slots, only the first ones' keys are considered.
inline constexpr std::uint32_t kMostMovable = 2;

namespace detail {

/// Calls body(slot, probe) with probes at the second buckets of keys that lie at home in a full bucket.
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

/// Asks for what make_room() will look at.
template <class View>
void ask_for_room(const View& view, std::uint32_t index) {
  detail::for_each_movable(view, index, [&](auto*, const auto& probe) {
    prefetch_bucket(view, probe.bucket());
    asm volatile("");  // GCC 12 takes what only prefetches for a function without effect, and leaves its calls out
  });
}

/// Moves a key out of a bucket without empty and erased slots, to the emptiest of the buckets that its keys may move
/// to. Returns its slot, which still looks like before, or null where no key can move.
template <class Simd, class View>
typename View::SlotType* make_room(const View& view, std::uint32_t index, std::uint64_t& new_filter_bits) {
  using SlotType = typename View::SlotType;
  SlotType* from = nullptr;
  SlotType* to = nullptr;
  std::uint8_t bit = 0;
  std::uint32_t most = 0;
  detail::for_each_movable(view, index, [&](SlotType* slot, const auto& probe) {
    SlotType* const bucket = bucket_at(view, probe.bucket());
    const auto empty = Simd::template slots_with<View>(bucket, empty_key<typename View::Key>());
    if (empty.count() <= most) return;
    most = empty.count();
    from = slot;
    to = empty.first(bucket);
    bit = probe.filter_bit();
  });
  if (from == nullptr) return nullptr;
  *to = *from;
  leave_bit(view, index, bit, new_filter_bits);
  return from;
}

}  // namespace gpuhash::host
