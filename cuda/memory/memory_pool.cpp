#include "cuda/memory/memory_pool.hpp"

#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "cuda/check.hpp"
#include "cuda/stream.hpp"

namespace gpuhash::cuda {

MemoryPool::MemoryPool(int device) : device_(device), reserved_(device, [this] { trim(); }) {
  const DeviceGuard guard(device_);
  const BesideCaptures relaxed;
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = device_;
  check(cudaMemPoolCreate(&pool_, &props), "creating a CUDA memory pool");
  std::uint64_t keep = ~std::uint64_t{0};
  check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep), "configuring a CUDA memory pool");
}

void* MemoryPool::allocate(std::size_t bytes, Stream stream) {
  const DeviceGuard guard(device_);
  const BesideCaptures relaxed;
  void* data = nullptr;
  cudaError_t status = cudaMallocFromPoolAsync(&data, bytes, pool_, handle(stream));
  if (status == cudaErrorMemoryAllocation && !is_capturing(stream)) {
    (void)cudaGetLastError();
    trim();
    status = cudaMallocFromPoolAsync(&data, bytes, pool_, handle(stream));
  }
  check(status, ("allocating " + std::to_string(bytes) + " bytes of GPU memory").c_str());
  return data;
}

/// What the pool keeps for other streams may be free by now, and others may need what it keeps unused. Waits for the
/// GPU.
void MemoryPool::trim() {
  const DeviceGuard guard(device_);
  const BesideCaptures relaxed;
  check(cudaDeviceSynchronize(), "waiting for the GPU");
  check(cudaMemPoolTrimTo(pool_, 0), "trimming the CUDA memory pool");
}

void MemoryPool::deallocate(void* data, std::size_t, Stream stream) noexcept {
  try {
    const DeviceGuard guard(device_);  // the default stream is the current device's
    // Memory that was taken on a stream that is no more does not go back otherwise, and the captures are invalid then.
    const BesideCaptures relaxed;
    if (cudaFreeAsync(data, handle(stream)) == cudaSuccess) return;
    (void)cudaGetLastError();
    // The stream is no more: wait for all streams instead.
    if (cudaDeviceSynchronize() == cudaSuccess) (void)cudaFreeAsync(data, nullptr);
    (void)cudaGetLastError();
  } catch (const std::exception&) {
    // At exit the driver may be gone before the last table; its memory went with it.
  }
}

bool MemoryPool::let_in(int device) {
  const std::lock_guard lock(mutex_);
  const auto known = reached_by_.find(device);
  if (known != reached_by_.end()) return known->second;
  const DeviceGuard guard(device_);
  const BesideCaptures relaxed;
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, device, device_), "asking for access between GPUs");
  if (can != 0) {
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = device;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    check(cudaMemPoolSetAccess(pool_, &access, 1), "giving another GPU access to a memory pool");
    reserved_.let_in(device);
  }
  return reached_by_[device] = can != 0;
}

CallersMemory::CallersMemory(int device, std::shared_ptr<MemoryResource> memory)
    : device_(device), memory_(std::move(memory)) {}

void* CallersMemory::allocate(std::size_t bytes, Stream stream) {
  const DeviceGuard guard(device_);
  return memory_->allocate(bytes, stream);
}

void CallersMemory::deallocate(void* data, std::size_t bytes, Stream stream) noexcept {
  std::optional<DeviceGuard> guard;
  try {
    guard.emplace(device_);
  } catch (const std::exception&) {
    // At exit the driver may be gone; the resource has to know of its memory's end all the same.
  }
  memory_->deallocate(data, bytes, stream);
}

}  // namespace gpuhash::cuda
