#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <gpuhash/device_context.hpp>
#include "core/fork_safe_mutex.hpp"

namespace gpuhash::cuda {

/// The memory of one GPU that grows where it lies, by CUDA's virtual memory management: addresses are reserved, and
/// pieces of memory mapped to them, one after the other. Other GPUs can be let in, to what is there and what comes.
class ReservedMemories {
 public:
  /// free_unused: gives back to the driver what somebody keeps for later. Called where memory runs out.
  ReservedMemories(int device, std::function<void()> free_unused);
  ReservedMemories(const ReservedMemories&) = delete;
  ReservedMemories& operator=(const ReservedMemories&) = delete;

  /// At least `bytes`; null where the GPU or its driver has no such memory, or no addresses are left. It has to end
  /// before this object does. Throws OutOfMemoryError.
  std::unique_ptr<GrowingMemory> make(std::size_t bytes);
  /// Lets work on another GPU read and write all of it; false where the two cannot reach each other.
  bool let_in(int device);

 private:
  class Memory;

  /// Of all pieces of memory: their sizes are multiples of it. 0: there is no such memory.
  std::size_t unit();

  int device_;
  std::function<void()> free_unused_;
  ForkSafeMutex mutex_;                  // of all below, and of all mappings
  std::set<Memory*> all_;                // that there are
  std::vector<CUmemAccessDesc> access_;  // of the GPU itself and those that were let in
  std::map<int, bool> reached_by_;       // by other GPUs
  bool asked_ = false;
  std::size_t unit_ = 0;
};

}  // namespace gpuhash::cuda
