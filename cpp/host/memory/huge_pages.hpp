#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace gpuhash::host {

/// A table is read at random: with 4 KiB pages every access would miss the TLB as well.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// From an address that is a multiple of kHugePage. It may be ignored.
inline void wish_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace gpuhash::host
