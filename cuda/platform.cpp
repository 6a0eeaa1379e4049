#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gpuhash/platform.hpp>
#include "core/fork_safe_mutex.hpp"
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/memory/memory_pool.hpp"
#include "cuda/messages.hpp"
#include "cuda/readback.hpp"
#include "cuda/stream.hpp"

namespace gpuhash::cuda {
namespace {

class CudaFence final : public Fence {
 public:
  explicit CudaFence(int device) : device_(device) {
    const DeviceGuard guard(device_);
    const BesideCaptures relaxed;
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating a CUDA event");
  }
  ~CudaFence() override {
    try {
      const DeviceGuard guard(device_);  // without a context, the runtime would make one on GPU 0
      const BesideCaptures relaxed;
      (void)cudaEventDestroy(event_);
    } catch (const std::exception&) {
      // At exit the driver may be gone before the last table.
    }
  }
  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;

  void record(Stream stream) override {
    const DeviceGuard guard(device_);
    check(cudaEventRecord(event_, handle(stream)), "recording a CUDA event");
  }
  void wait(Stream stream) override { wait_there(device_, stream); }
  void wait_on(const Device& device, Stream stream) override { wait_there(device.index, stream); }

 private:
  void wait_there(int device, Stream stream) const {
    const DeviceGuard guard(device);
    check(cudaStreamWaitEvent(handle(stream), event_, 0), "waiting for a CUDA event");
  }

  int device_;
  cudaEvent_t event_ = nullptr;
};

/// Mailboxes for all contexts of the process. What is there is kept until exit: to give pinned memory back waits for
/// the GPU, which a thread that captures its streams may not.
class Mailboxes {
 public:
  static Mailboxes& all() {
    static Mailboxes* const mailboxes = new Mailboxes;  // the last tables end at exit
    return *mailboxes;
  }

  /// It comes back when its last owner goes, who has waited for all that was to be written into it.
  std::shared_ptr<void> take(std::size_t bytes) {
    void* memory = nullptr;
    {
      const std::lock_guard lock(mutex_);
      std::vector<void*>& free = free_[bytes];
      if (!free.empty()) {
        memory = free.back();
        free.pop_back();
      } else {
        free.reserve(++made_[bytes]);  // give_back() must not have to allocate
        try {
          memory = make(bytes);
        } catch (...) {
          --made_[bytes];
          throw;
        }
      }
    }
    std::memset(memory, 0, bytes);
    return {memory, [this, bytes](void* used) { give_back(used, bytes); }};
  }

 private:
  static void* make(std::size_t bytes) {
    void* memory = nullptr;
    const BesideCaptures relaxed;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "allocating pinned host memory");
    return memory;
  }

  void give_back(void* memory, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    free_.find(bytes)->second.push_back(memory);
  }

  ForkSafeMutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;  // by their bytes
  std::map<std::size_t, std::size_t> made_;         // likewise, how many there are
};

class CudaContext final : public DeviceContext {
 public:
  CudaContext(int device, std::shared_ptr<MemoryResource> memory)
      : DeviceContext({"cuda", device}, std::move(memory)) {}
  ~CudaContext() override {
    const cudaStream_t stream = own_stream_.load();
    if (stream == nullptr) return;
    try {
      const DeviceGuard guard(device().index);
      const BesideCaptures relaxed;
      // The next stream may get its address, and some resources, PyTorch's for one, order blocks by it: what was given
      // back in this stream's order would be handed out while the work that uses it goes on.
      (void)cudaStreamSynchronize(stream);
      (void)cudaStreamDestroy(stream);
    } catch (const std::exception&) {
      // At exit the driver may be gone before the last context.
    }
  }

  bool is_host() const noexcept override { return false; }

  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    move(to, from, bytes, stream, "copying GPU memory");
  }
  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    move(to, from, bytes, stream, "copying host memory to the GPU");
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    constexpr auto kAction = "copying GPU memory to the host";
    if (bytes == 0 || read_back(*this, to, from, bytes, stream, kAction)) return;
    move(to, from, bytes, stream, kAction);
    synchronize(stream);
  }
  void fill(void* to, std::uint8_t byte, std::size_t bytes, Stream stream) override {
    const DeviceGuard guard(device().index);
    launch_may_fail("filling GPU memory");
    check(cudaMemsetAsync(to, byte, bytes, handle(stream)), "filling GPU memory");
  }
  void copy_from(void* to, DeviceContext& other, const void* from, std::size_t bytes, Stream stream) override {
    if (other.is_host()) return copy_from_host(to, from, bytes, stream);
    if (other.device() == device()) return copy(to, from, bytes, stream);
    if (bytes == 0) return;
    // Rows may lie in memory that the other GPU has no access to yet, and either may be the one that copies.
    if (auto* const pool = dynamic_cast<MemoryPool*>(&other.memory())) pool->let_in_to_reserved(device().index);
    if (auto* const pool = dynamic_cast<MemoryPool*>(&memory())) pool->let_in_to_reserved(other.device().index);
    const DeviceGuard guard(device().index);
    const cudaError_t status =
        cudaMemcpyPeerAsync(to, device().index, from, other.device().index, bytes, handle(stream));
    if (status == cudaSuccess) return;
    // Memory of a pool that the other device was given no access to, for instance: by way of the host.
    (void)cudaGetLastError();
    constexpr std::size_t kPiece = std::size_t{1} << 26;
    std::vector<std::byte> host(std::min(bytes, kPiece));
    for (std::size_t begin = 0; begin < bytes; begin += kPiece) {
      const std::size_t count = std::min(kPiece, bytes - begin);
      other.copy_to_host(host.data(), static_cast<const std::byte*>(from) + begin, count, other.own_stream());
      copy_from_host(static_cast<std::byte*>(to) + begin, host.data(), count, stream);
      synchronize(stream);
    }
  }
  bool reaches(DeviceContext& other) override {
    if (other.is_host()) return false;
    if (other.device() == device()) return true;
    auto* const pool = dynamic_cast<MemoryPool*>(&other.memory());
    return pool != nullptr && pool->let_in(device().index);
  }
  void synchronize(Stream stream) override {
    const DeviceGuard guard(device().index);
    const BesideCaptures relaxed;
    check(cudaStreamSynchronize(handle(stream)), "waiting for a CUDA stream");
  }
  /// Also while a thread captures a stream of another device.
  void synchronize_all() override {
    const DeviceGuard guard(device().index);
    const BesideCaptures relaxed;
    check(cudaDeviceSynchronize(), "waiting for the GPU");
  }
  std::unique_ptr<Fence> make_fence() override { return std::make_unique<CudaFence>(device().index); }
  std::uint64_t stream_id(Stream stream) override {
    // There is one legacy default stream on a device, and most callers have no other.
    if (stream == nullptr && legacy_id_.load(std::memory_order_relaxed) != kNoId) return legacy_id_;
    const DeviceGuard guard(device().index);
    unsigned long long id = 0;
    check(cudaStreamGetId(handle(stream), &id), "reading a CUDA stream's id");
    if (stream == nullptr) legacy_id_ = id;
    return id;
  }
  bool is_shared(Stream stream) const noexcept override { return handle(stream) != cudaStreamPerThread; }
  Stream own_stream() override {
    if (const cudaStream_t stream = own_stream_.load(std::memory_order_acquire)) return stream;
    const DeviceGuard guard(device().index);
    const BesideCaptures relaxed;
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "creating a CUDA stream");
    cudaStream_t first = nullptr;
    if (own_stream_.compare_exchange_strong(first, made, std::memory_order_acq_rel)) return made;
    (void)cudaStreamDestroy(made);  // another thread was faster
    return first;
  }
  bool is_capturing(Stream stream) override {
    const DeviceGuard guard(device().index);
    return cuda::is_capturing(stream);
  }
  std::unique_ptr<Readback> make_readback() override { return cuda::make_readback(*this); }
  std::shared_ptr<void> make_mailbox(std::size_t bytes) override {
    const DeviceGuard guard(device().index);
    return Mailboxes::all().take(bytes);
  }
  void advance(const ChainStep& step, Stream stream) override {
    const DeviceGuard guard(device().index);
    cuda::advance(step, stream);
  }
  const Executors& executors() const override {
    static const auto& all = *new Executors(Executors::of<CudaAlgorithms>());  // never destroyed, as these
    return all;
  }

 private:
  void move(void* to, const void* from, std::size_t bytes, Stream stream, const char* action) {
    if (bytes == 0) return;
    const DeviceGuard guard(device().index);
    launch_may_fail(action);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle(stream)), action);
  }

  static constexpr auto kNoId = ~std::uint64_t{0};

  std::atomic<cudaStream_t> own_stream_{nullptr};
  std::atomic<std::uint64_t> legacy_id_{kNoId};
};

class CudaPlatform final : public Platform {
 public:
  std::string name() const override { return "cuda"; }

  std::vector<std::string> devices() const override {
    std::vector<std::string> found;
    for (int device = 0; device < count().first; ++device) {
      cudaDeviceProp prop{};
      check(cudaGetDeviceProperties(&prop, device), "reading a GPU's properties");
      found.push_back(std::string(prop.name) + ", compute capability " + std::to_string(prop.major) + "." +
                      std::to_string(prop.minor) + ", " + std::to_string(prop.totalGlobalMem >> 20) + " MiB");
    }
    return found;
  }

  std::string unavailable_reason() const override {
    const auto [devices, status] = count();
    if (devices > 0) return "";
    if (status == cudaSuccess) return "the CUDA driver finds no GPU";
    return std::string("the CUDA driver cannot be used: ") + cudaGetErrorString(status);
  }

  std::shared_ptr<DeviceContext> make_context(int index, std::shared_ptr<MemoryResource> memory) override {
    const int devices = count().first;
    if (devices == 0) throw PlatformError("there is no device 'cuda' here: " + unavailable_reason());
    if (index < 0 || index >= devices)
      throw PlatformError("there is no device 'cuda:" + std::to_string(index) + "'; GPUs 0 to " +
                          std::to_string(devices - 1) + " are there");
    memory = memory == nullptr ? pool(index) : std::make_shared<CallersMemory>(index, std::move(memory));
    return std::make_shared<CudaContext>(index, std::move(memory));
  }

 private:
  static std::pair<int, cudaError_t> count() {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess) (void)cudaGetLastError();
    return {status == cudaSuccess ? devices : 0, status};
  }

  std::shared_ptr<MemoryResource> pool(int device) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<MemoryResource>& pool = pools_[device];
    if (pool == nullptr) pool = std::make_shared<MemoryPool>(device);
    return pool;
  }

  ForkSafeMutex mutex_;
  std::map<int, std::shared_ptr<MemoryResource>> pools_;  // one per GPU, kept until exit
};

const bool registered = (register_platform(std::make_unique<CudaPlatform>()), true);

}  // namespace
}  // namespace gpuhash::cuda
