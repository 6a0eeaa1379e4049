#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <gpuhash/device_context.hpp>
#include <gpuhash/error.hpp>

namespace gpuhash::cuda {

/// Waits until a kernel enqueued on `stream` has written `number`, the last thing that it writes into memory of the
/// host. Most often it comes soon. Where the stream has a long way to it, or fails, waiting for the stream says so.
inline void wait_for_number(DeviceContext& context, std::uint64_t& written, std::uint64_t number, Stream stream,
                            const char* action) {
  const auto has_come = [&] { return std::atomic_ref(written).load(std::memory_order_acquire) == number; };
  constexpr auto kSoon = std::chrono::microseconds(500);
  const auto begin = std::chrono::steady_clock::now();
  while (!has_come() && std::chrono::steady_clock::now() - begin < kSoon) {
  }
  if (!has_come()) context.synchronize(stream);
  if (!has_come()) throw CudaError(std::string(action) + " failed: the GPU is done and has sent nothing");
}

}  // namespace gpuhash::cuda
