#pragma once

#include <cstdint>

#include <pybind11/pybind11.h>

namespace gpuhash::bindings {

/// While it lives, new NumPy arrays of this thread get memory that is kept for the next ones when they are gone, if
/// `bytes` is worth it. They own it as others do theirs. NumPy gives memory of some MiB back to the system each time,
/// and gets it again page by page: of 2^20 distinct keys unique() with counts took half of its time for that.
class KeptNumPyMemory {
 public:
  explicit KeptNumPyMemory(std::int64_t bytes);
  ~KeptNumPyMemory();
  KeptNumPyMemory(const KeptNumPyMemory&) = delete;
  KeptNumPyMemory& operator=(const KeptNumPyMemory&) = delete;

 private:
  pybind11::object before_;  // NumPy's handler of memory until now; null: it was left as it is
};

}  // namespace gpuhash::bindings
