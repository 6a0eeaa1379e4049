#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include <gpuhash/device_context.hpp>

namespace gpuhash::cuda {

inline cudaStream_t handle(Stream stream) { return static_cast<cudaStream_t>(stream); }

inline bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(handle(stream), &status) != cudaSuccess) {
    (void)cudaGetLastError();  // the legacy stream cannot be asked while another stream is captured
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

/// Memory for `count` items of T, given back in stream order.
template <class T>
Allocation scratch(DeviceContext& context, std::int64_t count, Stream stream) {
  return Allocation(context, static_cast<std::size_t>(count) * sizeof(T), stream);
}

}  // namespace gpuhash::cuda
