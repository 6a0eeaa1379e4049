#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "array.hpp"
#include "context.hpp"
#include "device_context.hpp"

namespace gpuhash::bindings {

/// An array in a context's memory, C-contiguous. The memory lives until the last that was lent it is gone.
struct Buffer {
  ContextPointer context;
  std::shared_ptr<Allocation> memory;
  DType dtype;
  std::vector<std::int64_t> shape;
  Stream stream;  // whose work fills the memory

  void* data() const { return memory == nullptr ? nullptr : memory->get(); }
};

}  // namespace gpuhash::bindings
