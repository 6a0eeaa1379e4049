#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include <gpuhash/device_context.hpp>
#include <gpuhash/error.hpp>
#include "core/fault_injection.hpp"

namespace gpuhash::cuda {

/// Throws CudaError naming the action, OutOfMemoryError where memory ran out.
inline void check(cudaError_t status, const char* action) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // an error that is reported here must not surface again in an unrelated call
  const std::string text =
      std::string(action) + " failed: " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")";
  if (status == cudaErrorMemoryAllocation) throw OutOfMemoryError(text);
  throw CudaError(text);
}

/// Before work is enqueued: that may fail, if a test wants it so, and then nothing runs.
inline void launch_may_fail(const char* action) {
  if (fails_here(Fault::kLaunch)) check(cudaErrorLaunchOutOfResources, action);
}

/// After the launch of a kernel. Whatever the reason, it did not run: a CudaError, as an OutOfMemoryError would say
/// that nothing has changed, and kernels before it may have done their part.
inline void check_launch(const char* action) {
  try {
    check(cudaGetLastError(), action);
  } catch (const OutOfMemoryError& error) {
    throw CudaError(error.what());
  }
  note_launched_kernel();
}

/// Of a process; more are refused.
inline constexpr int kMaxDevices = 256;

/// Makes a device current for a scope.
///
/// By the driver's stack of contexts: cudaSetDevice() would make a context on the device that was current before, some
/// hundred MiB of its memory, if only to go back to it.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  bool pushed_ = false;
};

/// For a scope: threads that capture their streams, this one among them, do not keep it from what changes none of them.
class BesideCaptures {
 public:
  BesideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then that of before
};

}  // namespace gpuhash::cuda
