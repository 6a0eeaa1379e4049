#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <new>
#include <vector>

#include "core/fork_safe_mutex.hpp"

namespace gpuhash::host {

/// Blocks of middle size that were freed, kept for whoever asks next: the scratch memory of one call becomes that of
/// the next one. The C library gives such blocks back to the system as soon as they are more than twice the largest
/// that it ever got back, and takes them again page by page: 2^17 distinct keys took unique() 13 ns each, and
/// take 4 where no page is new, its results' included, and 8 where those are. And where the system is a virtual machine
/// that gives free pages back to its host, a page that comes again takes 0.7 to 2 ns for each of its bytes.
class KeptBlocks {
 public:
  /// Smaller blocks the C library keeps itself.
  static constexpr std::size_t kLeastBytes = std::size_t{1} << 16;
  /// Of all that are kept: a table and the scratch memory of calls on it, each of which would else drive out the other.
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t kMostBytes = 0;  // so that what uses freed memory is seen
#else
  static constexpr std::size_t kMostBytes = std::size_t{96} << 20;
#endif
  /// Larger blocks are not kept.
  static constexpr std::size_t kLargestBytes = kMostBytes / 2;

  /// What a block for so many bytes has: sizes that are told apart in steps of a quarter, so that a block fits many.
  static std::size_t capacity(std::size_t bytes) {
    if (bytes < kLeastBytes || bytes > kLargestBytes) return bytes;
    const std::size_t step = std::bit_floor(bytes) / 4;
    return (bytes + step - 1) / step * step;
  }

  /// Null: there is none of that capacity.
  void* take(std::size_t capacity) {
    const Lock lock(mutex_);
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      if (block->bytes != capacity) continue;
      void* const data = block->data;
      blocks_.erase(std::next(block).base());
      bytes_ -= capacity;
      return data;
    }
    return nullptr;
  }

  /// Takes a block from posix_memalign() over; it, or those that were kept longest, are freed if there are too many.
  void keep(void* data, std::size_t capacity) noexcept {
    if (capacity < kLeastBytes || capacity > kLargestBytes) return std::free(data);
    const Lock lock(mutex_);
    try {
      blocks_.push_back({data, capacity});
    } catch (const std::bad_alloc&) {
      return std::free(data);
    }
    for (bytes_ += capacity; bytes_ > kMostBytes; blocks_.erase(blocks_.begin())) {
      bytes_ -= blocks_.front().bytes;
      std::free(blocks_.front().data);
    }
  }

 private:
  using Lock = std::lock_guard<ForkSafeMutex>;
  struct Block {
    void* data;
    std::size_t bytes;
  };

  ForkSafeMutex mutex_;
  std::vector<Block> blocks_;  // the last one freed comes last
  std::size_t bytes_ = 0;
};

}  // namespace gpuhash::host
