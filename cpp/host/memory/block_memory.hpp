#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>

#include <gpuhash/error.hpp>
#include "core/machine_memory.hpp"
#include "host/memory/huge_pages.hpp"
#include "host/memory/kept_blocks.hpp"

namespace gpuhash::host {

/// Host memory; what is freed is kept for a while.
class BlockMemory {
 public:
  /// A cache line: a bucket. Also what TensorFlow and JAX ask of buffers that they take over without a copy.
  static constexpr std::size_t kAlignment = 64;

  /// Throws OutOfMemoryError.
  void* allocate(std::size_t bytes) {
    const std::size_t capacity = kept_.capacity(bytes);
    void* data = kept_.take(capacity);
    if (data != nullptr) return data;
    const bool huge = capacity >= kHugePage;
    const auto failed = [&] { return posix_memalign(&data, huge ? kHugePage : kAlignment, capacity) != 0; };
    if (failed()) {
      kept_.free_all();  // others take this room
      if (failed()) throw OutOfMemoryError("could not allocate " + std::to_string(bytes) + " bytes of host memory");
    }
    if (huge) wish_for_huge_pages(data, capacity);
    return data;
  }
  /// `bytes`: as it was allocated.
  void deallocate(void* data, std::size_t bytes) noexcept { kept_.keep(data, kept_.capacity(bytes)); }
  /// Blocks of more bytes, or of fewer than KeptBlocks::kLeastBytes, are not kept.
  std::size_t largest_kept() const { return kept_.largest(); }

 private:
  KeptBlocks kept_{KeptBlocks::most_of(memory_of_container())};
};

}  // namespace gpuhash::host
