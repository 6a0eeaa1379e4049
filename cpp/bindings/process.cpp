#include <pybind11/pybind11.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include <gpuhash/device_context.hpp>
#include "bindings/bindings.hpp"
#include "bindings/fast/plain_tensor.hpp"
#include "bindings/python_owner.hpp"
#include "core/float_mode.hpp"
#include "core/fork_safe_mutex.hpp"
#include "core/interruption.hpp"
#include "core/thread_pool.hpp"

/// What the library asks of the process that it is in: has somebody pressed Ctrl-C, is it about to fork, who is to hear
/// of an error that a call must not throw.
namespace gpuhash::bindings {

namespace {

/// Python's main thread, the only one that hears of signals.
unsigned long main_thread = 0;

void find_main_thread() {
  main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
}

/// Does Python's own handler, which raises KeyboardInterrupt, wait to be run? It is not run here, with a table locked;
/// Python runs it once the call has returned. A handler of the program's own may want the operation to go on.
bool is_interrupted() {
  if (is_python_gone() || PyThread_get_thread_ident() != main_thread) return false;
  const GilAcquire locked;
  const py::error_scope preserved;
  if (PyOS_InterruptOccurred() == 0) return false;
  bool ends = false;
  try {
    // The module in C: Python code would run the handler.
    const py::module_ signal = py::module_::import("_signal");
    ends = signal.attr("getsignal")(SIGINT).is(signal.attr("default_int_handler"));
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("asking for the handler of SIGINT");
  }
  PyErr_SetInterrupt();  // asking has made Python forget
  return ends;
}

void report_ignored(const char* while_doing, std::exception_ptr reason) {
  if (is_python_gone()) return;
  const GilAcquire locked;
  const py::error_scope preserved;
  try {
    std::rethrow_exception(std::move(reason));
  } catch (py::error_already_set& error) {
    or_stay([&] { error.discard_as_unraisable(while_doing); });
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    const py::str what(while_doing);
    or_stay([&] { PyErr_WriteUnraisable(what.ptr()); });
  }
}

bool is_capturing_here(DeviceContext& context) {
  if (is_python_gone()) return false;
  const GilAcquire locked;
  const py::error_scope preserved;
  return or_stay([&] { return is_any_stream_capturing(context); });
}

/// Waits until no thread is inside of a call, without the GIL, which such a thread may want.
void before_fork() {
  announce_fork();
  while (!try_before_fork()) {
    const GilRelease unlocked;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void after_fork_in_child() {
  after_fork();
  main_thread = PyThread_get_thread_ident();
}

void set_num_threads(int threads) {
  if (threads < 1)
    throw std::invalid_argument("set_num_threads(" + std::to_string(threads) + "): expected a positive number");
  set_thread_count(threads);
}

}  // namespace

void bind_process(py::module_& module) {
  find_main_thread();
  set_interruption_test(&is_interrupted);
  set_ignored_error_report(&report_ignored);
  set_capture_test(&is_capturing_here);
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const Interrupted&) {
      if (PyErr_CheckSignals() == 0) PyErr_SetNone(PyExc_KeyboardInterrupt);
    }
  });
  py::module_::import("os").attr("register_at_fork")(
      py::arg("before") = py::cpp_function(&before_fork), py::arg("after_in_parent") = py::cpp_function(&after_fork),
      py::arg("after_in_child") = py::cpp_function(&after_fork_in_child));
  module.def("set_num_threads", &set_num_threads, py::arg("threads"));
  module.def("get_num_threads", &thread_count);
  module.def("set_default_float_mode", &set_default_float_mode);
  module.def("restore_float_mode", &restore_float_mode, py::arg("mode"));
}

}  // namespace gpuhash::bindings
