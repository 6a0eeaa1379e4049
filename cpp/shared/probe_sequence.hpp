#pragma once

#include <cstdint>

#include "shared/hash.hpp"
#include "shared/layout.hpp"

/// The order in which the buckets of a key are looked at; what it has to do with the layout: shared/layout.hpp.
namespace gpuhash {

inline constexpr std::uint32_t kRegionHops = 8;
inline constexpr std::uint32_t kTableHops = 120;
/// Keys that an insertion takes past so many full buckets are counted; so many such keys were picked to meet. In a
/// table at a load of 0.92, a key in some 10^8 comes so far by chance.
inline constexpr std::uint32_t kFarHops = 64;
inline constexpr std::uint64_t kManyFarKeys = 64;

/// Where a key is looked for: its stored pattern and its probe sequence.
///
/// for (Probe p(key, geometry); ; p.next(geometry)) { ... p.bucket() ... if (stop) break; }
template <class Key>
class Probe {
 public:
  /// Nowhere yet.
  Probe() = default;

  GPUHASH_HD Probe(const Key& key, const Geometry& geometry)
      : stored_(key), hash_(hash_key(key, geometry.seeds.hash)), hop_(0) {
    const bool is_empty_mark = key == empty_key<Key>();
    if (is_empty_mark || key == erased_key<Key>()) {
      stored_ = key_from_word<Key>(is_empty_mark ? 0 : 1);
      bucket_ = geometry.bucket_count;
    } else {
      bucket_ = multiply_high(static_cast<std::uint32_t>(hash_ >> 32), geometry.bucket_count);
    }
  }

  /// At its home bucket, which has been computed before.
  Probe(const Key& stored, std::uint64_t hash, std::uint32_t home)
      : stored_(stored), hash_(hash), hop_(0), bucket_(home) {}

  GPUHASH_HD const Key& stored() const { return stored_; }
  GPUHASH_HD std::uint64_t hash() const { return hash_; }
  GPUHASH_HD std::uint32_t bucket() const { return bucket_; }
  GPUHASH_HD std::uint8_t filter_bit() const { return filter_bit_of(hash_); }
  GPUHASH_HD static std::uint8_t filter_bit_of(std::uint64_t hash) {
    return static_cast<std::uint8_t>(1u << ((hash >> 29) & 7));
  }
  GPUHASH_HD std::uint32_t hop() const { return hop_; }

  /// The region of the home bucket, in a table of any geometry. Not for stray keys.
  GPUHASH_HD std::uint32_t home_region(const Geometry& geometry) const {
    return multiply_high(static_cast<std::uint32_t>(hash_ >> 32), geometry.region_count);
  }

  /// The same, and region 0 for stray keys.
  GPUHASH_HD std::uint32_t region(const Geometry& geometry) const {
    return bucket_ == geometry.bucket_count ? 0 : home_region(geometry);
  }

  /// True once next() would leave the region of the home bucket.
  GPUHASH_HD bool at_last_hop_in_region() const { return hop_ >= kRegionHops; }

  /// True once every bucket has been seen.
  GPUHASH_HD bool exhausted(const Geometry& geometry) const {
    return hop_ > kRegionHops + kTableHops + geometry.bucket_count;
  }

  /// To a place where a probe of the same key has been.
  GPUHASH_HD void move_to(std::uint32_t bucket, std::uint32_t hop) {
    bucket_ = bucket;
    hop_ = hop;
  }

  /// Not for stray keys: their bucket is never passed.
  GPUHASH_HD void next(const Geometry& geometry) {
    if (hop_ < kRegionHops + kTableHops) {
      bucket_ = bucket_of_hop(hop_ + 1, geometry);
    } else if (hop_ == kRegionHops + kTableHops) {
      bucket_ = multiply_high(late_hash(stored_, geometry.seeds.late), geometry.bucket_count);
    } else {
      bucket_ = bucket_ + 1 == geometry.bucket_count ? 0 : bucket_ + 1;
    }
    ++hop_;
  }

  /// As often next() as it takes; from a hop that is not behind `hop`.
  GPUHASH_HD void go_to(std::uint32_t hop, const Geometry& geometry) {
    if (hop_ < hop && hop <= kRegionHops + kTableHops) move_to(bucket_of_hop(hop, geometry), hop);
    while (hop_ != hop) next(geometry);
  }

 private:
  /// Of hops 1 to kRegionHops + kTableHops. An odd multiplier each: double hashing would be cheaper, but can cycle over
  /// a bucket count that is not prime.
  GPUHASH_HD std::uint32_t bucket_of_hop(std::uint32_t hop, const Geometry& geometry) const {
    const std::uint32_t mixed = static_cast<std::uint32_t>(hash_) * (0x9e3779b9u + (hop - 1) * 2u * 0x85ebca6bu);
    return hop <= kRegionHops
               ? home_region(geometry) * geometry.region_buckets + multiply_high(mixed, geometry.region_buckets)
               : multiply_high(mixed, geometry.bucket_count);
  }

  Key stored_;
  std::uint64_t hash_;
  std::uint32_t hop_;
  std::uint32_t bucket_;
};

}  // namespace gpuhash
