#include "bindings/context.hpp"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include <gpuhash/error.hpp>
#include <gpuhash/platform.hpp>
#include "bindings/bindings.hpp"
#include "bindings/python_owner.hpp"

namespace gpuhash::bindings {

namespace {

/// Is the error one of no memory? torch.OutOfMemoryError is a RuntimeError.
bool means_no_memory(const py::error_already_set& error) {
  if (error.matches(PyExc_MemoryError)) return true;
  return py::str(py::getattr(error.type(), "__name__", py::str())).cast<std::string>() == "OutOfMemoryError";
}

/// Table memory from a Python object with `allocate(nbytes, stream)` and `deallocate(ptr, nbytes, stream)`. Takes the
/// GIL for both, so whoever calls it must not hold the GIL while waiting for another caller.
class PyMemoryResource final : public MemoryResource {
 public:
  PyMemoryResource(const py::object& resource, std::size_t alignment)
      : methods_(new Methods(resource.attr("allocate"), resource.attr("deallocate"))), alignment_(alignment) {}

  void* allocate(std::size_t bytes, Stream stream) override {
    if (is_python_gone() && PyGILState_GetThisThreadState() == nullptr)  // a thread of the library's own
      throw OutOfMemoryError("the memory resource was asked for " + std::to_string(bytes) +
                             " bytes while the interpreter ends");
    const GilAcquire locked;
    const std::uintptr_t address = ask(bytes, stream);
    if (address == 0)
      throw OutOfMemoryError("the memory resource gave a null pointer for " + std::to_string(bytes) + " bytes");
    if (address % alignment_ != 0) {
      deallocate(reinterpret_cast<void*>(address), bytes, stream);
      throw std::invalid_argument("the memory resource gave the address " + std::to_string(address) +
                                  ", expected one that is a multiple of " + std::to_string(alignment_) +
                                  ": let it align its memory");
    }
    return reinterpret_cast<void*>(address);
  }

  void deallocate(void* data, std::size_t bytes, Stream stream) noexcept override {
    if (is_python_gone()) return;
    const GilAcquire locked;
    const py::error_scope preserved;  // an exception may be under way in the caller
    try {
      call(methods_->deallocate,
           py::make_tuple(reinterpret_cast<std::uintptr_t>(data), bytes, reinterpret_cast<std::uintptr_t>(stream)));
    } catch (py::error_already_set& error) {
      or_stay([&] { error.discard_as_unraisable(methods_->deallocate); });
    }
  }

 private:
  struct Methods {
    py::object allocate;
    py::object deallocate;

    Methods(py::object allocate_, py::object deallocate_)
        : allocate(std::move(allocate_)), deallocate(std::move(deallocate_)) {}
    ~Methods() {
      drop(allocate);
      drop(deallocate);
    }
  };

  static py::object call(const py::object& method, const py::tuple& arguments) {
    py::object answer = call_from_core(method, arguments);
    if (!answer) throw py::error_already_set();
    return answer;
  }

  std::uintptr_t ask(std::size_t bytes, Stream stream) {
    try {
      const py::object address =
          call(methods_->allocate, py::make_tuple(bytes, reinterpret_cast<std::uintptr_t>(stream)));
      const auto integer = py::reinterpret_steal<py::object>(PyNumber_Index(address.ptr()));
      if (!integer) throw py::error_already_set();
      return integer.cast<std::uintptr_t>();
    } catch (const py::cast_error&) {
      throw std::invalid_argument("the memory resource gave a number that is no address");
    } catch (const py::error_already_set& error) {
      if (!means_no_memory(error)) throw;
      const std::string text = py::str(error.value());
      throw OutOfMemoryError("the memory resource could not give " + std::to_string(bytes) + " bytes" +
                             (text.empty() ? "" : ": " + text));
    }
  }

  std::unique_ptr<Methods, DeleteWithGil> methods_;
  std::size_t alignment_;
};

ContextPointer make_context(const std::string& name, int index, const py::object& memory) {
  std::shared_ptr<MemoryResource> resource;
  if (!memory.is_none()) {
    for (const char* method : {"allocate", "deallocate"}) {
      if (PyCallable_Check(py::getattr(memory, method, py::none()).ptr()) == 0)
        throw py::type_error(
            "memory is of type " + std::string(Py_TYPE(memory.ptr())->tp_name) + ", without " + method +
            "(); expected an object with allocate(nbytes, stream) and deallocate(ptr, nbytes, stream)");
    }
    resource = std::make_shared<PyMemoryResource>(memory, name == "cpu" ? 64 : 128);
  }
  const GilRelease unlocked;
  return platform(name).make_context(index, std::move(resource));
}

void copy(DeviceContext& context, const Array& target, const Array& source, std::uintptr_t stream_address) {
  const auto on_host = [&](const Array& array, const char* role) {
    const bool host = array.device.platform == "cpu";
    if (!host) check_dense(context, array, role);
    if (!array.contiguous) throw std::invalid_argument(std::string(role) + " is not contiguous");
    return host;
  };
  const bool to_host = on_host(target, "target");
  const bool from_host = on_host(source, "source");
  if (target.readonly) throw std::invalid_argument("target is read-only");
  const std::int64_t bytes = target.bytes();
  if (bytes != source.bytes())
    throw std::invalid_argument("target has " + std::to_string(bytes) + " bytes and source " +
                                std::to_string(source.bytes()) + ": sizes must match");
  if (bytes == 0) return;

  const auto count = static_cast<std::size_t>(bytes);
  const Stream stream = to_stream(context, stream_address);
  const GilRelease unlocked;
  if (to_host && from_host) {
    std::memmove(target.data, source.data, count);
  } else if (to_host) {
    context.copy_to_host(target.data, source.data, count, stream);
  } else if (from_host) {
    context.copy_from_host(target.data, source.data, count, stream);
    context.synchronize(stream);  // the source may be pinned memory, which is read later, and may then be gone
  } else {
    context.copy(target.data, source.data, count, stream);
  }
}

void copy_from(DeviceContext& context, const Array& target, DeviceContext& other, const Array& source,
               std::uintptr_t stream_address) {
  check_dense(context, target, "target");
  check_dense(other, source, "source");
  if (target.readonly) throw std::invalid_argument("target is read-only");
  if (target.bytes() != source.bytes())
    throw std::invalid_argument("target has " + std::to_string(target.bytes()) + " bytes and source " +
                                std::to_string(source.bytes()) + ": sizes must match");
  if (target.bytes() == 0) return;
  const Stream stream = to_stream(context, stream_address);
  const GilRelease unlocked;
  context.copy_from(target.data, other, source.data, static_cast<std::size_t>(target.bytes()), stream);
  context.synchronize(stream);
}

}  // namespace

void check_dense(const DeviceContext& context, const Array& array, const char* role) {
  if (!(array.device == context.device()))
    throw std::invalid_argument(std::string(role) + " lies on " + array.device.to_string() + ", expected " +
                                context.device().to_string());
  if (!array.contiguous) throw std::invalid_argument(std::string(role) + " is not contiguous");
}

void bind_context(py::module_& module) {
  py::class_<DeviceContext, ContextPointer>(module, "Context", py::is_final(), "A device with a memory resource.")
      .def(py::init(&make_context), py::arg("platform"), py::arg("index") = 0, py::arg("memory") = py::none())
      .def_property_readonly("platform", [](const DeviceContext& context) { return context.device().platform; })
      .def_property_readonly("device_index", [](const DeviceContext& context) { return context.device().index; })
      .def_property_readonly("device", [](const DeviceContext& context) { return context.device().to_string(); })
      .def(
          "synchronize",
          [](DeviceContext& context, std::uintptr_t stream) { context.synchronize(to_stream(context, stream)); },
          py::arg("stream"), py::call_guard<GilRelease>())
      .def("copy", &copy, py::arg("target"), py::arg("source"), py::arg("stream"))
      .def("copy_from", &copy_from, py::arg("target"), py::arg("other"), py::arg("source"), py::arg("stream"));
}

}  // namespace gpuhash::bindings
