#pragma once

#include <pybind11/pybind11.h>

namespace gpuhash::bindings {

namespace py = pybind11;

/// No Python code can run any more: the interpreter is being torn down, or is gone before the statics of libgpuhash.
inline bool is_python_gone() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

/// Deletes what holds Python objects, on any thread, with the GIL or without it. Once the interpreter is gone it does
/// nothing, as nobody is left to give them back to.
struct DeleteWithGil {
  template <class Held>
  void operator()(Held* held) const noexcept {
    if (is_python_gone()) return;
    const py::gil_scoped_acquire locked;
    const py::error_scope preserved;  // an exception may be under way in the caller
    delete held;
  }
};

}  // namespace gpuhash::bindings
