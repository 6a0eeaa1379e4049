#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "array.hpp"
#include "context.hpp"
#include "device_context.hpp"

namespace gpuhash::bindings {

/// A C-contiguous array on a context's device. The memory lives until the last that was lent it is gone.
struct Buffer {
  ContextPointer context;
  std::shared_ptr<void> memory;  // the first element
  DType dtype;
  std::vector<std::int64_t> shape;
  Stream stream;  // whose work fills the memory
  bool readonly = false;

  void* data() const { return memory.get(); }
};

/// The allocation's memory by its first element.
inline std::shared_ptr<void> data_of(std::shared_ptr<Allocation> allocation) {
  void* const data = allocation == nullptr ? nullptr : allocation->get();
  return {std::move(allocation), data};
}

}  // namespace gpuhash::bindings
