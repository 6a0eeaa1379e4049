#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <gpuhash/call_chain.hpp>
#include <gpuhash/export.hpp>

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

/// Memory that grows where it lies: of the addresses that it has reserved, the first have memory behind them. It ends
/// at once, whatever streams there are: see wait().
class GPUHASH_API GrowingMemory {
 public:
  virtual ~GrowingMemory() = default;
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  void* data() const noexcept { return data_; }
  /// Those with memory behind them.
  std::size_t bytes() const noexcept { return bytes_; }
  /// All that are reserved.
  std::size_t room() const noexcept { return room_; }
  /// At least `bytes` <= room() have memory from now on, for work on any stream, under way or to come; what lies in
  /// those of before stays. Throws OutOfMemoryError, and is as before.
  virtual void grow(std::size_t bytes) = 0;
  /// Waits until work enqueued on `stream` is done, as it must be when the memory ends; false: nobody can tell.
  virtual bool wait(Stream stream) noexcept = 0;

 protected:
  GrowingMemory() = default;

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t room_ = 0;
};

/// Gives and takes memory in stream order: what it gives may be used by work enqueued on `stream` from now on, and what
/// it takes may still be in use by work enqueued on `stream` before.
class GPUHASH_API MemoryResource {
 public:
  virtual ~MemoryResource() = default;
  /// At least `bytes` > 0, aligned to 128 bytes (64 suffices on the host). Throws OutOfMemoryError.
  virtual void* allocate(std::size_t bytes, Stream stream) = 0;
  virtual void deallocate(void* data, std::size_t bytes, Stream stream) noexcept = 0;
  /// At least `bytes` > 0 that can become more; null, the default: the resource has no memory of that kind. Throws
  /// OutOfMemoryError.
  virtual std::unique_ptr<GrowingMemory> reserve([[maybe_unused]] std::size_t bytes) { return nullptr; }
};

/// A point in a stream's work that other streams can wait for.
class GPUHASH_API Fence {
 public:
  virtual ~Fence() = default;
  virtual void record(Stream stream) = 0;
  /// Work enqueued on `stream` from now on starts after the recorded point. The host does not wait.
  virtual void wait(Stream stream) = 0;
  /// Likewise, of a stream of another device: a null stream is that device's own.
  virtual void wait_on(const Device& device, Stream stream) = 0;
};

/// Carries a few bytes of device memory to the host, again and again, without a copy engine: a kernel writes them into
/// host memory that the host watches. For one thread at a time.
class GPUHASH_API Readback {
 public:
  static constexpr std::size_t kMostBytes = 248;

  virtual ~Readback() = default;
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;

  /// In stream order, after what was sent before: `bytes` <= kMostBytes, a multiple of 8, aligned to 8.
  virtual void send(const void* from, std::size_t bytes, Stream stream) = 0;
  /// What was sent last, or null: it is still on its way.
  virtual const void* arrived() const = 0;
  /// Waits for it. `stream` is that of send().
  virtual const void* wait(Stream stream) = 0;

 protected:
  Readback() = default;
};

struct Executors;

/// All that a table knows of its device. Injected into the table, never reached for.
class GPUHASH_API DeviceContext {
 public:
  DeviceContext(Device device, std::shared_ptr<MemoryResource> memory)
      : device_(std::move(device)), memory_(std::move(memory)) {}
  virtual ~DeviceContext() = default;

  const Device& device() const noexcept { return device_; }
  /// Is its memory the host's, and all work done when a call returns?
  virtual bool is_host() const noexcept = 0;
  MemoryResource& memory() const noexcept { return *memory_; }
  const std::shared_ptr<MemoryResource>& shared_memory() const noexcept { return memory_; }

  /// All in stream order; only copy_to_host waits, until its bytes have arrived.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void fill(void* to, std::uint8_t byte, std::size_t bytes, Stream stream) = 0;
  /// From another context's memory, whatever its device, which nobody writes any more. `stream` is this device's. May
  /// wait.
  virtual void copy_from(void* to, DeviceContext& other, const void* from, std::size_t bytes, Stream stream) = 0;
  /// Can work here read and write what the other context's memory resource gives? From then on it may.
  virtual bool reaches(DeviceContext& other) { return is_host() && other.is_host(); }
  virtual void synchronize(Stream stream) = 0;
  /// Waits for all work on the device, whatever the stream. Not while a stream is being captured into a CUDA graph.
  virtual void synchronize_all() = 0;

  virtual std::unique_ptr<Fence> make_fence() = 0;
  /// Two streams are the same one iff these are equal. A stream's address does not tell: that of the per-thread default
  /// stream means another one in each thread, and a new stream may get the address of one that was destroyed.
  virtual std::uint64_t stream_id(Stream stream) = 0;
  /// Does the address mean the same stream in every thread?
  virtual bool is_shared(Stream) const noexcept { return true; }
  /// A stream of the context's own, for work that no caller's stream is there for. It lives as long as the context.
  virtual Stream own_stream() = 0;
  /// Is the stream being captured into a CUDA graph? Then its work runs later, perhaps often, perhaps never.
  virtual bool is_capturing(Stream stream) = 0;

  /// Null on the host, which reads its memory as it is.
  virtual std::unique_ptr<Readback> make_readback() { return nullptr; }
  /// Zeroed host memory that the device can write while the host reads it. All such work is done when it goes back.
  virtual std::shared_ptr<void> make_mailbox(std::size_t bytes) = 0;
  /// In stream order: the next state of a chain of calls. Where the one that is taken is not its last, because another
  /// call took it before, the owner's number gets into the mailbox.
  virtual void advance(const ChainStep& step, Stream stream) = 0;

  /// The algorithms that run here.
  virtual const Executors& executors() const = 0;

 private:
  Device device_;
  std::shared_ptr<MemoryResource> memory_;
};

/// Memory from a context's resource, given back in the order of `stream`; that which can grow, when the host has waited
/// for the stream.
class GPUHASH_API Allocation {
 public:
  Allocation() = default;
  Allocation(DeviceContext& context, std::size_t bytes, Stream stream)
      : memory_(context.shared_memory()), bytes_(bytes), stream_(stream) {
    if (bytes != 0) data_ = memory_->allocate(bytes, stream);
  }
  /// Memory that can grow where it lies, if the context's resource has such; as the constructor otherwise.
  static Allocation growing(DeviceContext& context, std::size_t bytes, Stream stream);
  Allocation(Allocation&& other) noexcept { swap(other); }
  Allocation& operator=(Allocation&& other) noexcept {
    Allocation(std::move(other)).swap(*this);
    return *this;
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() {
    if (data_ == nullptr) return;
    if (lent_ != nullptr)
      give_back_lent(std::move(*this));
    else if (growing_ == nullptr)
      memory_->deallocate(data_, bytes_, stream_);
    else if (!growing_->wait(stream_))
      (void)growing_.release();  // at exit, when nobody gives anything back; or work may come that would find no memory
  }

  void* get() const noexcept { return data_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Can it have so many bytes where it lies?
  bool can_grow(std::size_t bytes) const noexcept { return growing_ != nullptr && bytes <= growing_->room(); }
  /// At least so many, if it can. Throws OutOfMemoryError, and is as before.
  void grow(std::size_t bytes) {
    growing_->grow(bytes);
    bytes_ = growing_->bytes();
  }
  /// The stream whose work used the memory last; it is given back in that stream's order.
  void set_stream(Stream stream) noexcept { stream_ = stream; }
  /// The memory is lent to others, who do not tell on which streams they use it: before it is given back, the host
  /// waits for all work on the device. To be called before others get hold of it.
  void lend(std::shared_ptr<DeviceContext> context) noexcept {
    if (!context->is_host()) lent_ = std::move(context);
  }

 private:
  /// Ends the life of lent memory once its readers are done, as far as anyone can tell; never throws.
  static void give_back_lent(Allocation lent) noexcept;

  void swap(Allocation& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(growing_, other.growing_);
    std::swap(lent_, other.lent_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
  }

  std::shared_ptr<MemoryResource> memory_;
  std::unique_ptr<GrowingMemory> growing_;  // null: it has its length for good
  std::shared_ptr<DeviceContext> lent_;     // null: it was never lent
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Stream stream_ = nullptr;
};

/// Kernels that this thread has launched so far, on any device. What fails before its first one has changed nothing.
GPUHASH_API std::uint64_t launched_kernels() noexcept;
GPUHASH_API void note_launched_kernel() noexcept;

/// Is a stream that the calling thread works on being captured into a CUDA graph? Asked before the host waits for a
/// whole device, which would end the capture. Null, the default: nobody knows.
using CaptureTest = bool (*)(DeviceContext& context);
GPUHASH_API void set_capture_test(CaptureTest test) noexcept;

/// Told of an exception that a call must not throw, because its work is done. Null, the default: it is told nobody.
using IgnoredErrorReport = void (*)(const char* while_doing, std::exception_ptr error);
GPUHASH_API void set_ignored_error_report(IgnoredErrorReport report) noexcept;
/// Of the exception that is being handled.
void report_ignored_error(const char* while_doing) noexcept;

}  // namespace gpuhash
