#pragma once

#include <cstdint>
#include <span>

#include <pybind11/pybind11.h>

namespace gpuhash::bindings {

/// While it lives, a new NumPy array of this shape gets memory that is kept for the next ones when it is gone, if its
/// size is worth it. It owns it as others do theirs. NumPy gives memory of some MiB back to the system at times, and
/// gets it again page by page: of 2^17 distinct keys unique() with counts took half of its time for that.
class KeptNumPyMemory {
 public:
  KeptNumPyMemory(std::int64_t itemsize, std::span<const std::int64_t> shape);
  ~KeptNumPyMemory();
  KeptNumPyMemory(const KeptNumPyMemory&) = delete;
  KeptNumPyMemory& operator=(const KeptNumPyMemory&) = delete;

 private:
  pybind11::object before_;  // NumPy's handler of memory until now; null: it was left as it is
};

}  // namespace gpuhash::bindings
