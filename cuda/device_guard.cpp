#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "cuda/check.hpp"
#include "cuda/driver.hpp"

namespace gpuhash::cuda {
namespace {

struct Driver {
  decltype(&cuCtxGetCurrent) get_current = nullptr;
  decltype(&cuCtxPushCurrent) push = nullptr;
  decltype(&cuCtxPopCurrent) pop = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain_primary = nullptr;
  decltype(&cuDeviceGet) device_get = nullptr;
};

const Driver& driver() {
  static const Driver functions = [] {
    Driver found;
    look_up("cuCtxGetCurrent", found.get_current);
    look_up("cuCtxPushCurrent", found.push);
    look_up("cuCtxPopCurrent", found.pop);
    look_up("cuDevicePrimaryCtxRetain", found.retain_primary);
    look_up("cuDeviceGet", found.device_get);
    return found;
  }();
  return functions;
}

/// The context that the runtime, and with it every framework, uses on the device. Made on first use, and kept.
CUcontext primary_context(int device) {
  static std::array<std::atomic<CUcontext>, kMaxDevices> known{};
  if (device < 0 || device >= kMaxDevices)
    throw PlatformError("there is no device 'cuda:" + std::to_string(device) + "'");
  auto& slot = known[static_cast<std::size_t>(device)];
  if (const CUcontext context = slot.load(std::memory_order_acquire); context != nullptr) return context;
  CUdevice number = 0;
  CUcontext context = nullptr;
  check_driver(driver().device_get(&number, device), "choosing the CUDA device");
  check_driver(driver().retain_primary(&context, number), "making a CUDA context");
  slot.store(context, std::memory_order_release);
  return context;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  const CUcontext wanted = primary_context(device);
  CUcontext current = nullptr;
  check_driver(driver().get_current(&current), "reading the current CUDA context");
  if (current == wanted) return;
  check_driver(driver().push(wanted), "choosing the CUDA device");
  pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  CUcontext popped = nullptr;
  if (pushed_) (void)driver().pop(&popped);
}

}  // namespace gpuhash::cuda
