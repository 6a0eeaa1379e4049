#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <exception>  // for __GLIBCXX__, too
#include <thread>

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

/// Python's global lock, for threads that may outlive the interpreter.
///
/// A daemon thread may be in a call when the program ends. Once the interpreter is torn down, no other thread gets the
/// lock any more. CPython 3.14 lets such a thread wait for ever; earlier versions end it by pthread_exit(), which
/// unwinds its stack: over frames of C++ that let no exception through, which aborts the process, and past destructors
/// that want the lock. So a thread of ours that cannot have the lock stays where it is, until the process ends.
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

[[noreturn]] inline void stay_for_ever() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(24));
}

/// Runs what may take the lock, or run Python code, which gives the lock away and takes it again. The unwinding of a
/// thread that Python ends comes no further than this: glibc's shows itself as an exception, and others do not unwind.
template <class Work>
auto or_stay(Work work) {
#if defined(__GLIBCXX__)
  try {
    return work();
  } catch (abi::__forced_unwind&) {
    stay_for_ever();
  }
#else
  return work();
#endif
}

/// Without the lock as long as it lives; made with it.
class GilRelease {
 public:
  GilRelease() : by_last_thread_(is_python_gone()), state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    // The one thread that has the lock while the interpreter is torn down gets it back. Of others the state may be
    // gone.
    if (!by_last_thread_ && is_python_gone()) stay_for_ever();
    or_stay([this] { PyEval_RestoreThread(state_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  bool by_last_thread_;
  PyThreadState* state_;
};

/// With the lock as long as it lives, on any thread, with it before or not. Where is_python_gone(), only threads that
/// Python knows may make one.
class GilAcquire {
 public:
  GilAcquire() : state_(or_stay([] { return PyGILState_Ensure(); })) {}
  ~GilAcquire() { PyGILState_Release(state_); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

/// Gives up a reference, with the lock, where no unwinding may come through: the object's end may run Python code.
inline void drop(py::object& object) noexcept {
  or_stay([held = object.release().ptr()] { Py_XDECREF(held); });
}

/// Calls a Python object from inside of the core, whose frames no unwinding may reach. Null where it has raised.
inline py::object call_from_core(const py::object& callable, const py::tuple& arguments) {
  return py::reinterpret_steal<py::object>(
      or_stay([&] { return PyObject_CallObject(callable.ptr(), arguments.ptr()); }));
}

}  // namespace gpuhash::bindings
