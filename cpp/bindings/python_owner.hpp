#pragma once

#include "bindings/gil.hpp"

namespace gpuhash::bindings {

/// Deletes what holds Python objects, on any thread, with the GIL or without it. Once the interpreter is gone it does
/// nothing, as nobody is left to give them back to.
struct DeleteWithGil {
  template <class Held>
  void operator()(Held* held) const noexcept {
    if (is_python_gone()) return;
    const GilAcquire locked;
    const py::error_scope preserved;  // an exception may be under way in the caller
    delete held;
  }
};

}  // namespace gpuhash::bindings
