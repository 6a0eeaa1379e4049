#pragma once

#include <cstddef>
#include <cstdint>

#include <gpuhash/device_context.hpp>
#include <gpuhash/requests.hpp>
#include "table/executor.hpp"
#include "table/slot_types.hpp"
#include "table/wide_keys.hpp"

namespace gpuhash {

/// What the owners of a batch's keys are found by: the keys, or a hash of each where they have more bytes than a slot.
/// Different keys may have one hash, and then one owner.
class OwnerKeys {
 public:
  OwnerKeys(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, Stream stream) : keys_(keys) {
    if (keys.bytes <= kMostSlotKeyBytes) return;
    hashes_ = Allocation(context, static_cast<std::size_t>(keys.count) * sizeof(std::uint64_t), stream);
    auto* const hashes = hashes_.as<std::uint64_t>();
    context.executors().wide_keys->fingerprint(context, keys, {seed, kBits}, 0, hashes, stream);
    keys_ = {hashes, keys.count, sizeof *hashes};
  }

  const KeyBatch& keys() const { return keys_; }
  bool are_hashes() const { return hashes_.get() != nullptr; }

 private:
  static constexpr int kBits = 63;

  KeyBatch keys_;
  Allocation hashes_;  // uint64 [n]
};

}  // namespace gpuhash
