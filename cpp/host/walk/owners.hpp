#pragma once

#include <cstdint>

#include "shared/host_device.hpp"

namespace gpuhash::host {

/// Who owns a region: the thread number region % parts, without the division (D. Lemire, O. Kaser and N. Kurz, "Faster
/// remainder by direct computation", Software: Practice and Experience 49, 2019). Ranges of regions instead would leave
/// one thread all keys of a chunk whose keys come in the order of a table, as those of items() do.
class Owners {
 public:
  explicit Owners(std::uint32_t parts) : parts_(parts), inverse_(~std::uint64_t{0} / parts + 1) {}
  std::uint32_t of(std::uint32_t region) const {
    return static_cast<std::uint32_t>(multiply_high(inverse_ * region, std::uint64_t{parts_}));
  }

 private:
  std::uint64_t parts_;
  std::uint64_t inverse_;  // 2^64 / parts, rounded up
};

}  // namespace gpuhash::host
