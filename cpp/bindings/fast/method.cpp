#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "bindings/bindings.hpp"
#include "bindings/fast/path.hpp"
#include "bindings/gil.hpp"

/// The decorator fast_path: a method that tries its object's FastPath first, and calls the Python function that it
/// decorates where that declines. A callable of its own in C, because a Python function in front would cost as much as
/// looking up 16 keys.
namespace gpuhash::bindings {

namespace {

constexpr std::size_t kMaxParameters = 4;

/// The parameters are those of the Python method after self; where there are fewer, the rest is null. Optional ones
/// have the default None.
struct Operation {
  std::string_view name;
  py::object (FastPath::*serve)(FastPath::Arguments);
  std::size_t required;
  std::array<const char*, kMaxParameters> parameters;
};

constexpr std::array<Operation, 17> kOperations = {{
    {"getitem", &FastPath::getitem, 1, {"keys"}},
    {"get", &FastPath::get, 1, {"keys", "default", "out"}},
    {"find", &FastPath::find, 1, {"keys", "default", "out"}},
    {"contains", &FastPath::contains, 1, {"keys", "out"}},
    {"contains_one", &FastPath::contains_one, 1, {"key"}},
    {"rows", &FastPath::rows, 1, {"keys", "out"}},
    {"setitem", &FastPath::setitem, 2, {"keys", "values"}},
    {"insert", &FastPath::insert, 2, {"keys", "values", "out"}},
    {"insert_or_assign", &FastPath::insert_or_assign, 2, {"keys", "values", "out"}},
    {"insert_or_apply", &FastPath::insert_or_apply, 3, {"keys", "values", "op", "out"}},
    {"find_or_insert", &FastPath::find_or_insert, 1, {"keys", "values", "out"}},
    {"add", &FastPath::add, 1, {"keys", "out"}},
    {"erase", &FastPath::erase, 1, {"keys", "out"}},
    {"erase_present", &FastPath::erase_present, 1, {"keys"}},
    {"discard", &FastPath::discard, 1, {"keys"}},
    {"pop", &FastPath::pop, 1, {"keys", "default", "out"}},
    {"setdefault", &FastPath::setdefault, 1, {"keys", "default", "out"}},
}};

struct FastMethod {
  PyObject_HEAD vectorcallfunc call;
  PyObject* function;  // the general path
  PyObject* attributes;
  const Operation* operation;
  std::array<PyObject*, kMaxParameters> names;  // interned, as keywords in calls are
};

FastMethod* as_method(PyObject* object) { return reinterpret_cast<FastMethod*>(object); }

/// The arguments in the order of the parameters; false where they do not fit, which Python explains.
bool arrange(const FastMethod& method, PyObject* const* arguments, std::size_t count, PyObject* keywords,
             std::array<PyObject*, kMaxParameters>& out) {
  if (count > kMaxParameters) return false;
  std::array<PyObject*, kMaxParameters> given{};
  for (std::size_t i = 0; i < count; ++i) given[i] = arguments[i];
  const Py_ssize_t keyword_count = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t k = 0; k < keyword_count; ++k) {
    std::size_t i = 0;
    while (i < kMaxParameters && method.names[i] != PyTuple_GET_ITEM(keywords, k)) ++i;
    if (i == kMaxParameters || given[i] != nullptr) return false;
    given[i] = arguments[count + static_cast<std::size_t>(k)];
  }
  for (std::size_t i = 0; i < kMaxParameters; ++i) {
    if (given[i] != nullptr && method.names[i] == nullptr) return false;
    if (given[i] == nullptr && i < method.operation->required) return false;
    out[i] = given[i] == nullptr ? Py_None : given[i];
  }
  return true;
}

/// Null without an error: declined.
PyObject* serve(const FastMethod& method, PyObject* self, FastPath::Arguments arguments) {
  static PyObject* const name = PyUnicode_InternFromString("_fast");
  try {
    const auto path = py::reinterpret_steal<py::object>(PyObject_GetAttr(self, name));
    if (!path) {
      PyErr_Clear();  // not a table, or not made to the end
      return nullptr;
    }
    py::detail::make_caster<FastPath> caster;
    if (!caster.load(path, false)) return nullptr;
    return (static_cast<FastPath&>(caster).*method.operation->serve)(arguments).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
#if defined(__GLIBCXX__)
  } catch (abi::__forced_unwind&) {  // Python ends the thread
    stay_for_ever();
#endif
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

PyObject* call(PyObject* callable, PyObject* const* arguments, std::size_t flags, PyObject* keywords) {
  const FastMethod& method = *as_method(callable);
  const auto count = static_cast<std::size_t>(PyVectorcall_NARGS(flags));
  std::array<PyObject*, kMaxParameters> arranged;
  if (count > 0 && arrange(method, arguments + 1, count - 1, keywords, arranged)) {
    PyObject* const answer = serve(method, arguments[0], arranged.data());
    if (answer != nullptr || PyErr_Occurred() != nullptr) return answer;
  }
  return PyObject_Vectorcall(method.function, arguments, flags, keywords);
}

// The Python type -----------------------------------------------------------------------------------------------------

PyObject* bind(PyObject* method, PyObject* object, PyObject*) {
  if (object == nullptr || object == Py_None) return Py_NewRef(method);
  return PyMethod_New(method, object);
}

PyObject* repr(PyObject* method) { return PyObject_Repr(as_method(method)->function); }

/// As for a function, its qualified name: pickle finds it again by that.
PyObject* reduce(PyObject* method, PyObject*) {
  return PyObject_GetAttrString(as_method(method)->function, "__qualname__");
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(as_method(object)->function);
  Py_VISIT(as_method(object)->attributes);
  return 0;
}

int clear(PyObject* object) {
  Py_CLEAR(as_method(object)->attributes);
  return 0;  // not the function: a call may still come
}

void destroy(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  FastMethod* const method = as_method(object);
  Py_CLEAR(method->function);
  for (PyObject*& name : method->names) Py_CLEAR(name);
  type->tp_free(object);
  Py_DECREF(type);
}

PyTypeObject* make_type() {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(FastMethod, call), READONLY, nullptr},
                                  {"__dictoffset__", T_PYSSIZET, offsetof(FastMethod, attributes), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef attributes[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                                     {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyMethodDef methods[] = {{"__reduce__", &reduce, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
                                {Py_tp_descr_get, reinterpret_cast<void*>(&bind)},
                                {Py_tp_repr, reinterpret_cast<void*>(&repr)},
                                {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
                                {Py_tp_members, members},
                                {Py_tp_getset, attributes},
                                {Py_tp_methods, methods},
                                {0, nullptr}};
  static PyType_Spec spec = {"gpuhash._core.FastMethod", sizeof(FastMethod), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                 Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION |
                                 Py_TPFLAGS_IMMUTABLETYPE,
                             slots};
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  return reinterpret_cast<PyTypeObject*>(type);
}

PyTypeObject* method_type() {
  static PyTypeObject* const type = make_type();
  return type;
}

/// Puts Python functions into the type's dict as `__get__` and `__call__`. Dynamo, which asks the dict, traces those;
/// Python takes the slots, and is none the slower.
void set_traced(const py::object& get, const py::object& call) {
  PyTypeObject* const type = method_type();
#if PY_VERSION_HEX >= 0x030C0000
  const auto dict = py::reinterpret_steal<py::object>(PyType_GetDict(type));
#else
  const auto dict = py::reinterpret_borrow<py::object>(type->tp_dict);
#endif
  if (PyDict_SetItemString(dict.ptr(), "__get__", get.ptr()) != 0 ||
      PyDict_SetItemString(dict.ptr(), "__call__", call.ptr()) != 0)
    throw py::error_already_set();
  PyType_Modified(type);
}

py::object make_method(const Operation& operation, const py::object& function) {
  PyTypeObject* const type = method_type();
  auto made = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));  // zeroed
  if (!made) throw py::error_already_set();
  FastMethod& method = *as_method(made.ptr());
  method.call = &call;
  method.function = function.inc_ref().ptr();
  method.operation = &operation;
  for (std::size_t i = 0; i < kMaxParameters && operation.parameters[i] != nullptr; ++i)
    method.names[i] = PyUnicode_InternFromString(operation.parameters[i]);
  py::module_::import("functools").attr("update_wrapper")(made, function);
  return made;
}

py::object decorator(const std::string& name) {
  for (const Operation& operation : kOperations)
    if (name == operation.name)
      return py::cpp_function([&operation](const py::object& function) { return make_method(operation, function); });
  throw std::invalid_argument("there is no fast path for \"" + name + "\"");
}

// Subscripts ----------------------------------------------------------------------------------------------------------

PyObject* getitem_method = nullptr;
PyObject* setitem_method = nullptr;
PyObject* delitem_method = nullptr;
PyObject* contains_method = nullptr;

PyObject* subscript(PyObject* table, PyObject* keys) {
  PyObject* const arguments[] = {table, keys};
  return call(getitem_method, arguments, 2, nullptr);
}

int assign_subscript(PyObject* table, PyObject* keys, PyObject* values) {
  PyObject* const arguments[] = {table, keys, values};
  PyObject* const done =
      values == nullptr ? call(delitem_method, arguments, 2, nullptr) : call(setitem_method, arguments, 3, nullptr);
  if (done == nullptr) return -1;
  Py_DECREF(done);
  return 0;
}

int contains_one(PyObject* table, PyObject* key) {
  PyObject* const arguments[] = {table, key};
  PyObject* const is_there = call(contains_method, arguments, 2, nullptr);
  if (is_there == nullptr) return -1;
  const int answer = PyObject_IsTrue(is_there);
  Py_DECREF(is_there);
  return answer;
}

/// A new reference, never given back, to a method of the class that has a fast path.
PyObject* fast_method_of(const py::type& table_class, const char* name) {
  PyObject* const method = py::object(table_class.attr(name)).release().ptr();
  if (Py_TYPE(method) != method_type())
    throw std::invalid_argument(std::string(name) + " is to be a method with a fast path");
  return method;
}

/// Has table[keys], table[keys] = values and del table[keys] of a class call its methods `_getitem`, `_setitem` and
/// `_erase_present`, which have a fast path, without the Python functions `__getitem__`, `__setitem__` and
/// `__delitem__`, which have to be there for Dynamo. Derived classes go through the functions.
void set_subscripts(const py::type& table_class) {
  auto* const type = reinterpret_cast<PyTypeObject*>(table_class.ptr());
  getitem_method = fast_method_of(table_class, "_getitem");
  setitem_method = fast_method_of(table_class, "_setitem");
  delitem_method = fast_method_of(table_class, "_erase_present");
  type->tp_as_mapping->mp_subscript = &subscript;
  type->tp_as_mapping->mp_ass_subscript = &assign_subscript;
}

/// Likewise `key in table` and `_contains_one`, of one class or several that share the method.
void set_membership(const py::type& table_class) {
  contains_method = fast_method_of(table_class, "_contains_one");
  reinterpret_cast<PyTypeObject*>(table_class.ptr())->tp_as_sequence->sq_contains = &contains_one;
}

}  // namespace

void bind_fast_path(py::module_& module) {
  py::class_<FastPath, std::shared_ptr<FastPath>>(module, "FastPath", py::is_final(),
                                                  "What serves a table's calls on plain arrays.")
      .def(py::init<std::shared_ptr<Table>, std::vector<std::int64_t>>(), py::arg("table"), py::arg("key_shape"))
      .def("set_fallback", &FastPath::set_fallback, py::arg("fallback"))
      .def("set_views", &FastPath::set_views, py::arg("views"))
      .def_property_readonly("changes", &FastPath::changes);
  module.def("fast_path", &decorator, py::arg("operation"));
  module.def("set_subscripts", &set_subscripts, py::arg("table_class"));
  module.def("set_membership", &set_membership, py::arg("table_class"));
  module.def("set_traced", &set_traced, py::arg("get"), py::arg("call"));
  module.def("use_framework", &use_framework, py::arg("name"), py::arg("module"));
}

}  // namespace gpuhash::bindings
