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

  /// What all blocks that are kept may have, where processes have so much memory: what a table and the scratch memory
  /// of calls on it take, each of which would else drive out the other. From 96 GiB on that is a table of two million
  /// pairs as it grows, and batches of twice as many keys.
  static constexpr std::size_t most_of([[maybe_unused]] std::size_t memory) {
#if defined(__SANITIZE_ADDRESS__)
    return 0;  // so that what uses freed memory is seen
#else
    return std::clamp(memory / 512, std::size_t{96} << 20, std::size_t{192} << 20);
#endif
  }

  explicit KeptBlocks(std::size_t most) : most_(most) {}

  /// Blocks of more bytes are not kept.
  std::size_t largest() const { return most_ / 2; }

  /// What a block for so many bytes has: sizes that are told apart in steps of a quarter, so that a block fits many.
  std::size_t capacity(std::size_t bytes) const {
    if (bytes < kLeastBytes || bytes > largest()) return bytes;
    const std::size_t step = std::bit_floor(bytes) / 4;
    return std::min((bytes + step - 1) / step * step, largest());
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

  /// Of memory that others could use.
  void free_all() noexcept {
    const Lock lock(mutex_);
    for (const Block& block : blocks_) std::free(block.data);
    blocks_.clear();
    bytes_ = 0;
  }

  /// Takes a block from posix_memalign() over; it, or those that were kept longest, are freed if there are too many.
  void keep(void* data, std::size_t capacity) noexcept {
    if (capacity < kLeastBytes || capacity > largest()) return std::free(data);
    const Lock lock(mutex_);
    try {
      blocks_.push_back({data, capacity});
    } catch (const std::bad_alloc&) {
      return std::free(data);
    }
    for (bytes_ += capacity; bytes_ > most_; blocks_.erase(blocks_.begin())) {
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

  const std::size_t most_;
  ForkSafeMutex mutex_;
  std::vector<Block> blocks_;  // the last one freed comes last
  std::size_t bytes_ = 0;
};

}  // namespace gpuhash::host
