#include "bindings/array.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "bindings/bindings.hpp"
#include "core/fork_safe_mutex.hpp"

namespace gpuhash::bindings {

namespace {

constexpr const char* kExchangeAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kExchangeCapsule = "dlpack_exchange_api";

// How to borrow, by type --------------------------------------------------------------------------------------------

enum class Source { kExchange, kNumpy, kDlpack, kNone };

struct TypeInfo {
  Source source = Source::kNone;
  const DLPackExchangeAPI* exchange = nullptr;
  bool has_autograd = false;      // tensors of the type have requires_grad, is_conj() and is_neg()
  bool immutable = false;         // the framework counts on nobody writing, whatever its capsules say
  bool aborts = false;            // TensorFlow ends the process when asked to lend strings and the like
  const char* refusal = nullptr;  // why tensors of the type cannot be borrowed
};

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

std::string module_of(py::handle type) {
  const py::object module = py::getattr(type, "__module__", py::none());
  return py::isinstance<py::str>(module) ? module.cast<std::string>() : std::string();
}

/// Is the type a subtype of module.name? False where the module has not been imported: then there are no such objects.
bool is_subtype(py::handle type, const char* module, const char* name) {
  const py::dict modules = py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict());
  if (!modules.contains(module)) return false;
  const py::object base = py::getattr(modules[module], name, py::none());
  if (!PyType_Check(base.ptr())) return false;
  return PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), reinterpret_cast<PyTypeObject*>(base.ptr())) !=
         0;
}

TypeInfo examine_type(py::handle type) {
  TypeInfo info;
  const std::string module = module_of(type);
  info.has_autograd = py::hasattr(type, "requires_grad") && py::hasattr(type, "is_conj") && py::hasattr(type, "is_neg");
  info.immutable = starts_with(module, "jax") || starts_with(module, "tensorflow");
  info.aborts = starts_with(module, "tensorflow");
  if (is_subtype(type, "torch._subclasses.fake_tensor", "FakeTensor")) {
    info.refusal =
        "a fake tensor, which has no data: in a model for torch.export, put the table into a "
        "gpuhash.torch.TableModule, "
        "or export with strict=True; otherwise call gpuhash outside of FakeTensorMode";
  } else if (is_subtype(type, "jax.core", "Tracer")) {
    info.refusal = "a value that JAX is tracing, which has no data: call gpuhash outside jit, grad and vmap";
  } else if (is_subtype(type, "numpy.ma", "MaskedArray")) {
    info.refusal = "a masked array, whose mask would be ignored: call .filled() or .compressed()";
  }
  if (info.refusal != nullptr) return info;

  if (const DLPackExchangeAPI* exchange = find_exchange(type); exchange != nullptr) {
    info.source = Source::kExchange;
    info.exchange = exchange;
  } else if (is_subtype(type, "numpy", "ndarray")) {
    info.source = Source::kNumpy;
  } else if (py::hasattr(type, "__dlpack__") && py::hasattr(type, "__dlpack_device__")) {
    info.source = Source::kDlpack;
  }
  return info;
}

/// Types that were seen stay alive for ever, so that an address keeps its meaning; hence the limit.
constexpr std::size_t kCachedTypes = 1024;

TypeInfo info_of(py::handle tensor) {
  static auto& mutex = *new ForkSafeMutex;  // a leaf: nothing waits for the GIL under it
  static auto& cache = *new std::unordered_map<PyTypeObject*, TypeInfo>;
  PyTypeObject* type = Py_TYPE(tensor.ptr());
  {
    const std::lock_guard lock(mutex);
    if (const auto entry = cache.find(type); entry != cache.end()) return entry->second;
  }
  const TypeInfo info = examine_type(reinterpret_cast<PyObject*>(type));
  const std::lock_guard lock(mutex);
  // A type that is not borrowable may become so when a module is imported; such calls fail and need not be fast.
  if (info.source != Source::kNone && cache.size() < kCachedTypes && cache.emplace(type, info).second) Py_INCREF(type);
  return info;
}

std::string type_name(py::handle tensor) {
  const py::handle type(reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())));
  const std::string module = module_of(type);
  const std::string name = py::str(py::getattr(type, "__qualname__", py::str("?")));
  return module.empty() || module == "builtins" ? name : module + "." + name;
}

/// TypeError with the error under way as its cause, of which the first line is shown; but no memory stays no memory.
[[noreturn]] void refuse(py::error_already_set& error, py::handle tensor) {
  if (error.matches(PyExc_MemoryError) || !error.matches(PyExc_Exception)) throw error;
  const std::string text = py::str(error.value());
  py::raise_from(error, PyExc_TypeError,
                 ("cannot borrow this " + type_name(tensor) + ": " + text.substr(0, text.find('\n'))).c_str());
  throw py::error_already_set();
}

[[noreturn]] void refuse_dtype(const std::string& given, const std::string& advice = "") {
  throw py::type_error(
      "arrays of dtype " + given + " are not taken" + (advice.empty() ? "" : ": " + advice) +
      "; expected bool, an integer of 8 to 64 bits, float16, bfloat16, float32, float64, complex64 or " + "complex128");
}

/// What to do with a NumPy array of a kind that holds no numbers.
const char* advice_on(char kind) {
  switch (kind) {
    case 'O':
      return "convert it, as with .astype(\"int64\")";
    case 'M':
    case 'm':
      return "give the times as integers, as with .view(\"int64\")";
    case 'S':
    case 'T':
    case 'U':
      return "number the strings first, as pandas.factorize does";
    default:
      return "";
  }
}

// Dtypes --------------------------------------------------------------------------------------------------------------

std::optional<DType> dtype_of(char kind, std::size_t bytes) {
  const auto pick = [&](std::initializer_list<std::pair<std::size_t, DType>> widths) -> std::optional<DType> {
    for (const auto& [width, dtype] : widths)
      if (width == bytes) return dtype;
    return std::nullopt;
  };
  switch (kind) {
    case 'b':
      return pick({{1, DType::kBool}});
    case 'i':
      return pick({{1, DType::kInt8}, {2, DType::kInt16}, {4, DType::kInt32}, {8, DType::kInt64}});
    case 'u':
      return pick({{1, DType::kUInt8}, {2, DType::kUInt16}, {4, DType::kUInt32}, {8, DType::kUInt64}});
    case 'f':
      return pick({{2, DType::kFloat16}, {4, DType::kFloat32}, {8, DType::kFloat64}});
    case 'c':
      return pick({{8, DType::kComplex64}, {16, DType::kComplex128}});
    case 'B':
      return pick({{2, DType::kBFloat16}});
    default:
      return std::nullopt;
  }
}

bool knows_dtype(const std::string& dtype_name) {
  for (int number = 0; number < kDTypeCount; ++number)
    if (name(static_cast<DType>(number)) == dtype_name) return true;
  return false;
}

DType from_dlpack(const DLDataType& type, py::handle owner) {
  const auto kind = [&]() -> char {
    switch (type.code) {
      case kDLBool:
        return 'b';
      case kDLInt:
        return 'i';
      case kDLUInt:
        return 'u';
      case kDLFloat:
        return 'f';
      case kDLBfloat:
        return 'B';
      case kDLComplex:
        return 'c';
      default:
        return '?';
    }
  }();
  const std::optional<DType> dtype =
      type.lanes == 1 && type.bits % 8 == 0 ? dtype_of(kind, type.bits / 8) : std::nullopt;
  if (!dtype) {
    const py::object name = py::getattr(owner, "dtype", py::none());
    refuse_dtype(name.is_none() ? "DLPack code " + std::to_string(type.code) + " with " + std::to_string(type.bits) +
                                      " bits and " + std::to_string(type.lanes) + " lanes"
                                : py::str(name).cast<std::string>());
  }
  return *dtype;
}

bool is_aligned(const void* data, DType dtype) { return reinterpret_cast<std::uintptr_t>(data) % itemsize(dtype) == 0; }

// The three sources ---------------------------------------------------------------------------------------------------

Array from_dltensor(const DLTensor& tensor, py::handle owner) {
  Array array;
  array.dtype = from_dlpack(tensor.dtype, owner);
  array.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  switch (tensor.device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      array.device = {"cpu", 0};
      break;
    case kDLCUDA:
    case kDLCUDAManaged:
      array.device = {"cuda", tensor.device.device_id};
      break;
    default:
      throw py::type_error("this " + type_name(owner) + " lies on a device of DLPack type " +
                           std::to_string(static_cast<int>(tensor.device.device_type)) +
                           "; expected host or CUDA memory: copy it there");
  }
  if (tensor.data != nullptr) array.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  if (array.data == nullptr && array.elements() != 0)
    throw py::type_error("this " + type_name(owner) +
                         " has no memory of its own (fake, functional or freed): call gpuhash with the real tensor");
  array.contiguous = (tensor.strides == nullptr || is_contiguous(array.shape, tensor.strides, 1)) &&
                     is_aligned(array.data, array.dtype);
  return array;
}

/// A managed tensor's memory; gives it back with the GIL held, because Array is destroyed with it.
template <class Managed>
std::shared_ptr<Managed> adopt(Managed* managed) {
  return {managed, [](Managed* lent) {
            if (lent->deleter == nullptr) return;
            const py::error_scope preserved;
            lent->deleter(lent);
          }};
}

Array from_managed(DLManagedTensorVersioned* managed, py::handle owner) {
  std::shared_ptr<DLManagedTensorVersioned> memory = adopt(managed);
  if (managed->version.major != DLPACK_MAJOR_VERSION)
    throw py::type_error("this " + type_name(owner) + " lends its memory by DLPack " +
                         std::to_string(managed->version.major) + ", expected version " +
                         std::to_string(DLPACK_MAJOR_VERSION));
  Array array = from_dltensor(managed->dl_tensor, owner);
  array.readonly = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
  array.memory = std::move(memory);
  return array;
}

Array from_managed(DLManagedTensor* managed, py::handle owner) {
  std::shared_ptr<DLManagedTensor> memory = adopt(managed);
  Array array = from_dltensor(managed->dl_tensor, owner);
  array.memory = std::move(memory);
  return array;
}

/// What torch's exchange functions leave unchecked.
void check_autograd(py::handle tensor, DType dtype) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  static PyObject* const is_conj = PyUnicode_InternFromString("is_conj");
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  if (py::getattr(tensor, requires_grad).ptr() == Py_True)
    throw py::type_error("the tensor requires grad, and a table does not pass gradients on: call .detach()");
  const auto ask = [&](PyObject* method) {
    const auto answer = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(tensor.ptr(), method));
    if (!answer) throw py::error_already_set();
    return answer.ptr() == Py_True;
  };
  if (is_complex(dtype) && ask(is_conj))
    throw py::type_error("the tensor is a conjugated view, whose memory holds other numbers: call .resolve_conj()");
  if (ask(is_neg))
    throw py::type_error("the tensor is a negated view, whose memory holds other numbers: call .resolve_neg()");
}

/// TypeError for tensors that PyTorch is transforming: they look like others until they are asked for their memory.
void check_transforms(py::handle tensor) {
  const py::dict modules = py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict());
  if (!modules.contains("torch._C")) return;
  const py::object functorch = py::getattr(modules["torch._C"], "_functorch", py::none());
  const py::object is_wrapped = py::getattr(functorch, "is_functorch_wrapped_tensor", py::none());
  if (!is_wrapped.is_none() && py::bool_(is_wrapped(tensor)))
    throw py::type_error(
        "the tensor is one that torch.func (vmap, grad, jvp, functionalize or their like) is transforming, and has no "
        "memory that a table could read: call gpuhash outside of the transformed function. Instead of vmap, give all "
        "keys at once: a batch of keys may have any number of dimensions");
}

Array from_exchange(const TypeInfo& info, const py::object& tensor) {
  try {
    if (info.exchange->dltensor_from_py_object_no_sync != nullptr) {
      DLTensor lent{};
      if (info.exchange->dltensor_from_py_object_no_sync(tensor.ptr(), &lent) != 0) throw py::error_already_set();
      Array array = from_dltensor(lent, tensor);
      if (info.has_autograd) check_autograd(tensor, array.dtype);
      array.tensor = tensor;
      return array;
    }
    DLManagedTensorVersioned* managed = nullptr;
    if (info.exchange->managed_tensor_from_py_object_no_sync(tensor.ptr(), &managed) != 0)
      throw py::error_already_set();
    Array array = from_managed(managed, tensor);
    if (info.has_autograd) check_autograd(tensor, array.dtype);
    return array;
  } catch (py::error_already_set& error) {
    if (info.has_autograd && error.matches(PyExc_Exception) && !error.matches(PyExc_MemoryError))
      check_transforms(tensor);
    refuse(error, tensor);
  } catch (const py::type_error&) {
    if (info.has_autograd) check_transforms(tensor);
    throw;
  }
}

Array from_numpy(const py::object& tensor) {
  // NumPy's first number of dtypes that other packages have added, such as ml_dtypes.
  constexpr int kFirstForeignNumber = 256;
  const auto ndarray = py::reinterpret_borrow<py::array>(tensor);
  const py::dtype type = ndarray.dtype();
  std::optional<DType> dtype;
  if (type.num() >= kFirstForeignNumber) {
    if (py::str(type.attr("name")).cast<std::string>() == "bfloat16") dtype = DType::kBFloat16;
  } else if (type.num() >= 0) {
    dtype = dtype_of(type.kind(), static_cast<std::size_t>(type.itemsize()));
  }
  if (!dtype) refuse_dtype(py::str(type), advice_on(type.kind()));
  if (type.byteorder() == '>') refuse_dtype(py::str(type), "convert it by .astype(dtype.newbyteorder(\"=\"))");

  Array array;
  array.dtype = *dtype;
  array.shape.assign(ndarray.shape(), ndarray.shape() + ndarray.ndim());
  array.device = {"cpu", 0};
  array.data = const_cast<void*>(ndarray.data());
  array.readonly = !ndarray.writeable();
  array.contiguous = is_contiguous(array.shape, ndarray.strides(), static_cast<std::int64_t>(itemsize(*dtype))) &&
                     is_aligned(array.data, *dtype);
  array.tensor = tensor;
  return array;
}

py::object call_dlpack(const py::object& tensor, bool on_device, const py::object& stream) {
  py::dict arguments;
  if (on_device) {
    // DLPack keeps 0 ambiguous: the legacy default stream is called 1.
    arguments["stream"] = !stream.is_none() && stream.cast<std::int64_t>() == 0 ? py::int_(1) : stream;
  }
  const py::object method = tensor.attr("__dlpack__");
  try {
    return method(**arguments, py::arg("max_version") = py::make_tuple(DLPACK_MAJOR_VERSION, 1));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // a producer from before versions does not know the argument
  }
  return method(**arguments);
}

Array from_capsule(const TypeInfo& info, const py::object& tensor, const py::object& stream) {
  try {
    if (info.aborts) {
      const auto dtype_name = tensor.attr("dtype").attr("name").cast<std::string>();
      if (!knows_dtype(dtype_name)) refuse_dtype(dtype_name);
    }
    const auto device_type = tensor.attr("__dlpack_device__")().cast<py::tuple>()[0].cast<int>();
    const bool on_device = device_type == kDLCUDA || device_type == kDLCUDAManaged;
    const py::object capsule = call_dlpack(tensor, on_device, stream);
    const auto take = [&]<class Managed>(Managed*, const char* name, const char* used_name) {
      auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
      if (managed == nullptr || PyCapsule_SetName(capsule.ptr(), used_name) != 0) throw py::error_already_set();
      return from_managed(managed, tensor);
    };
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned"))
      return take(static_cast<DLManagedTensorVersioned*>(nullptr), "dltensor_versioned", "used_dltensor_versioned");
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor"))
      return take(static_cast<DLManagedTensor*>(nullptr), "dltensor", "used_dltensor");
    throw py::type_error("__dlpack__ of " + type_name(tensor) + " gave no DLPack capsule");
  } catch (py::error_already_set& error) {
    refuse(error, tensor);
  }
}

std::optional<std::uintptr_t> current_stream(const py::object& tensor) {
  const TypeInfo info = info_of(tensor);
  if (info.source != Source::kExchange) return std::nullopt;
  const Array array = from_exchange(info, tensor);
  if (array.device.platform != "cuda") return std::nullopt;
  void* stream = nullptr;
  if (info.exchange->current_work_stream(kDLCUDA, array.device.index, &stream) != 0) throw py::error_already_set();
  return reinterpret_cast<std::uintptr_t>(stream);
}

Array part(const Array& array, std::int64_t begin, std::int64_t end) {
  if (!array.contiguous) throw std::invalid_argument("the array is not contiguous");
  if (array.shape.empty() || begin < 0 || begin > end || end > array.shape.front())
    throw std::invalid_argument("rows [" + std::to_string(begin) + ", " + std::to_string(end) +
                                ") were asked for, of which the array has not all");
  Array rows = array;
  rows.shape.front() = 1;
  rows.data = static_cast<std::byte*>(array.data) + begin * rows.bytes();
  rows.shape.front() = end - begin;
  return rows;
}

Array reshape(const Array& array, std::vector<std::int64_t> shape) {
  if (!array.contiguous) throw std::invalid_argument("the array is not contiguous");
  Array same = array;
  same.shape = std::move(shape);
  if (same.elements() != array.elements())
    throw std::invalid_argument("a shape of " + std::to_string(same.elements()) + " elements was given for " +
                                std::to_string(array.elements()));
  return same;
}

}  // namespace

const DLPackExchangeAPI* find_exchange(py::handle type) {
  const py::object capsule = py::getattr(type, kExchangeAttribute, py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kExchangeCapsule)) return nullptr;
  auto* header = static_cast<DLPackExchangeAPIHeader*>(PyCapsule_GetPointer(capsule.ptr(), kExchangeCapsule));
  while (header != nullptr && header->version.major != DLPACK_MAJOR_VERSION) header = header->prev_api;
  return reinterpret_cast<const DLPackExchangeAPI*>(header);
}

std::int64_t Array::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t length : shape) count *= length;
  return count;
}

DLDataType to_dlpack(DType dtype) {
  const auto code = [&] {
    if (dtype == DType::kBool) return kDLBool;
    if (dtype == DType::kBFloat16) return kDLBfloat;
    if (is_complex(dtype)) return kDLComplex;
    if (!is_integer(dtype)) return kDLFloat;
    return name(dtype).front() == 'u' ? kDLUInt : kDLInt;
  }();
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * itemsize(dtype)), 1};
}

DLDevice to_dlpack(const Device& device) {
  return device.platform == "cuda" ? DLDevice{kDLCUDA, device.index} : DLDevice{kDLCPU, 0};
}

py::tuple to_tuple(const std::vector<std::int64_t>& shape) {
  py::tuple lengths(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) lengths[axis] = py::int_(shape[axis]);
  return lengths;
}

Array borrow(const py::object& tensor, const py::object& stream) {
  const TypeInfo info = info_of(tensor);
  Array array = [&] {
    switch (info.source) {
      case Source::kExchange:
        return from_exchange(info, tensor);
      case Source::kNumpy:
        return from_numpy(tensor);
      case Source::kDlpack:
        return from_capsule(info, tensor, stream);
      case Source::kNone:
        break;
    }
    if (info.refusal != nullptr) throw py::type_error("cannot borrow " + std::string(info.refusal));
    throw py::type_error(type_name(tensor) + " is no tensor; expected a NumPy array or an object with __dlpack__");
  }();
  array.readonly = array.readonly || info.immutable;
  return array;
}

void bind_array(py::module_& module) {
  py::class_<Array>(module, "Array", py::is_final(), "A tensor of any framework, borrowed without a copy.")
      .def_property_readonly("dtype", [](const Array& array) { return name(array.dtype); })
      .def_property_readonly("shape", [](const Array& array) { return to_tuple(array.shape); })
      .def_property_readonly("platform", [](const Array& array) { return array.device.platform; })
      .def_property_readonly("device_index", [](const Array& array) { return array.device.index; })
      .def_property_readonly("data", [](const Array& array) { return reinterpret_cast<std::uintptr_t>(array.data); })
      .def_readonly("contiguous", &Array::contiguous)
      .def_readonly("readonly", &Array::readonly)
      .def(
          "overlaps",
          [](const Array& array, const Array& other) {
            return array.device == other.device && overlap(array.range(), other.range());
          },
          py::arg("other"))
      .def("part", &part, py::arg("begin"), py::arg("end"))
      .def("reshape", &reshape, py::arg("shape"));
  module.def("borrow", &borrow, py::arg("tensor"), py::arg("stream") = py::none());
  module.def("current_stream", &current_stream, py::arg("tensor"));
}

}  // namespace gpuhash::bindings
