#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <gpuhash/requests.hpp>
#include "host/parallel.hpp"
#include "host/walk/walk.hpp"
#include "shared/hash.hpp"
#include "shared/layout.hpp"
#include "shared/sample_slots.hpp"

namespace gpuhash::host {

/// Some keys that come often, at most one in each of 2048 places, which lie in the first cache: a load and a comparison
/// tell whether a key is one. They depend on nothing but the batch and the seed, so that equal programs get equal
/// tables.
template <class Key>
class HotPlaces {
 public:
  static constexpr int kBits = 11;
  static constexpr std::size_t kPlaces = std::size_t{1} << kBits;

  /// None yet. The seed is that of the hashes by which a sample is counted.
  explicit HotPlaces(std::uint64_t seed) : seed_(seed) {
    // What no key is taken for: 0 belongs to one place, and some other key does not.
    const Key zero = key_from_word<Key>(0);
    std::uint32_t other = 1;
    while (place_of(key_from_word<Key>(other)) == place_of(zero)) ++other;
    std::fill_n(keys_, kPlaces, zero);
    keys_[place_of(zero)] = key_from_word<Key>(other);
  }

  /// Chooses those that come twice or more in a sample, of two in one place the more frequent. False where less than an
  /// eighth of another sample is of keys of which each makes up a 256th of the batch or more: a slot that is written
  /// less often than that is not waited for, and to set its keys aside costs more than it saves.
  bool choose(const KeyBatch& batch) {
    auto slots = scratch<std::uint32_t>(SampleSlots::kSlots);
    std::int64_t times[kPlaces] = {};  // of the key in each place
    Key sample[kMostSampled];          // read first, so that many lines are under way
    const std::int64_t size = std::clamp(batch.count / 256, kLeastSampled, kMostSampled);
    const std::int64_t count = read_sample(batch, 0, size, sample);
    for (std::int64_t n = 0; n < count; ++n) {
      const Key& key = sample[n];
      const std::int64_t came = SampleSlots::meet(slots.data(), hash_key(key, seed_));
      const std::size_t place = place_of(key);
      if (came < 2 || came <= times[place]) continue;
      times[place] = came;
      keys_[place] = key;
    }
    const std::int64_t judged = read_sample(batch, batch.count / count / 2, count / 4, sample);
    std::int64_t hot = 0;
    for (std::int64_t n = 0; n < judged; ++n) {
      const std::size_t place = place_of(sample[n]);
      hot += keys_[place] == sample[n] && times[place] >= count / 256 ? 1 : 0;
    }
    return hot >= judged / 8;
  }

  /// A single multiplication: whoever picks keys with one place has them done as if they were not hot.
  static std::size_t place_of(const Key& key) { return late_hash(key, gpuhash::detail::kHashFold) >> (32 - kBits); }
  const Key& operator[](std::size_t place) const { return keys_[place]; }

 private:
  static constexpr std::int64_t kLeastSampled = 1 << 9;
  static constexpr std::int64_t kMostSampled = 1 << 12;

  /// Reads `size` keys, all over the batch, and returns `size`.
  static std::int64_t read_sample(const KeyBatch& batch, std::int64_t first, std::int64_t size, Key* to) {
    const std::int64_t step = batch.count / size;
    for (std::int64_t n = 0; n < size; ++n) to[n] = load_word<Key>(batch.data, first + n * step, batch.bytes);
    return size;
  }

  std::uint64_t seed_;
  alignas(64) Key keys_[kPlaces];
};

}  // namespace gpuhash::host
