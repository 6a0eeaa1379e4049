#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include <gpuhash/handles.hpp>
#include <gpuhash/table.hpp>
#include "bindings/bindings.hpp"

/// The getters of properties that PyTorch's compiled functions read at each call, in C since Dynamo then takes what
/// they give as it is, and does not trace how it is made.
namespace gpuhash::bindings {

namespace py = pybind11;

namespace {

py::handle interned(const char* text) {
  PyObject* const made = PyUnicode_InternFromString(text);
  if (made == nullptr) throw py::error_already_set();
  return made;
}

py::object maker(const char* name) { return py::module_::import("gpuhash.torch.state").attr(name); }

/// The table's state tensor, made at first use; None where there are no ops.
py::object torch_state(const py::object& table) {
  static const py::handle state_name = interned("_state");
  static const py::handle address_name = interned("_state_address");
  static const py::handle core_name = interned("_core");
  py::object state = table.attr(state_name);
  if (state.is_none()) {
    state = maker("state_of")(table);
    if (state.is_none()) state = py::bool_(false);
    if (!PyBool_Check(state.ptr())) table.attr(address_name) = state.attr("data_ptr")();
    table.attr(state_name) = state;
  }
  if (PyBool_Check(state.ptr())) return py::none();
  // The handle of a name means this table only as long as it has the name.
  const auto address = table.attr(address_name).cast<std::uintptr_t>();
  if (table_of(*reinterpret_cast<const std::int64_t*>(address)) != table.attr(core_name).cast<std::shared_ptr<Table>>())
    maker("renew")(table, state);
  return state;
}

/// Are the ops there?
bool torch_ops(const py::object&) {
  static bool there = false;
  if (!there) there = maker("load_ops")().cast<bool>();
  return there;
}

/// The table's default as a tensor, or of each column as one by its name, made at first use; None where it has none.
py::object torch_default(const py::object& table) {
  static const py::handle fallback_name = interned("_fallback");
  static const py::handle columns_name = interned("_column_defaults");
  static const py::handle default_name = interned("_default_tensor");
  if (py::object(table.attr(fallback_name)).is_none() && py::object(table.attr(columns_name)).is_none())
    return py::none();
  py::object made = table.attr(default_name);
  if (made.is_none()) {
    made = maker("default_of")(table);
    table.attr(default_name) = made;
  }
  return made;
}

}  // namespace

void bind_torch_state(py::module_& module) {
  module.def("torch_state", &torch_state, py::arg("table"));
  module.def("torch_ops", &torch_ops, py::arg("_"));
  module.def("torch_default", &torch_default, py::arg("table"));
}

}  // namespace gpuhash::bindings
