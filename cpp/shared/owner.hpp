#pragma once

#include <cstdint>

#include "shared/hash.hpp"

namespace gpuhash {

/// Which of `shards` shards a key belongs to: about equally many keys to each, whatever pattern they have.
///
/// A hash of the key's hash: a shard's keys must spread over all of its buckets, and those are picked by the same hash
/// function.
template <class Key>
GPUHASH_HD std::uint32_t owner_of(const Key& key, std::uint64_t seed, std::uint32_t shards) {
  constexpr std::uint64_t kApart = 0x2545f4914f6cdd1dull;
  return static_cast<std::uint32_t>(multiply_high(hash_key(hash_key(key, seed), kApart), std::uint64_t{shards}));
}

}  // namespace gpuhash
