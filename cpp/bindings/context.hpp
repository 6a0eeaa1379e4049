#pragma once

#include <cstdint>
#include <memory>

#include <gpuhash/device_context.hpp>
#include "bindings/array.hpp"

namespace gpuhash::bindings {

using ContextPointer = std::shared_ptr<DeviceContext>;

/// The stream that Python names by its address. The host has none.
inline Stream to_stream(const DeviceContext& context, std::uintptr_t address) {
  return context.device().platform == "cpu" ? nullptr : reinterpret_cast<Stream>(address);
}

/// ValueError unless the array is dense memory of the context's device. `role` names it in the message.
void check_dense(const DeviceContext& context, const Array& array, const char* role);

}  // namespace gpuhash::bindings
