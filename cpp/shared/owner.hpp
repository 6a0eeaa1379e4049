#pragma once

#include <cstdint>

#include "shared/hash.hpp"

namespace gpuhash {

inline constexpr int kOwnerBits = 29;

/// Which of `parts` parts a key belongs to: about equally many keys to each, whatever pattern they have. One rule for
/// the shards of a table and the ranks of a process group.
///
/// Of the hash that a table with this seed uses, those bits that pick neither the key's home bucket nor its bit in the
/// filter: a part's keys spread over all buckets. (Where they go after a full one depends on all of the lower bits.)
GPUHASH_HD std::uint32_t owner_of_hash(std::uint64_t hash, std::uint32_t parts) {
  const std::uint64_t bits = hash & ((std::uint64_t{1} << kOwnerBits) - 1);
  return static_cast<std::uint32_t>(bits * parts >> kOwnerBits);
}

template <class Key>
GPUHASH_HD std::uint32_t owner_of(const Key& key, std::uint64_t seed, std::uint32_t parts) {
  return owner_of_hash(hash_key(key, seed), parts);
}

}  // namespace gpuhash
