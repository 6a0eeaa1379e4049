#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gpuhash/device_context.hpp>
#include "bindings/array.hpp"
#include "bindings/context.hpp"

namespace gpuhash::bindings {

/// An array on a context's device, C-contiguous unless it has strides. The memory lives until the last that was lent it
/// is gone; where it is ours, it is given back only once the device has done all work, as nobody tells which streams
/// have read it.
struct Buffer {
  ContextPointer context;
  std::shared_ptr<void> memory;  // the first element
  DType dtype;
  std::vector<std::int64_t> shape;
  Stream stream;  // whose work fills the memory
  bool readonly = false;
  Allocation* allocation = nullptr;        // of `memory`, where that is the buffer's own
  std::vector<std::int64_t> strides = {};  // in elements; empty: C-contiguous

  void* data() const { return memory.get(); }
};

/// The allocation's memory by its first element. To be lent: Allocation::lend() first.
inline std::shared_ptr<void> data_of(std::shared_ptr<Allocation> allocation) {
  void* const data = allocation == nullptr ? nullptr : allocation->get();
  return {std::move(allocation), data};
}

}  // namespace gpuhash::bindings
