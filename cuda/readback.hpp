#pragma once

#include <cstddef>
#include <memory>

#include <gpuhash/device_context.hpp>

namespace gpuhash::cuda {

/// For a context of a GPU, which has to outlive it. Makes pinned memory for many of them when the first is made.
std::unique_ptr<Readback> make_readback(DeviceContext& context);

/// Copies so few bytes to the host that a Readback carries them, and waits: sooner than a copy by the driver. False: it
/// cannot carry these, or not now, and nothing is done.
bool read_back(DeviceContext& context, void* to, const void* from, std::size_t bytes, Stream stream,
               const char* action);

}  // namespace gpuhash::cuda
