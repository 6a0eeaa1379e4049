#include "bindings/buffer.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "bindings/bindings.hpp"
#include "bindings/gil.hpp"

namespace gpuhash::bindings {

namespace {

/// Bytes of an array; throws where they do not fit in 63 bits.
std::int64_t checked_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = static_cast<std::int64_t>(itemsize(dtype));
  for (const std::int64_t length : shape) {
    if (length < 0) throw std::invalid_argument("shape has the negative length " + std::to_string(length));
    if (__builtin_mul_overflow(bytes, length, &bytes)) throw std::invalid_argument("shape has 2^63 bytes or more");
  }
  return bytes;
}

Buffer make_buffer(const ContextPointer& context, const std::string& dtype_name, std::vector<std::int64_t> shape,
                   std::uintptr_t stream_address) {
  const DType dtype = dtype_from_name(dtype_name);
  const auto bytes = static_cast<std::size_t>(checked_bytes(dtype, shape));
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  const auto allocation = std::make_shared<Allocation>(*context, bytes, stream);
  return {context, data_of(allocation), dtype, std::move(shape), stream, false, allocation.get()};
}

/// In elements.
std::vector<std::int64_t> strides_of(const Buffer& buffer) {
  if (!buffer.strides.empty()) return buffer.strides;
  std::vector<std::int64_t> strides(buffer.shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = buffer.shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= buffer.shape[axis];
  }
  return strides;
}

/// What a capsule holds: the memory, and the shape and strides that DLTensor points to.
template <class Managed>
struct Lent {
  Managed managed{};
  ContextPointer context;
  std::shared_ptr<void> memory;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

/// Any thread may call the deleter, with the GIL or without it.
template <class Managed>
py::object make_capsule(const Buffer& buffer, const char* name, PyCapsule_Destructor destroy) {
  if (buffer.allocation != nullptr) buffer.allocation->lend(buffer.context);
  auto lent = std::make_unique<Lent<Managed>>();
  lent->context = buffer.context;
  lent->memory = buffer.memory;
  lent->shape = buffer.shape;
  lent->strides = strides_of(buffer);
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
    lent->managed.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    if (buffer.readonly) lent->managed.flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
  }
  lent->managed.manager_ctx = lent.get();
  lent->managed.deleter = [](Managed* managed) { delete static_cast<Lent<Managed>*>(managed->manager_ctx); };
  DLTensor& tensor = lent->managed.dl_tensor;
  tensor.data = std::ranges::find(buffer.shape, 0) != buffer.shape.end() ? nullptr : buffer.data();
  tensor.device = to_dlpack(buffer.context->device());
  tensor.ndim = static_cast<std::int32_t>(lent->shape.size());
  tensor.dtype = to_dlpack(buffer.dtype);
  tensor.shape = lent->shape.data();
  tensor.strides = lent->strides.data();
  auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(&lent->managed, name, destroy));
  if (!capsule) throw py::error_already_set();
  lent.release();  // the capsule's now
  return capsule;
}

/// A capsule that nobody took gives its memory back itself; one that was taken has another name.
template <class Managed>
void drop_capsule(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  const py::error_scope preserved;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

/// Makes the consumer's stream wait for the work that fills the buffer.
void order_after(const Buffer& buffer, std::optional<std::int64_t> consumer) {
  constexpr std::int64_t kLegacyDefault = 1;  // DLPack's numbers for CUDA streams, which are the runtime's handles, too
  constexpr std::int64_t kNoSync = -1;
  const auto normalize = [](std::int64_t stream) { return stream == 0 ? kLegacyDefault : stream; };
  const std::int64_t wanted = normalize(consumer.value_or(kLegacyDefault));
  const std::int64_t filled_by = normalize(reinterpret_cast<std::intptr_t>(buffer.stream));
  // Other addresses may have come to mean another stream.
  if (wanted == kNoSync || (wanted == kLegacyDefault && filled_by == kLegacyDefault)) return;
  const GilRelease unlocked;
  const std::unique_ptr<Fence> fence = buffer.context->make_fence();
  fence->record(buffer.stream);
  fence->wait(wanted == kLegacyDefault ? nullptr : reinterpret_cast<Stream>(wanted));
}

py::object lend(const Buffer& buffer, std::optional<std::int64_t> stream,
                const std::optional<std::pair<std::int64_t, std::int64_t>>& max_version,
                const std::optional<std::pair<int, int>>& wanted_device, std::optional<bool> copy) {
  const DLDevice device = to_dlpack(buffer.context->device());
  if (copy.value_or(false)) throw py::buffer_error("copy=True is not supported: copy the result instead");
  if (wanted_device && *wanted_device != std::pair<int, int>(device.device_type, device.device_id))
    throw py::buffer_error("the buffer lies on " + buffer.context->device().to_string() +
                           "; another dl_device is not supported: move the result instead");
  if (device.device_type == kDLCUDA) order_after(buffer, stream);
  if (max_version && max_version->first >= 1) {
    return make_capsule<DLManagedTensorVersioned>(buffer, "dltensor_versioned", [](PyObject* capsule) {
      drop_capsule<DLManagedTensorVersioned>(capsule, "dltensor_versioned");
    });
  }
  return make_capsule<DLManagedTensor>(buffer, "dltensor",
                                       [](PyObject* capsule) { drop_capsule<DLManagedTensor>(capsule, "dltensor"); });
}

py::dtype numpy_dtype(DType dtype) {
  if (dtype != DType::kBFloat16) return py::dtype(std::string(name(dtype)));
  try {
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ImportError)) throw;
    py::raise_from(error, PyExc_TypeError, "NumPy has no bfloat16 of its own: install the package ml_dtypes");
    throw py::error_already_set();
  }
}

/// NumPy's protocol: the memory itself, unless another dtype or a copy is asked for.
py::object to_numpy(const py::object& self, const py::object& dtype, std::optional<bool> copy) {
  const auto& buffer = self.cast<const Buffer&>();
  if (buffer.context->device().platform != "cpu")
    throw py::type_error("the buffer lies on " + buffer.context->device().to_string() +
                         ", where NumPy cannot read it: copy it to the host");
  std::vector<std::int64_t> strides = strides_of(buffer);
  for (std::int64_t& stride : strides) stride *= static_cast<std::int64_t>(itemsize(buffer.dtype));
  py::array array(numpy_dtype(buffer.dtype), buffer.shape, strides, buffer.data(), self);
  if (buffer.readonly) array.attr("setflags")(py::arg("write") = false);
  const bool converts = !dtype.is_none() && !py::dtype::from_args(dtype).equal(array.dtype());
  if (converts && copy.has_value() && !*copy)
    throw py::value_error("another dtype needs a copy, and copy=False was given");
  if (converts) return array.attr("astype")(dtype);
  return copy.value_or(false) ? array.attr("copy")() : py::object(array);
}

Array to_array(const Buffer& buffer) {
  Array array;
  array.dtype = buffer.dtype;
  array.shape = buffer.shape;
  array.device = buffer.context->device();
  array.data = buffer.data();
  array.contiguous = buffer.strides.empty() || is_contiguous<std::int64_t>(buffer.shape, strides_of(buffer).data(), 1);
  array.readonly = buffer.readonly;
  array.memory = buffer.memory;
  return array;
}

}  // namespace

void bind_buffer(py::module_& module) {
  py::class_<Buffer>(module, "Buffer", py::is_final(), "An array on a context's device.")
      .def(py::init(&make_buffer), py::arg("context"), py::arg("dtype"), py::arg("shape"), py::arg("stream"))
      .def_property_readonly("dtype", [](const Buffer& buffer) { return name(buffer.dtype); })
      .def_property_readonly("shape", [](const Buffer& buffer) { return to_tuple(buffer.shape); })
      .def_property_readonly("data",
                             [](const Buffer& buffer) { return reinterpret_cast<std::uintptr_t>(buffer.data()); })
      .def("array", &to_array)
      .def("__dlpack__", &lend, py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
           py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
      .def("__dlpack_device__",
           [](const Buffer& buffer) {
             const DLDevice device = to_dlpack(buffer.context->device());
             return std::pair<int, int>(device.device_type, device.device_id);
           })
      .def("__array__", &to_numpy, py::arg("dtype") = py::none(), py::arg("copy") = py::none());
}

}  // namespace gpuhash::bindings
