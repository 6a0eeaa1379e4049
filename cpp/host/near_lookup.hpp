#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "host/simd.hpp"
#include "host/walk.hpp"

/// Lookups in a table that lies in the cache next to the core. There is no line from memory to wait for; what takes
/// time are branches that cannot be predicted. So there are none per key: a block of keys takes each step together.
namespace gpuhash::host {

/// What is seen of a key is told to an object of this shape:
///
///   seen(i, look)   at every bucket of the walk; what the last one shows counts
///   fallback        the value in `look` where the key is absent
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
  static constexpr std::int64_t kBlock = 64;

  void run_block(std::int64_t first, std::size_t size) {
    const View view = view_;  // copies, in registers
    Visitor visitor = visitor_;
    // True if the walk goes on. Reading the filter only where the bucket is full would take a branch.
    const auto look = [&](std::size_t b, const Probe<Key>& probe) {
      const auto seen = look_at(bucket_at(view, probe.bucket()), probe.stored(), visitor.fallback);
      visitor.seen(first + static_cast<std::int64_t>(b), seen);
      const bool full = (seen.match | seen.empty) == 0;
      return full & filter_has(view, probe.bucket(), probe.filter_bit());
    };

    // A loop of its own: so more hashes are under way at once, and buckets come from the next cache in time.
    for (std::size_t b = 0; b < size; ++b) {
      probes_[b] = Probe<Key>(detail::load_whole<Key>(keys_ + first + b), view.geometry);
      prefetch_bucket(view, probes_[b].bucket());
    }
    std::size_t count = 0;
    for (std::size_t b = 0; b < size; ++b) {
      const bool goes_on = look(b, probes_[b]);
      walking_[count] = static_cast<std::uint8_t>(b);
      count += goes_on ? 1 : 0;
    }
    // All have made the same number of hops.
    while (count != 0 && !probes_[walking_[0]].exhausted(view.geometry)) {
      std::size_t kept = 0;
      for (std::size_t w = 0; w < count; ++w) {
        const std::size_t b = walking_[w];
        probes_[b].next(view.geometry);
        const bool goes_on = look(b, probes_[b]);
        walking_[kept] = static_cast<std::uint8_t>(b);
        kept += goes_on ? 1 : 0;
      }
      count = kept;
    }
    visitor_ = visitor;
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
  Probe<Key> probes_[kBlock];
  std::uint8_t walking_[kBlock];  // places in the block, in order
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
