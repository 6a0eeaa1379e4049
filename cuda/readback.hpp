#pragma once

#include <memory>

#include <gpuhash/device_context.hpp>

namespace gpuhash::cuda {

/// For a context of a GPU, which has to outlive it. Makes pinned memory for many of them when the first is made.
std::unique_ptr<Readback> make_readback(DeviceContext& context);

}  // namespace gpuhash::cuda
