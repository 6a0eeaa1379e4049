#pragma once

#include <cstdint>

#include "shared/host_device.hpp"

namespace gpuhash {

/// Slots in which the keys of a sample are counted: by 32 bits of their hashes, so that no more than
/// one sample in a hundred takes two of its keys for one. A slot holds those bits that do not pick it, and how often
/// the key has come. All zeros: empty.
struct SampleSlots {
  static constexpr int kSlotBits = 13;
  static constexpr std::uint32_t kSlots = 1u << kSlotBits;
  static constexpr int kMostTried = 16;

  struct Place {
    std::uint32_t home;
    std::uint32_t tag;

    GPUHASH_HD explicit Place(std::uint64_t hash)
        : home(static_cast<std::uint32_t>(hash) % kSlots), tag(static_cast<std::uint32_t>(hash) / kSlots) {}
    /// A slot of this key that has not come yet.
    GPUHASH_HD std::uint32_t empty() const { return tag << kSlotBits; }
    GPUHASH_HD bool is_mine(std::uint32_t slot) const { return slot >> kSlotBits == tag; }
  };

  GPUHASH_HD static std::uint32_t next(std::uint32_t at) { return (at + 1) % kSlots; }
  GPUHASH_HD static std::int64_t count(std::uint32_t slot) { return slot % kSlots; }

  /// Counts a key on the host. Returns how often it has come, this time included, or 0 where kMostTried others have
  /// taken its slots, as keys do that were picked to meet.
  static std::int64_t meet(std::uint32_t* slots, std::uint64_t hash) {
    const Place place(hash);
    std::uint32_t at = place.home;
    for (int n = 0; n < kMostTried; ++n, at = next(at)) {
      if (slots[at] == 0) slots[at] = place.empty();
      if (place.is_mine(slots[at])) return count(++slots[at]);
    }
    return 0;
  }
};

}  // namespace gpuhash
