#include "bindings/numpy_memory.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "bindings/bindings.hpp"
#include "core/fork_safe_mutex.hpp"
#include "host/memory/block_memory.hpp"

namespace gpuhash::bindings {
namespace {

namespace py = pybind11;

/// As NumPy's C API has it since 1.22 (NEP 49). Functions return null where there is no memory.
struct NumPyAllocator {
  void* context;
  void* (*malloc)(void*, std::size_t);
  void* (*calloc)(void*, std::size_t, std::size_t);
  void* (*realloc)(void*, void*, std::size_t);
  void (*free)(void*, void*, std::size_t);
};
struct NumPyHandler {
  char name[127];
  std::uint8_t version;
  NumPyAllocator allocator;
};

/// Memory of arrays. It knows each block's size: what NumPy says when it frees one is that of the array by then.
class ArrayMemory {
 public:
  /// Never destroyed: arrays may outlive whatever is.
  static ArrayMemory& all() {
    static auto* const memory = new ArrayMemory;
    return *memory;
  }

  /// Null where there is none.
  void* allocate(std::size_t bytes) noexcept {
    bytes = std::max<std::size_t>(bytes, 1);
    void* data = nullptr;
    try {
      data = blocks_.allocate(bytes);
      const std::lock_guard lock(mutex_);
      sizes_.emplace(data, bytes);
      return data;
    } catch (const OutOfMemoryError&) {
      return nullptr;
    } catch (const std::bad_alloc&) {
      blocks_.deallocate(data, bytes);
      return nullptr;
    }
  }
  void free(void* data) noexcept {
    if (data != nullptr) blocks_.deallocate(data, take_size(data));
  }
  std::size_t largest_kept() const { return blocks_.largest_kept(); }
  std::size_t size(void* data) {
    const std::lock_guard lock(mutex_);
    return sizes_.at(data);
  }

 private:
  std::size_t take_size(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(data);
    const std::size_t bytes = found->second;
    sizes_.erase(found);
    return bytes;
  }

  ForkSafeMutex mutex_;  // of sizes_
  host::BlockMemory blocks_;
  std::unordered_map<void*, std::size_t> sizes_;
};

void* allocate(void*, std::size_t bytes) { return ArrayMemory::all().allocate(bytes); }

void* allocate_zeroed(void*, std::size_t count, std::size_t size) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes)) return nullptr;
  void* const data = ArrayMemory::all().allocate(bytes);
  if (data != nullptr) std::memset(data, 0, bytes);
  return data;
}

void free(void*, void* data, std::size_t) { ArrayMemory::all().free(data); }

void* reallocate(void*, void* data, std::size_t bytes) {
  void* const moved = ArrayMemory::all().allocate(bytes);
  if (moved == nullptr || data == nullptr) return moved;
  std::memcpy(moved, data, std::min(ArrayMemory::all().size(data), bytes));
  ArrayMemory::all().free(data);
  return moved;
}

/// NumPy's functions and this handler, for as long as the process lives.
struct NumPyHandlers {
  PyObject* (*set)(PyObject*);  // returns what it was before
  py::object ours;

  static const NumPyHandlers& get() {
    static const auto* const handlers = new NumPyHandlers;
    return *handlers;
  }

 private:
  NumPyHandlers() {
    constexpr std::size_t kSetHandler = 304;  // PyDataMem_SetHandler
    static NumPyHandler handler{"gpuhash", 1, {nullptr, allocate, allocate_zeroed, reallocate, free}};
    const py::object api = py::detail::import_numpy_core_submodule("multiarray").attr("_ARRAY_API");
    auto* const functions = static_cast<void**>(PyCapsule_GetPointer(api.ptr(), nullptr));
    if (functions == nullptr) throw py::error_already_set();
    set = reinterpret_cast<PyObject* (*)(PyObject*)>(functions[kSetHandler]);
    ours = py::reinterpret_steal<py::object>(PyCapsule_New(&handler, "mem_handler", nullptr));
    if (!ours) throw py::error_already_set();
  }
};

py::object set_handler(PyObject* handler) {
  auto before = py::reinterpret_steal<py::object>(NumPyHandlers::get().set(handler));
  if (!before) throw py::error_already_set();
  return before;
}

/// As numpy.empty(shape, dtype) for a shape that is a tuple.
py::array empty_array(const py::tuple& shape, const py::dtype& dtype) {
  const auto lengths = shape.cast<std::vector<std::int64_t>>();
  const KeptNumPyMemory kept(dtype.itemsize(), lengths);
  return {dtype, lengths};
}

}  // namespace

KeptNumPyMemory::KeptNumPyMemory(std::int64_t itemsize, std::span<const std::int64_t> shape) {
  std::int64_t bytes = itemsize;
  for (const std::int64_t length : shape)
    if (__builtin_mul_overflow(bytes, length, &bytes)) return;  // NumPy refuses it
  constexpr auto kLeast = static_cast<std::int64_t>(host::KeptBlocks::kLeastBytes);
  const auto largest = static_cast<std::int64_t>(ArrayMemory::all().largest_kept());
  if (bytes >= kLeast && bytes <= largest) before_ = set_handler(NumPyHandlers::get().ours.ptr());
}

KeptNumPyMemory::~KeptNumPyMemory() {
  if (!before_) return;
  const py::error_scope error;  // of whoever ends here
  Py_XDECREF(NumPyHandlers::get().set(before_.ptr()));
}

void bind_numpy_memory(py::module_& module) {
  module.def("empty_array", &empty_array, py::arg("shape"), py::arg("dtype"));
}

}  // namespace gpuhash::bindings
