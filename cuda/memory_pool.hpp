#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>

#include <gpuhash/device_context.hpp>
#include "core/fork_safe_mutex.hpp"

/// Where the memory of tables on a GPU comes from.
namespace gpuhash::cuda {

/// A stream-ordered pool of our own, which keeps what it once got from the driver: allocation then costs no
/// synchronisation. Not the device's default pool, whose settings belong to the application.
class MemoryPool final : public MemoryResource {
 public:
  explicit MemoryPool(int device);

  void* allocate(std::size_t bytes, Stream stream) override;
  void deallocate(void* data, std::size_t bytes, Stream stream) noexcept override;
  /// Lets work on another GPU read and write all of the pool's memory; false where the two cannot reach each other.
  bool let_in(int device);

 private:
  int device_;
  cudaMemPool_t pool_ = nullptr;
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
