#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "host/homes.hpp"
#include "host/simd.hpp"
#include "host/walk.hpp"

/// Lookups in a table that lies in the cache next to the core. There is no line from memory to wait for; what takes
/// time are branches that cannot be predicted. So there are none per key: a block of keys takes each step together.
namespace gpuhash::host {

/// What is seen of a key is told to an object of this shape:
///
///   value(i, value)           at every bucket of the walk; what the last one shows counts
///   fallback                  the value where the key is absent
///   values_from(i)            where value() stores values; null if nobody wants them
///   found(first, flags, n)    once for keys [first, first + n)
template <class Simd, class View, class Visitor>
class NearLookup {
 public:
  using Key = typename View::Key;

  NearLookup(const View& view, const Key* keys, const Visitor& visitor) : view_(view), keys_(keys), visitor_(visitor) {}

  /// Looks up keys [begin, end).
  void run(std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += kBlock)
      run_block(first, static_cast<std::size_t>(std::min(kBlock, end - first)));
  }

  /// As run() has left it.
  const Visitor& visitor() const { return visitor_; }

 private:
  static constexpr std::int64_t kBlock = kHomes;

  void run_block(std::int64_t first, std::size_t size) {
    const View view = view_;  // copies, in registers
    Visitor visitor = visitor_;

    // Loops of their own: so more hashes are under way at once, and buckets come from the next cache in time.
    homes_.fill(Simd{}, keys_ + first, size, view.geometry);
    for (std::size_t b = 0; b < size; ++b) prefetch_bucket(view, homes_.bucket(b));
    const std::size_t undecided = look_at_homes(view, visitor, first, size);
    std::size_t count = 0;
    for (std::size_t u = 0; u < undecided; ++u) {
      const std::size_t b = walking_[u];
      walking_[count] = static_cast<std::uint8_t>(b);
      probes_[count] = homes_.probe(b);
      count += filter_has(view, homes_.bucket(b), homes_.filter_bit(b)) ? 1 : 0;
    }
    // All have made the same number of hops.
    while (count != 0 && !probes_[0].exhausted(view.geometry)) {
      std::size_t kept = 0;
      for (std::size_t w = 0; w < count; ++w) {
        Probe<Key> probe = probes_[w];
        probe.next(view.geometry);
        const std::uint8_t b = walking_[w];
        const bool full = look(view, visitor, first, b, probe.bucket(), probe.stored());
        probes_[kept] = probe;
        walking_[kept] = b;
        kept += full & filter_has(view, probe.bucket(), probe.filter_bit()) ? 1 : 0;
      }
      count = kept;
    }
    visitor.found(first, found_, size);
    visitor_ = visitor;
  }

  /// Lists the keys that are undecided, as their homes are full and lack them.
  std::size_t look_at_homes(const View& view, Visitor& visitor, std::int64_t first, std::size_t size) {
    std::size_t undecided = 0;
    if constexpr (requires {
                    Simd::look_at_each(view, homes_.buckets(), homes_.stored(), size, visitor.fallback,
                                       visitor.values_from(first));
                  }) {
      const LooksOf64 looks = Simd::look_at_each(view, homes_.buckets(), homes_.stored(), size, visitor.fallback,
                                                 visitor.values_from(first));
      Simd::store_flags(found_, looks.match, size);
      for (std::uint64_t rest = looks.undecided; rest != 0; rest &= rest - 1)
        walking_[undecided++] = static_cast<std::uint8_t>(std::countr_zero(rest));
    } else {
      for (std::size_t b = 0; b < size; ++b) {
        walking_[undecided] = static_cast<std::uint8_t>(b);
        undecided += look(view, visitor, first, b, homes_.bucket(b), homes_.stored(b)) ? 1 : 0;
      }
    }
    return undecided;
  }

  /// True if it leaves the key undecided.
  bool look(const View& view, Visitor& visitor, std::int64_t first, std::size_t b, std::uint32_t bucket,
            const Key& stored) {
    const auto seen = look_at(bucket_at(view, bucket), stored, visitor.fallback);
    visitor.value(first + static_cast<std::int64_t>(b), seen.value);
    found_[b] = seen.match != 0;
    return (seen.match | seen.empty) == 0;
  }

  static Look<View> look_at(typename View::SlotType* bucket, const Key& stored,
                            [[maybe_unused]] const typename View::Value& fallback) {
    if constexpr (requires { Simd::template look_at<View>(bucket, stored, fallback); }) {
      return Simd::template look_at<View>(bucket, stored, fallback);
    } else {
      const auto match = Simd::template slots_with<View>(bucket, stored);
      const auto empty = Simd::template slots_with<View>(bucket, empty_key<Key>());
      Look<View> look{{}, match.any(), empty.any()};
      if constexpr (View::kHasValue) {
        const typename View::Value value = match.first(bucket)->value;
        look.value = match.any() ? value : fallback;
      }
      return look;
    }
  }

  const View view_;
  const Key* const keys_;  // any alignment
  Visitor visitor_;
  Homes<Key> homes_;
  Probe<Key> probes_[kBlock];
  std::uint8_t walking_[kBlock];  // places in the block, in order
  alignas(64) bool found_[kBlock];
};

/// Looks up keys [begin, end), which are as wide as the table's.
template <class View, class Visitor>
void look_up_near(const View& view, const KeyBatch& keys, std::int64_t begin, std::int64_t end, Visitor& visitor) {
  with_simd([&](auto simd) {
    NearLookup<decltype(simd), View, Visitor> lookup(view, static_cast<const typename View::Key*>(keys.data), visitor);
    lookup.run(begin, end);
    visitor = lookup.visitor();
  });
}

}  // namespace gpuhash::host
