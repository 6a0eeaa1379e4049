#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "annotations.hpp"

namespace gpuhash {

/// A queue of work on a device: a cudaStream_t; always null on the host, whose work is done when a call returns.
using Stream = void*;

/// Where a table lives: "cpu", or "cuda" with the GPU's index.
struct Device {
  std::string platform;
  int index = 0;

  std::string to_string() const { return platform == "cpu" ? platform : platform + ":" + std::to_string(index); }
  friend bool operator==(const Device& a, const Device& b) { return a.platform == b.platform && a.index == b.index; }
};

/// Gives and takes memory in stream order: what it gives may be used by work enqueued on `stream` from now on, and what
/// it takes may still be in use by work enqueued on `stream` before.
class GPUHASH_API MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  /// At least `bytes` > 0, aligned to 128 bytes (64 suffices on the host). Throws OutOfMemoryError.
  virtual void* allocate(std::size_t bytes, Stream stream) = 0;
  virtual void deallocate(void* data, std::size_t bytes, Stream stream) noexcept = 0;
};

/// A point in a stream's work that other streams can wait for.
class GPUHASH_API Fence {
 public:
  virtual ~Fence() = default;
  virtual void record(Stream stream) = 0;
  /// Work enqueued on `stream` from now on starts after the recorded point. The host does not wait.
  virtual void wait(Stream stream) = 0;
};

struct Executors;

/// All that a table knows of its device. Injected into the table, never reached for.
class GPUHASH_API DeviceContext {
 public:
  DeviceContext(Device device, std::shared_ptr<MemoryResource> memory)
      : device_(std::move(device)), memory_(std::move(memory)) {}
  virtual ~DeviceContext() = default;

  const Device& device() const noexcept { return device_; }
  MemoryResource& memory() const noexcept { return *memory_; }
  const std::shared_ptr<MemoryResource>& shared_memory() const noexcept { return memory_; }

  /// All in stream order; only copy_to_host waits, until its bytes have arrived.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void fill(void* to, std::uint8_t byte, std::size_t bytes, Stream stream) = 0;
  virtual void synchronize(Stream stream) = 0;

  virtual std::unique_ptr<Fence> make_fence() = 0;
  /// Is the stream being captured into a CUDA graph? Then its work runs later, perhaps often, perhaps never.
  virtual bool is_capturing(Stream stream) = 0;

  /// The algorithms that run here.
  virtual const Executors& executors() const = 0;

 private:
  Device device_;
  std::shared_ptr<MemoryResource> memory_;
};

/// Memory from a context's resource, given back in the order of `stream`.
class Allocation {
 public:
  Allocation() = default;
  Allocation(DeviceContext& context, std::size_t bytes, Stream stream)
      : memory_(context.shared_memory()), bytes_(bytes), stream_(stream) {
    if (bytes != 0) data_ = memory_->allocate(bytes, stream);
  }
  Allocation(Allocation&& other) noexcept { swap(other); }
  Allocation& operator=(Allocation&& other) noexcept {
    Allocation(std::move(other)).swap(*this);
    return *this;
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() {
    if (data_ != nullptr) memory_->deallocate(data_, bytes_, stream_);
  }

  void* get() const noexcept { return data_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const noexcept { return bytes_; }
  /// The stream whose work used the memory last; it is given back in that stream's order.
  void set_stream(Stream stream) noexcept { stream_ = stream; }

 private:
  void swap(Allocation& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
  }

  std::shared_ptr<MemoryResource> memory_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Stream stream_ = nullptr;
};

}  // namespace gpuhash
