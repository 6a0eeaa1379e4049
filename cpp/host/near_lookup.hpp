#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "host/batch_keys.hpp"
#include "host/block_looks.hpp"
#include "host/homes.hpp"
#include "host/simd.hpp"
#include "host/walk.hpp"
#include "table/executor.hpp"

/// Lookups in a table that lies in the cache next to the core. There is no line from memory to wait for; what takes
/// time are branches that cannot be predicted. So there are none per key: a block of keys takes each step together.
namespace gpuhash::host {

/// A table of at most this many bytes lies in that cache.
inline constexpr std::uint64_t kNearBytes = std::uint64_t{1} << 20;

template <class View>
bool is_near(const View& view) {
  return View::slot_bytes(view.geometry.bucket_count) <= kNearBytes;
}

/// The visitor is BlockLooks' (host/block_looks.hpp).
template <class Simd, class View, class Keys, class Visitor>
class NearLookup {
 public:
  using Key = typename View::Key;

  NearLookup(const View& view, const Keys& keys, const Visitor& visitor)
      : view_(view), keys_(keys), visitor_(visitor) {}

  /// Looks up `count` keys, the first of which stands at `first` in the batch.
  void run(std::int64_t first, std::int64_t count) {
    for (std::int64_t n = 0; n < count; n += kBlock)
      run_block(n, first + n, static_cast<std::size_t>(std::min(kBlock, count - n)));
  }

  /// As run() has left it.
  const Visitor& visitor() const { return visitor_; }

 private:
  static constexpr std::int64_t kBlock = kHomes;

  void run_block(std::int64_t n, std::int64_t first, std::size_t size) {
    const View view = view_;  // copies, in registers
    Visitor visitor = visitor_;

    // Loops of their own: so more hashes are under way at once, and buckets come from the next cache in time.
    homes_.fill(Simd{}, keys_.data + n, size, view.geometry);
    for (std::size_t b = 0; b < size; ++b) prefetch_bucket(view, homes_.bucket(b));
    std::size_t count = 0;
    const auto ask = [](std::size_t) {};  // has been done
    for (std::uint64_t rest = looks_.look_at_homes(view, visitor, homes_, first, size, ask); rest != 0;
         rest &= rest - 1) {
      const auto b = static_cast<std::size_t>(std::countr_zero(rest));
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
        const bool full = looks_.look(view, visitor, first, b, probe.bucket(), probe.stored());
        probes_[kept] = probe;
        walking_[kept] = b;
        const bool filtered = filter_has(view, probe.bucket(), probe.filter_bit());
        kept += (full & filtered) ? 1 : 0;
      }
      count = kept;
    }
    visitor.found(first, looks_.found, size);
    visitor_ = visitor;
  }

  const View view_;
  const Keys keys_;
  Visitor visitor_;
  Homes<Key> homes_;
  Probe<Key> probes_[kBlock];
  std::uint8_t walking_[kBlock];  // places in the block, in order
  BlockLooks<Simd, View> looks_;
};

/// Looks up keys [begin, end), which are words.
template <class View, class Visitor>
void look_up_near(const View& view, const KeyBatch& batch, std::int64_t begin, std::int64_t end, Visitor& visitor) {
  with_words<View>(batch, begin, [&]<class Keys>(const Keys& keys) {
    with_simd([&](auto simd) {
      NearLookup<decltype(simd), View, Keys, Visitor> lookup(view, keys, visitor);
      lookup.run(begin, end - begin);
      visitor = lookup.visitor();
    });
  });
}

}  // namespace gpuhash::host
