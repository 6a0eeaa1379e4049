#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>

#include <gpuhash/device_context.hpp>
#include "core/fork_safe_mutex.hpp"
#include "cuda/memory/reserved_memory.hpp"

/// Where the memory of tables on a GPU comes from.
namespace gpuhash::cuda {

/// A stream-ordered pool of our own, which keeps what it once got from the driver: allocation then costs no
/// synchronisation. Not the device's default pool, whose settings belong to the application.
class MemoryPool final : public MemoryResource {
 public:
  explicit MemoryPool(int device);

  void* allocate(std::size_t bytes, Stream stream) override;
  void deallocate(void* data, std::size_t bytes, Stream stream) noexcept override;
  /// Not from the pool itself, and not kept when it ends.
  std::unique_ptr<GrowingMemory> reserve(std::size_t bytes) override { return reserved_.make(bytes); }
  /// Lets work on another GPU read and write all of the pool's memory, and all that grows where it lies; false where
  /// the two cannot reach each other.
  bool let_in(int device);
  /// Likewise, but only what grows where it lies.
  bool let_in_to_reserved(int device) { return reserved_.let_in(device); }

 private:
  void trim();

  int device_;
  cudaMemPool_t pool_ = nullptr;
  ReservedMemories reserved_;
  ForkSafeMutex mutex_;
  std::map<int, bool> reached_by_;
};

/// A caller's memory resource, with its device current while it works, whatever the thread's own.
class CallersMemory final : public MemoryResource {
 public:
  CallersMemory(int device, std::shared_ptr<MemoryResource> memory);

  void* allocate(std::size_t bytes, Stream stream) override;
  void deallocate(void* data, std::size_t bytes, Stream stream) noexcept override;

 private:
  int device_;
  std::shared_ptr<MemoryResource> memory_;
};

}  // namespace gpuhash::cuda
