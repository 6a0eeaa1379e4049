// What the CUDA programs of the benchmarks share: errors, memory, and times between two events. Not part of gpuhash.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace device {

inline void check(cudaError_t code, const char* action) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(action) + ": " + cudaGetErrorString(code));
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t count) {
    check(cudaMalloc(&data_, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

class Stopwatch {
 public:
  Stopwatch() {
    check(cudaEventCreate(&start_), "cudaEventCreate");
    check(cudaEventCreate(&stop_), "cudaEventCreate");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }

  /// Seconds on the device of what run() enqueues on the stream. Waits.
  template <class Run>
  double seconds(cudaStream_t stream, Run run) {
    check(cudaEventRecord(start_, stream), "cudaEventRecord");
    run();
    check(cudaGetLastError(), "launching what is timed");
    check(cudaEventRecord(stop_, stream), "cudaEventRecord");
    check(cudaEventSynchronize(stop_), "running what is timed");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

}  // namespace device
