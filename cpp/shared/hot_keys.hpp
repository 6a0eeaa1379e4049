#pragma once

#include <cstdint>

#include "shared/host_device.hpp"

namespace gpuhash {

inline constexpr int kHotSlots = 256;

/// Keys that come very often in a batch, each in the slot that its hash picks. Of several with one slot, the one that
/// comes most often has it.
template <class Key>
struct HotKeys {
  static constexpr std::int64_t kLeastInSample = 4;  // of Sample::kKeys: one that comes twice in 2^11 keys

  Key keys[kHotSlots];
  std::uint8_t used[kHotSlots];  // is there one?

  /// By bits of the owners' hash that hardly have a say in who the owner is.
  GPUHASH_HD static int slot_of(std::uint64_t hash) { return static_cast<int>(hash % kHotSlots); }
  /// The slot of a hot key; -1 for others.
  GPUHASH_HD int find(const Key& key, std::uint64_t hash) const {
    const int slot = slot_of(hash);
    return keys[slot] == key && used[slot] != 0 ? slot : -1;
  }
};

}  // namespace gpuhash
