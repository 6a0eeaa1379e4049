#include "bindings/fast/plain_tensor.hpp"

#include <pybind11/numpy.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <new>
#include <utility>

#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/fast/python_numbers.hpp"
#include "bindings/numpy_memory.hpp"

namespace gpuhash::bindings {

namespace {

/// Clears the error under way, as the general path will meet it again and explain it.
void leave_to_general_path() {
  if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();
  PyErr_Clear();
}

/// A new reference; null without an error.
py::object attribute(PyObject* object, const py::str& name) {
  auto value = py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name.ptr()));
  if (!value) leave_to_general_path();
  return value;
}

/// The last arguments are those that `names`, a tuple or null, names.
py::object call(const py::object& function, std::initializer_list<PyObject*> arguments, py::handle names = {}) {
  const std::size_t named = names ? static_cast<std::size_t>(PyTuple_GET_SIZE(names.ptr())) : 0;
  auto result = py::reinterpret_steal<py::object>(
      PyObject_Vectorcall(function.ptr(), arguments.begin(), arguments.size() - named, names.ptr()));
  if (!result) leave_to_general_path();
  return result;
}

py::str interned(const char* text) {
  auto name = py::reinterpret_steal<py::str>(PyUnicode_InternFromString(text));
  if (!name) throw py::error_already_set();
  return name;
}

bool is_aligned(const void* data, DType dtype) { return reinterpret_cast<std::uintptr_t>(data) % itemsize(dtype) == 0; }

template <class Integer>
bool copy_shape(const Integer* shape, std::int64_t ndim, PlainTensor& out) {
  if (ndim > static_cast<std::int64_t>(PlainTensor::kMaxDims)) return false;
  out.ndim = static_cast<std::size_t>(ndim);
  for (std::size_t axis = 0; axis < out.ndim; ++axis) out.lengths[axis] = shape[axis];
  return true;
}

bool is_on_host(const Device& device) { return device.platform == "cpu"; }

/// NumPy's own dtype objects, of which there is one each; null for bfloat16, which NumPy lacks.
class NumPyDTypes {
 public:
  NumPyDTypes() {
    for (int number = 0; number < kDTypeCount; ++number) {
      const auto dtype = static_cast<DType>(number);
      if (dtype != DType::kBFloat16) dtypes_[static_cast<std::size_t>(number)] = py::dtype(std::string(name(dtype)));
    }
  }
  const py::object& operator[](DType dtype) const { return dtypes_[static_cast<std::size_t>(dtype)]; }

 private:
  std::array<py::object, kDTypeCount> dtypes_;
};

// NumPy ---------------------------------------------------------------------------------------------------------------

class NumPy final : public PlainFramework {
 public:
  bool read(PyObject* tensor, DType dtype, const Device& device, Access access, PlainTensor& out) const override {
    const auto array = py::reinterpret_borrow<py::array>(tensor);
    if (!is_on_host(device) || array.dtype().ptr() != dtypes_[dtype].ptr()) return false;
    if ((array.flags() & py::array::c_style) == 0 || (access == Access::kWrite && !array.writeable())) return false;
    out.data = const_cast<void*>(array.data());
    return is_aligned(out.data, dtype) && copy_shape(array.shape(), array.ndim(), out);
  }

  py::object make(PyObject*, DType dtype, Lengths shape, const Device&, PlainTensor& out) const override {
    const py::object& type = dtypes_[dtype];
    if (!type) return {};
    // Directly, as the constructors of py::array compute strides in a vector first, which takes 0.03 us.
    const auto& numpy = py::detail::npy_api::get();
    std::array<Py_intptr_t, PlainTensor::kMaxDims> lengths;
    std::ranges::copy(shape, lengths.begin());
    const KeptNumPyMemory kept(static_cast<std::int64_t>(itemsize(dtype)), shape);
    auto array = py::reinterpret_steal<py::object>(
        numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, type.inc_ref().ptr(), static_cast<int>(shape.size()),
                                    lengths.data(), nullptr, nullptr, 0, nullptr));
    if (!array) {
      leave_to_general_path();
      return {};
    }
    out.data = py::detail::array_proxy(array.ptr())->data;
    return array;
  }

  bool current_stream(const Device&, Stream& stream) const override {
    stream = nullptr;
    return true;
  }

 private:
  NumPyDTypes dtypes_;
};

// PyTorch -------------------------------------------------------------------------------------------------------------

/// Host memory with the description of the tensor in it, in one block; freed by whoever it is lent to.
struct LentBlock {
  DLManagedTensorVersioned managed{};
  std::array<std::int64_t, PlainTensor::kMaxDims> shape;
  std::array<std::int64_t, PlainTensor::kMaxDims> strides;

  /// Null where there is no memory. malloc() and not aligned_alloc(), which takes 0.1 us longer for small blocks.
  static LentBlock* make(DType dtype, DLDataType lent_dtype, Lengths shape) {
    constexpr std::uintptr_t kAlignment = 64;  // of torch's own tensors
    auto bytes = static_cast<std::int64_t>(itemsize(dtype));
    for (const std::int64_t length : shape)
      if (__builtin_mul_overflow(bytes, length, &bytes)) return nullptr;
    if (__builtin_add_overflow(bytes, sizeof(LentBlock) + kAlignment, &bytes)) return nullptr;
    void* const memory = std::malloc(static_cast<std::size_t>(bytes));
    if (memory == nullptr) return nullptr;
    auto* const block = new (memory) LentBlock;
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      block->shape[axis] = shape[axis];
      block->strides[axis] = stride;
      stride *= shape[axis];
    }
    block->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    block->managed.manager_ctx = block;
    block->managed.deleter = [](DLManagedTensorVersioned* managed) { std::free(managed->manager_ctx); };
    DLTensor& tensor = block->managed.dl_tensor;
    tensor.data = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(block + 1) + kAlignment - 1) / kAlignment *
                                          kAlignment);
    tensor.device = {kDLCPU, 0};
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    tensor.dtype = lent_dtype;
    tensor.shape = block->shape.data();
    tensor.strides = block->strides.data();
    return block;
  }
};

/// Through the functions that torch.Tensor offers in C. They skip the checks that `__dlpack__` makes: those are made
/// here.
class Torch final : public PlainFramework {
 public:
  Torch(const DLPackExchangeAPI* exchange, const py::object& torch)
      : exchange_(exchange),
        empty_(torch.attr("empty")),
        empty_like_(torch.attr("empty_like")),
        increment_version_(torch.attr("autograd").attr("graph").attr("increment_version")) {
    const py::object tensor = torch.attr("Tensor");
    is_conj_ = tensor.attr("is_conj");
    is_neg_ = tensor.attr("is_neg");
    for (int number = 0; number < kDTypeCount; ++number) {
      const auto dtype = static_cast<DType>(number);
      lent_dtypes_[static_cast<std::size_t>(number)] = to_dlpack(dtype);
      dtypes_[static_cast<std::size_t>(number)] =
          py::getattr(torch, std::string(name(dtype)).c_str(), py::none());  // old ones lack unsigned integers
    }
  }

  bool read(PyObject* tensor, DType dtype, const Device& device, Access, PlainTensor& out) const override {
    if (!read_memory(tensor, dtype, device, out)) return false;
    if (!is_integer(dtype) && dtype != DType::kBool && !is(Py_False, attribute(tensor, requires_grad_))) return false;
    if (is_complex(dtype) && !is(Py_False, call(is_conj_, {tensor}))) return false;
    return is(Py_False, call(is_neg_, {tensor}));
  }

  py::object make(PyObject* like, DType dtype, Lengths shape, const Device& device, PlainTensor& out) const override {
    py::object tensor = is_on_host(device) ? make_on_host(dtype, shape, out) : make_on_gpu(like, dtype, shape);
    if (!tensor || is_on_host(device)) return tensor;
    return read_memory(tensor.ptr(), dtype, device, out) ? tensor : py::object();
  }

  /// Whoever has saved a tensor for a backward pass finds it changed.
  void note_write(PyObject* written) const override {
    if (PyObject* const none = PyObject_CallOneArg(increment_version_.ptr(), written); none != nullptr)
      Py_DECREF(none);
    else
      throw py::error_already_set();
  }

  bool current_stream(const Device& device, Stream& stream) const override {
    stream = nullptr;
    if (is_on_host(device) || exchange_->current_work_stream(kDLCUDA, device.index, &stream) == 0) return true;
    leave_to_general_path();
    return false;
  }

 private:
  static bool is(PyObject* expected, const py::object& given) { return given.ptr() == expected; }

  bool read_memory(PyObject* tensor, DType dtype, const Device& device, PlainTensor& out) const {
    DLTensor lent{};
    if (exchange_->dltensor_from_py_object_no_sync(tensor, &lent) != 0) {
      leave_to_general_path();
      return false;
    }
    const DLDataType& expected = lent_dtypes_[static_cast<std::size_t>(dtype)];
    if (lent.dtype.code != expected.code || lent.dtype.bits != expected.bits || lent.dtype.lanes != 1) return false;
    const bool here = is_on_host(device) ? lent.device.device_type == kDLCPU || lent.device.device_type == kDLCUDAHost
                                         : lent.device.device_type == kDLCUDA && lent.device.device_id == device.index;
    if (!here || lent.data == nullptr || !copy_shape(lent.shape, lent.ndim, out)) return false;
    out.data = static_cast<char*>(lent.data) + lent.byte_offset;
    return is_aligned(out.data, dtype) && (lent.strides == nullptr || is_contiguous(out.shape(), lent.strides, 1));
  }

  /// Around memory of our own: half the time of torch.empty. Such a tensor cannot be made longer, but that is all.
  py::object make_on_host(DType dtype, Lengths shape, PlainTensor& out) const {
    LentBlock* const block = LentBlock::make(dtype, lent_dtypes_[static_cast<std::size_t>(dtype)], shape);
    if (block == nullptr) return {};
    out.data = block->managed.dl_tensor.data;
    void* tensor = nullptr;
    if (exchange_->managed_tensor_to_py_object_no_sync(&block->managed, &tensor) != 0) {
      leave_to_general_path();
      return {};
    }
    return py::reinterpret_steal<py::object>(static_cast<PyObject*>(tensor));
  }

  /// Not as on the host: Tensor.record_stream takes no notice of tensors made for borrowers, and their memory would be
  /// used again too early.
  py::object make_on_gpu(PyObject* like, DType dtype, Lengths shape) const {
    PyObject* const type = dtypes_[static_cast<std::size_t>(dtype)].ptr();
    DLTensor lent{};
    if (exchange_->dltensor_from_py_object_no_sync(like, &lent) != 0) {
      leave_to_general_path();
      return {};
    }
    if (std::ranges::equal(shape, Lengths(lent.shape, static_cast<std::size_t>(lent.ndim))))
      return call(empty_like_, {like, type}, dtype_name_);
    py::tuple lengths(shape.size());
    for (std::size_t axis = 0; axis < shape.size(); ++axis) lengths[axis] = py::int_(shape[axis]);
    const py::object device = attribute(like, device_);
    if (!device) return {};
    return call(empty_, {lengths.ptr(), type, device.ptr()}, dtype_and_device_names_);
  }

  const DLPackExchangeAPI* exchange_;
  py::object empty_;
  py::object empty_like_;
  py::object increment_version_;
  py::object is_conj_;
  py::object is_neg_;
  std::array<py::object, kDTypeCount> dtypes_;
  std::array<DLDataType, kDTypeCount> lent_dtypes_;
  py::str requires_grad_ = interned("requires_grad");
  py::str device_ = interned("device");
  py::tuple dtype_name_ = py::make_tuple("dtype");
  py::tuple dtype_and_device_names_ = py::make_tuple("dtype", "device");
};

// CuPy ----------------------------------------------------------------------------------------------------------------

/// Through the attributes of its arrays, as CuPy offers nothing in C.
class CuPy final : public PlainFramework {
 public:
  explicit CuPy(const py::object& cupy)
      : ndarray_(cupy.attr("ndarray")), get_current_stream_(cupy.attr("cuda").attr("get_current_stream")) {}

  bool read(PyObject* tensor, DType dtype, const Device& device, Access, PlainTensor& out) const override {
    const py::object& type = dtypes_[dtype];
    if (!type || attribute(tensor, dtype_).ptr() != type.ptr()) return false;
    const py::object flags = attribute(tensor, flags_);
    if (!flags || attribute(flags.ptr(), c_contiguous_).ptr() != Py_True) return false;
    return read_memory(tensor, dtype, device, out) && read_shape(tensor, out);
  }

  /// On CuPy's current device, which may be another one: then its own functions have to switch.
  py::object make(PyObject*, DType dtype, Lengths shape, const Device& device, PlainTensor& out) const override {
    const py::object& type = dtypes_[dtype];
    if (!type) return {};
    py::tuple lengths(shape.size());
    for (std::size_t axis = 0; axis < shape.size(); ++axis) lengths[axis] = py::int_(shape[axis]);
    py::object tensor = call(ndarray_, {lengths.ptr(), type.ptr()});
    return tensor && read_memory(tensor.ptr(), dtype, device, out) ? tensor : py::object();
  }

  bool current_stream(const Device& device, Stream& stream) const override {
    const py::int_ index(device.index);
    const py::object current = call(get_current_stream_, {index.ptr()});
    std::uintptr_t address = 0;
    if (!current || !read_integer(current.ptr(), ptr_, address)) return false;
    stream = reinterpret_cast<Stream>(address);
    return true;
  }

 private:
  static bool read_integer(PyObject* object, const py::str& name, std::uintptr_t& number) {
    const py::object value = attribute(object, name);
    if (!value || PyLong_Check(value.ptr()) == 0) return false;
    number = PyLong_AsSize_t(value.ptr());
    if (PyErr_Occurred() == nullptr) return true;
    leave_to_general_path();
    return false;
  }

  bool read_memory(PyObject* tensor, DType dtype, const Device& device, PlainTensor& out) const {
    const py::object memory = attribute(tensor, data_);
    std::uintptr_t address = 0;
    std::uintptr_t index = 0;
    if (!memory || !read_integer(memory.ptr(), ptr_, address) || !read_integer(memory.ptr(), device_id_, index))
      return false;
    out.data = reinterpret_cast<void*>(address);
    return device.platform == "cuda" && index == static_cast<std::uintptr_t>(device.index) && out.data != nullptr &&
           is_aligned(out.data, dtype);
  }

  bool read_shape(PyObject* tensor, PlainTensor& out) const {
    const py::object shape = attribute(tensor, shape_);
    if (!shape || PyTuple_Check(shape.ptr()) == 0) return false;
    std::array<std::int64_t, PlainTensor::kMaxDims> lengths;
    const Py_ssize_t ndim = PyTuple_GET_SIZE(shape.ptr());
    if (ndim > static_cast<Py_ssize_t>(lengths.size())) return false;
    for (Py_ssize_t axis = 0; axis < ndim; ++axis)
      lengths[static_cast<std::size_t>(axis)] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), axis));
    if (PyErr_Occurred() != nullptr) {
      leave_to_general_path();
      return false;
    }
    return copy_shape(lengths.data(), ndim, out);
  }

  NumPyDTypes dtypes_;
  py::object ndarray_;
  py::object get_current_stream_;
  py::str c_contiguous_ = interned("c_contiguous");
  py::str data_ = interned("data");
  py::str device_id_ = interned("device_id");
  py::str dtype_ = interned("dtype");
  py::str flags_ = interned("flags");
  py::str ptr_ = interned("ptr");
  py::str shape_ = interned("shape");
};

// The frameworks that are in use --------------------------------------------------------------------------------------

/// Never taken away, and neither are the types: their addresses keep their meaning.
struct Known {
  PyTypeObject* type;
  std::unique_ptr<PlainFramework> framework;
};

constexpr std::size_t kFrameworks = 3;
std::array<std::atomic<const Known*>, kFrameworks> known_frameworks{};

void make_known(std::size_t index, const py::object& type, std::unique_ptr<PlainFramework> framework) {
  auto* const known = new Known{reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr()), std::move(framework)};
  known_frameworks[index].store(known, std::memory_order_release);
}

}  // namespace

const PlainFramework* plain_framework_of(PyObject* tensor) {
  for (const auto& entry : known_frameworks) {
    const Known* const known = entry.load(std::memory_order_acquire);
    if (known != nullptr && known->type == Py_TYPE(tensor)) return known->framework.get();
  }
  return nullptr;
}

const PlainFramework* numpy_framework() {
  const Known* const known = known_frameworks[0].load(std::memory_order_acquire);
  return known == nullptr ? nullptr : known->framework.get();
}

bool is_any_stream_capturing(DeviceContext& context) {
  for (const auto& entry : known_frameworks) {
    const Known* const known = entry.load(std::memory_order_acquire);
    Stream stream = nullptr;
    if (known != nullptr && known->framework->current_stream(context.device(), stream) && context.is_capturing(stream))
      return true;
  }
  return false;
}

void use_framework(const std::string& name, const py::object& module) {
  if (name == "numpy") {
    use_numpy_numbers(module);
    make_known(0, module.attr("ndarray"), std::make_unique<NumPy>());
  } else if (name == "torch") {
    const py::object type = module.attr("Tensor");
    const DLPackExchangeAPI* exchange = find_exchange(type);  // null before PyTorch 2.11
    if (exchange != nullptr && exchange->dltensor_from_py_object_no_sync != nullptr)
      make_known(1, type, std::make_unique<Torch>(exchange, module));
  } else if (name == "cupy") {
    make_known(2, module.attr("ndarray"), std::make_unique<CuPy>(module));
  } else {
    throw std::invalid_argument("\"" + name + "\" was given, expected numpy, torch or cupy");
  }
}

}  // namespace gpuhash::bindings
