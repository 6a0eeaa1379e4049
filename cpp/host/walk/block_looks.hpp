#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "host/simd/simd.hpp"
#include "host/walk/homes.hpp"
#include "host/walk/walk.hpp"

namespace gpuhash::host {

/// Looks for a block of keys at their home buckets, without a branch per key: which of them are found cannot be
/// predicted. Returns a bit for each key that is undecided, as its home is full and lacks it.
///
/// ask(b) is called before the b-th look. found [kHomes]; values [size] or null, of any alignment: absent keys get the
/// fallback.
template <class Simd, class View, class Ask>
std::uint64_t look_at_homes(const View& view, const Homes<typename View::Key>& homes, std::size_t size,
                            const typename View::Value& fallback, typename View::Value* values, bool* found,
                            const Ask& ask) {
  using Key = typename View::Key;
  static_assert(kHomes == 64);
  if constexpr (requires { Simd::look_at_each(view, homes.buckets(), homes.stored(), size, fallback, values, ask); }) {
    const LooksOf64 looks = Simd::look_at_each(view, homes.buckets(), homes.stored(), size, fallback, values, ask);
    Simd::store_flags(found, looks.match, size);
    return looks.undecided;
  } else {
    std::uint64_t undecided = 0;
    for (std::size_t b = 0; b < size; ++b) {
      ask(b);
      typename View::SlotType* const bucket = bucket_at(view, homes.bucket(b));
      const Key& stored = homes.stored(b);
      Look<View> look{};
      if constexpr (requires { Simd::template look_at<View>(bucket, stored, fallback); }) {
        look = Simd::template look_at<View>(bucket, stored, fallback);
      } else {
        const auto match = Simd::template slots_with<View>(bucket, stored);
        const auto empty = Simd::template slots_with<View>(bucket, empty_key<Key>());
        look.match = match.any();
        look.empty = empty.any();
        if constexpr (View::kHasValue) {
          const typename View::Value value = match.first(bucket)->value;
          look.value = match.any() ? value : fallback;
        }
      }
      if constexpr (View::kHasValue)
        if (values != nullptr) std::memcpy(values + b, &look.value, sizeof look.value);
      found[b] = look.match != 0;
      undecided |= std::uint64_t{(look.match | look.empty) == 0} << b;
    }
    return undecided;
  }
}

}  // namespace gpuhash::host
