#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda_check.hpp"
#include "cuda_executor.hpp"
#include "platform.hpp"

namespace gpuhash::cuda {
namespace {

cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream); }

/// A stream-ordered pool of our own, which keeps what it once got from the driver: allocation then costs no
/// synchronisation. Not the device's default pool, whose settings belong to the application.
class CudaPool final : public MemoryResource {
 public:
  explicit CudaPool(int device) : device_(device) {
    const DeviceGuard guard(device_);
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device_;
    check(cudaMemPoolCreate(&pool_, &props), "creating a CUDA memory pool");
    std::uint64_t keep = ~std::uint64_t{0};
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep), "configuring a CUDA memory pool");
  }

  void* allocate(std::size_t bytes, Stream stream) override {
    const DeviceGuard guard(device_);
    void* data = nullptr;
    cudaError_t status = cudaMallocFromPoolAsync(&data, bytes, pool_, handle(stream));
    if (status == cudaErrorMemoryAllocation && !capturing(stream)) {
      // What the pool keeps for other streams may be free by now, and others may need what it keeps unused.
      (void)cudaGetLastError();
      check(cudaDeviceSynchronize(), "waiting for the GPU");
      check(cudaMemPoolTrimTo(pool_, 0), "trimming the CUDA memory pool");
      status = cudaMallocFromPoolAsync(&data, bytes, pool_, handle(stream));
    }
    check(status, ("allocating " + std::to_string(bytes) + " bytes of GPU memory").c_str());
    return data;
  }

  void deallocate(void* data, std::size_t, Stream stream) noexcept override {
    // At exit the driver may be gone before the last table; its memory went with it.
    if (cudaFreeAsync(data, handle(stream)) == cudaSuccess) return;
    (void)cudaGetLastError();
    // The stream is no more: wait for all streams instead.
    if (cudaDeviceSynchronize() == cudaSuccess) (void)cudaFreeAsync(data, nullptr);
    (void)cudaGetLastError();
  }

 private:
  static bool capturing(Stream stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(handle(stream), &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
  }

  int device_;
  cudaMemPool_t pool_ = nullptr;
};

class CudaFence final : public Fence {
 public:
  explicit CudaFence(int device) : device_(device) {
    const DeviceGuard guard(device_);
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating a CUDA event");
  }
  ~CudaFence() override { (void)cudaEventDestroy(event_); }
  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;

  void record(Stream stream) override {
    const DeviceGuard guard(device_);
    check(cudaEventRecord(event_, handle(stream)), "recording a CUDA event");
  }
  void wait(Stream stream) override {
    const DeviceGuard guard(device_);
    check(cudaStreamWaitEvent(handle(stream), event_, 0), "waiting for a CUDA event");
  }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
};

class CudaContext final : public DeviceContext {
 public:
  CudaContext(int device, std::shared_ptr<MemoryResource> memory)
      : DeviceContext({"cuda", device}, std::move(memory)) {}

  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    move(to, from, bytes, stream, "copying GPU memory");
  }
  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    move(to, from, bytes, stream, "copying host memory to the GPU");
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    move(to, from, bytes, stream, "copying GPU memory to the host");
    synchronize(stream);
  }
  void fill(void* to, std::uint8_t byte, std::size_t bytes, Stream stream) override {
    const DeviceGuard guard(device().index);
    launch_may_fail("filling GPU memory");
    check(cudaMemsetAsync(to, byte, bytes, handle(stream)), "filling GPU memory");
  }
  void synchronize(Stream stream) override {
    const DeviceGuard guard(device().index);
    check(cudaStreamSynchronize(handle(stream)), "waiting for a CUDA stream");
  }
  std::unique_ptr<Fence> make_fence() override { return std::make_unique<CudaFence>(device().index); }
  bool is_capturing(Stream stream) override {
    const DeviceGuard guard(device().index);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(handle(stream), &status) != cudaSuccess) {
      (void)cudaGetLastError();  // the legacy stream cannot be asked while another stream is captured
      return false;
    }
    return status != cudaStreamCaptureStatusNone;
  }
  const Executors& executors() const override { return cuda_executors(); }

 private:
  void move(void* to, const void* from, std::size_t bytes, Stream stream, const char* action) {
    if (bytes == 0) return;
    const DeviceGuard guard(device().index);
    launch_may_fail(action);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle(stream)), action);
  }
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
    if (memory == nullptr) memory = pool(index);
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
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<MemoryResource>& pool = pools_[device];
    if (pool == nullptr) pool = std::make_shared<CudaPool>(device);
    return pool;
  }

  std::mutex mutex_;
  std::map<int, std::shared_ptr<MemoryResource>> pools_;  // one per GPU, kept until exit
};

const bool registered = (register_platform(std::make_unique<CudaPlatform>()), true);

}  // namespace
}  // namespace gpuhash::cuda
