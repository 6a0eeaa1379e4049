#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <gpuhash/error.hpp>
#include <gpuhash/handles.hpp>
#include <gpuhash/platform.hpp>
#include <gpuhash/registry.hpp>
#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"
#include "core/build_info.hpp"
#include "core/fault_injection.hpp"
#include "core/reservation.hpp"
#include "core/tuning.hpp"
#include "table/slot_types.hpp"

namespace py = pybind11;

namespace gpuhash::bindings {

namespace {

/// The exceptions of _core are shown as gpuhash's own, from where users import them.
template <class Exception>
void bind_exception(py::module_& module, const char* name) {
  py::register_local_exception<Exception>(module, name, PyExc_RuntimeError).attr("__module__") = "gpuhash";
}

void bind_exceptions(py::module_& module) {
  bind_exception<TableFullError>(module, "TableFullError");
  bind_exception<CudaError>(module, "CudaError");
  bind_exception<PlatformError>(module, "PlatformError");
  // ShapeError is a std::invalid_argument, which pybind11 makes a ValueError.
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const DTypeError& dtype_error) {
      py::set_error(PyExc_TypeError, dtype_error.what());
    } catch (const OutOfMemoryError& memory_error) {
      py::set_error(PyExc_MemoryError, memory_error.what());
    }
  });
}

std::map<std::string, std::string> build_information() {
  return {{"version", build_info::version},
          {"compiler", build_info::compiler},
          {"build_type", build_info::build_type},
          {"cuda_version", build_info::cuda_version},
          {"cuda_architectures", build_info::cuda_architectures}};
}

template <class Key>
std::vector<py::bytes> marks() {
  std::vector<py::bytes> patterns;
  for (const Key& key : {empty_key<Key>(), erased_key<Key>()}) {
    char bytes[sizeof(Key)];
    std::memcpy(bytes, &key, sizeof(Key));
    patterns.emplace_back(bytes, sizeof(Key));
  }
  return patterns;
}

/// Keys narrower than their slots are stored with zero bytes above and never meet a mark.
std::vector<py::bytes> stray_keys(std::size_t bytes_per_key) {
  std::vector<py::bytes> keys;
  any_slot_type([&]<class Slot>(Slot) {
    if (sizeof(typename Slot::Key) != bytes_per_key) return false;
    keys = marks<typename Slot::Key>();
    return true;
  });
  return keys;
}

Fault fault_of(const std::string& kind) {
  if (kind == "scratch") return Fault::kScratch;
  if (kind == "launch") return Fault::kLaunch;
  if (kind == "mapping") return Fault::kMapping;
  throw std::invalid_argument("there are no failures of kind '" + kind +
                              "'; expected 'scratch', 'launch' or 'mapping'");
}

/// A platform that this build lacks has no devices either, and its absence is the reason.
std::vector<std::string> platform_devices(const std::string& name) {
  try {
    return platform(name).devices();
  } catch (const PlatformError&) {
    return {};
  }
}

std::string platform_unavailable_reason(const std::string& name) {
  try {
    return platform(name).unavailable_reason();
  } catch (const PlatformError& error) {
    return error.what();
  }
}

/// Without the GIL throughout: a table that the registry drops may give memory back to a Python object.
void bind_registries(py::module_& module) {
  using unlocked = py::call_guard<GilRelease>;
  module.def("register_table", &registry::add, py::arg("name"), py::arg("table"), unlocked());
  module.def("find_table", &registry::find, py::arg("name"), unlocked());
  module.def("unregister_table", &registry::remove, py::arg("name"), py::arg("table"), unlocked());
  module.def("table_names", &registry::names, unlocked());
  module.def("handle_of", &handle_of, py::arg("table"), unlocked());
  module.def("own_handle_of", &own_handle_of, py::arg("table"), unlocked());
  module.def("handle_of_name", &handle_of_name, py::arg("name"), unlocked());
  module.def("table_of", &table_of, py::arg("handle"), unlocked());
  module.def("platform_names", &platform_names, unlocked());
  module.def("platform_devices", &platform_devices, py::arg("name"), unlocked());
  module.def("platform_unavailable_reason", &platform_unavailable_reason, py::arg("name"), unlocked());
}

}  // namespace

/// What _core has. PyInit__core() gives it to the main interpreter.
PYBIND11_MODULE(_core_of_main, module) {
  module.doc() = "Borrowed arrays, device contexts and tables with their dtypes erased.";
  bind_exceptions(module);
  bind_array(module);
  bind_arrow(module);
  bind_context(module);
  bind_buffer(module);
  bind_table(module);
  bind_fast_path(module);
  bind_factorization(module);
  bind_hashing(module);
  bind_pairing(module);
  bind_aggregation(module);
  bind_packed_keys(module);
  bind_splitter(module);
  bind_strings(module);
  bind_process(module);
  bind_tensor_store(module);
  bind_torch_state(module);
  bind_numpy_memory(module);
  bind_key_columns(module);
  bind_registries(module);
  module.def("build_info", &build_information);
  module.def("stray_keys", &stray_keys, py::arg("bytes_per_key"));
  module.def("thresholds", &thresholds);
  module.def("set_threshold", &set_threshold, py::arg("name"), py::arg("value"));
  module.def("launched_kernels", &launched_kernels);
  module.def("set_reservation_limit", &set_test_reservation_limit, py::arg("bytes"));
  module.def(
      "inject_failure", [](const std::string& kind, std::int64_t after) { return inject_fault(fault_of(kind), after); },
      py::arg("kind"), py::arg("after"));
}

/// Where Python begins. It refuses before anything of pybind11 runs, which takes the main interpreter's thread state,
/// and in a subinterpreter waits for the GIL that its own thread holds. What is kept for all calls, such as the
/// frameworks' functions, belongs to one interpreter anyway.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__core_of_main();
  PyErr_SetString(PyExc_ImportError,
                  "gpuhash works in the main interpreter of a process only, and this is a subinterpreter: import it in "
                  "the main one (under mod_wsgi: WSGIApplicationGroup %{GLOBAL}), or use processes");
  return nullptr;
}

}  // namespace gpuhash::bindings
