#pragma once

#include <cstddef>
#include <cstdint>

#include "host/homes.hpp"
#include "host/simd.hpp"
#include "host/walk.hpp"

namespace gpuhash::host {

/// Looks for a block of keys at their home buckets, without a branch per key: which of them are found cannot be
/// predicted. What is seen of a key is told to an object of this shape:
///
///   value(i, value)           at every bucket of the walk; what the last one shows counts
///   fallback                  the value where the key is absent
///   values_from(i)            where value() stores values; null if nobody wants them
///   found(first, flags, n)    once for keys [first, first + n), when all of them have been looked for
template <class Simd, class View>
struct BlockLooks {
  using Key = typename View::Key;
  static_assert(kHomes == 64);

  alignas(64) bool found[kHomes];

  /// For `size` keys of the batch, from the one at `first` on. Returns a bit for each that is undecided, as its home is
  /// full and lacks it. ask(b) is called before the b-th look.
  template <class Visitor, class Ask>
  std::uint64_t look_at_homes(const View& view, Visitor& visitor, const Homes<Key>& homes, std::int64_t first,
                              std::size_t size, const Ask& ask) {
    if constexpr (requires {
                    Simd::look_at_each(view, homes.buckets(), homes.stored(), size, visitor.fallback,
                                       visitor.values_from(first), ask);
                  }) {
      const LooksOf64 looks = Simd::look_at_each(view, homes.buckets(), homes.stored(), size, visitor.fallback,
                                                 visitor.values_from(first), ask);
      Simd::store_flags(found, looks.match, size);
      return looks.undecided;
    } else {
      std::uint64_t undecided = 0;
      for (std::size_t b = 0; b < size; ++b) {
        ask(b);
        undecided |= std::uint64_t{look(view, visitor, first, b, homes.bucket(b), homes.stored(b))} << b;
      }
      return undecided;
    }
  }

  /// At any bucket, for the b-th key of the block. True if it leaves the key undecided.
  template <class Visitor>
  bool look(const View& view, Visitor& visitor, std::int64_t first, std::size_t b, std::uint32_t bucket,
            const Key& stored) {
    const auto seen = look_at(bucket_at(view, bucket), stored, visitor.fallback);
    visitor.value(first + static_cast<std::int64_t>(b), seen.value);
    found[b] = seen.match != 0;
    return (seen.match | seen.empty) == 0;
  }

 private:
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
};

}  // namespace gpuhash::host
