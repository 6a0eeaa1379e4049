#include <gpuhash/tensor_store.hpp>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <gpuhash/error.hpp>
#include <gpuhash/platform.hpp>
#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/buffer.hpp"
#include "bindings/context.hpp"
#include "bindings/python_owner.hpp"

namespace gpuhash::bindings {

namespace {

/// The framework of objects that Python saved.
constexpr const char* kPython = "python";

/// A tensor that Python saved: its memory and the object itself. Made and destroyed with the GIL.
struct SavedObject {
  py::object object;
  Array array;
  ContextPointer settled_by;  // its framework frees without regard to streams: wait for `stream` before; else null
  Stream stream = nullptr;

  ~SavedObject() {
    if (settled_by != nullptr) settle();
    drop(object);
  }

 private:
  void settle() const noexcept {
    try {
      const GilRelease unlocked;
      settled_by->synchronize(stream);
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      or_stay([this] { PyErr_WriteUnraisable(object.ptr()); });
    }
  }
};

/// `native` None: the memory alone, as if another library had saved it.
void put_tensor(const std::string& name, const Array& array, const py::object& native, std::uintptr_t stream_address,
                bool wait) {
  if (!array.contiguous) throw std::invalid_argument("the tensor is not contiguous");
  const Stream stream = array.device.platform == "cpu" ? nullptr : reinterpret_cast<Stream>(stream_address);
  ContextPointer settled_by;
  if (wait) {
    const GilRelease unlocked;
    settled_by = platform(array.device.platform).make_context(array.device.index, nullptr);
  }
  const std::shared_ptr<SavedObject> saved(new SavedObject{native, array, std::move(settled_by), stream},
                                           DeleteWithGil());
  StoredTensor tensor;
  tensor.dtype = array.dtype;
  tensor.shape = array.shape;
  tensor.device = array.device;
  tensor.memory = std::shared_ptr<void>(saved, array.data);
  tensor.stream = stream;
  if (!native.is_none()) {
    tensor.native = std::shared_ptr<const void>(saved, native.ptr());
    tensor.framework = kPython;
  }
  tensor.readonly = array.readonly;
  const GilRelease unlocked;
  tensor_store::put(name, std::move(tensor));
}

/// What a name stood for when it was looked up.
struct FoundTensor {
  std::shared_ptr<const tensor_store::Entry> entry;

  const StoredTensor& tensor() const { return entry->tensor(); }
};

std::optional<FoundTensor> find_tensor(const std::string& name) {
  std::shared_ptr<const tensor_store::Entry> entry = tensor_store::find(name);
  if (entry == nullptr) return std::nullopt;
  return FoundTensor{std::move(entry)};
}

py::object native_of(const FoundTensor& found) {
  const StoredTensor& tensor = found.tensor();
  if (tensor.framework != kPython) return py::none();
  // A PyObject is const to nobody.
  return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(const_cast<void*>(tensor.native.get())));
}

Buffer buffer_of(const FoundTensor& found, std::uintptr_t stream_address) {
  if (!found.tensor().dtype)
    throw DTypeError("only " + found.tensor().framework + " knows the dtype of the tensor; read it there");
  const ContextPointer& context = found.entry->context();
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  StoredTensor tensor = found.entry->lend(stream);
  return {context, std::move(tensor.memory), *tensor.dtype, std::move(tensor.shape), stream, tensor.readonly};
}

}  // namespace

void bind_tensor_store(py::module_& module) {
  using unlocked = py::call_guard<GilRelease>;
  py::class_<FoundTensor>(module, "StoredTensor", py::is_final(), "A tensor of the store.")
      .def_property_readonly("dtype",
                             [](const FoundTensor& found) -> std::optional<std::string_view> {
                               const std::optional<DType>& dtype = found.tensor().dtype;
                               return dtype ? std::optional<std::string_view>(name(*dtype)) : std::nullopt;
                             })
      .def_property_readonly("shape", [](const FoundTensor& found) { return to_tuple(found.tensor().shape); })
      .def_property_readonly("platform", [](const FoundTensor& found) { return found.tensor().device.platform; })
      .def_property_readonly("device_index", [](const FoundTensor& found) { return found.tensor().device.index; })
      .def_property_readonly("device", [](const FoundTensor& found) { return found.tensor().device.to_string(); })
      .def_property_readonly(
          "data",
          [](const FoundTensor& found) { return reinterpret_cast<std::uintptr_t>(found.tensor().memory.get()); })
      .def_property_readonly("framework", [](const FoundTensor& found) { return found.tensor().framework; })
      .def_property_readonly("native", &native_of)
      .def_property_readonly("context", [](const FoundTensor& found) { return found.entry->context(); })
      .def(
          "wait",
          [](const FoundTensor& found, std::uintptr_t stream) {
            found.entry->wait(to_stream(*found.entry->context(), stream));
          },
          py::arg("stream"), unlocked())
      .def("buffer", &buffer_of, py::arg("stream"));
  module.def("put_tensor", &put_tensor, py::arg("name"), py::arg("array"), py::arg("native"), py::arg("stream"),
             py::arg("wait"));
  // Without the GIL: what is dropped, or keeps others waiting, may want it.
  module.def("find_tensor", &find_tensor, py::arg("name"), unlocked());
  module.def("remove_tensor", &tensor_store::remove, py::arg("name"), unlocked());
  module.def("tensor_names", &tensor_store::names, unlocked());
}

}  // namespace gpuhash::bindings
