#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/python_owner.hpp"

/// Arrays of ours for others, by the Arrow C data interface, its streams and its device interface:
/// https://arrow.apache.org/docs/format/CDataInterface.html, CStreamInterface.html and CDeviceDataInterface.html.
///
/// In C++, as others may give them back on any thread, and when Python is gone.
namespace gpuhash::bindings {

namespace {

struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  std::int64_t flags;
  std::int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  std::int64_t length;
  std::int64_t null_count;
  std::int64_t offset;
  std::int64_t n_buffers;
  std::int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema* out);
  int (*get_next)(ArrowArrayStream*, ArrowArray* out);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};

struct ArrowDeviceArray {
  ArrowArray array;
  std::int64_t device_id;
  std::int32_t device_type;
  void* sync_event;
  std::int64_t reserved[3];
};

constexpr std::int64_t kNullable = 2;  // ARROW_FLAG_NULLABLE

/// A column, or a part of one.
struct ArrowNode {
  std::string format;
  std::string name;
  std::int64_t length = 0;
  std::int64_t nulls = 0;
  std::vector<const void*> buffers;  // null: there is none
  std::vector<std::shared_ptr<ArrowNode>> children;
};

using NodePointer = std::shared_ptr<ArrowNode>;

/// The Python objects whose memory an array is.
struct HeldObjects {
  py::object objects;
};

using HeldPointer = std::shared_ptr<HeldObjects>;

HeldPointer hold(py::object objects) { return {new HeldObjects{std::move(objects)}, DeleteWithGil{}}; }

/// What the private data of a structure is: what its pointers lead to.
template <class Structure>
struct ArrowParts {
  NodePointer node;
  HeldPointer held;
  std::vector<Structure> children;
  std::vector<Structure*> pointers;
};

template <class Structure>
void release_arrow(Structure* structure) {
  const std::unique_ptr<ArrowParts<Structure>> parts(static_cast<ArrowParts<Structure>*>(structure->private_data));
  for (Structure& child : parts->children)
    if (child.release != nullptr) child.release(&child);  // others may have taken it, and give it back themselves
  structure->release = nullptr;
}

void fill_one(ArrowSchema& schema, const ArrowNode& node) {
  schema.format = node.format.c_str();
  schema.name = node.name.c_str();
  schema.flags = kNullable;
}

void fill_one(ArrowArray& array, ArrowNode& node) {
  array.length = node.length;
  array.null_count = node.nulls;
  array.n_buffers = static_cast<std::int64_t>(node.buffers.size());
  array.buffers = node.buffers.data();
}

/// Makes a structure of a node, with those of its children.
template <class Structure>
Structure make_arrow(const NodePointer& node, const HeldPointer& held) {
  auto parts = std::make_unique<ArrowParts<Structure>>(node, held);
  parts->children.reserve(node->children.size());
  Structure structure{};
  fill_one(structure, *node);
  try {
    for (const NodePointer& child : node->children) parts->children.push_back(make_arrow<Structure>(child, held));
    for (Structure& child : parts->children) parts->pointers.push_back(&child);
  } catch (...) {
    for (Structure& child : parts->children) child.release(&child);
    throw;
  }
  structure.n_children = static_cast<std::int64_t>(parts->pointers.size());
  structure.children = parts->pointers.data();
  structure.release = &release_arrow<Structure>;
  structure.private_data = parts.release();
  return structure;
}

/// A capsule that owns a structure, which others move out of it.
template <class Structure>
py::object own_by_capsule(std::unique_ptr<Structure> structure, const char* name, PyCapsule_Destructor destroy) {
  auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(structure.get(), name, destroy));
  if (!capsule) throw py::error_already_set();
  (void)structure.release();
  return capsule;
}

constexpr const char* kSchemaName = "arrow_schema";
constexpr const char* kArrayName = "arrow_array";
constexpr const char* kStreamName = "arrow_array_stream";
constexpr const char* kDeviceArrayName = "arrow_device_array";

template <class Structure>
void drop_arrow(PyObject* capsule, const char* name) {
  const std::unique_ptr<Structure> structure(static_cast<Structure*>(PyCapsule_GetPointer(capsule, name)));
  if (structure->release != nullptr) structure->release(structure.get());
}

struct ArrowStreamParts {
  NodePointer node;
  HeldPointer held;
  bool done = false;
};

int get_schema(ArrowArrayStream* stream, ArrowSchema* out) noexcept {
  const auto* const parts = static_cast<ArrowStreamParts*>(stream->private_data);
  try {
    *out = make_arrow<ArrowSchema>(parts->node, nullptr);
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

int get_next(ArrowArrayStream* stream, ArrowArray* out) noexcept {
  auto* const parts = static_cast<ArrowStreamParts*>(stream->private_data);
  try {
    *out = parts->done ? ArrowArray{} : make_arrow<ArrowArray>(parts->node, parts->held);
    parts->done = true;
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

const char* get_last_error(ArrowArrayStream*) noexcept { return "there is no memory"; }

void release_stream(ArrowArrayStream* stream) noexcept {
  delete static_cast<ArrowStreamParts*>(stream->private_data);
  stream->release = nullptr;
}

py::object schema_capsule(const NodePointer& node) {
  return own_by_capsule(std::make_unique<ArrowSchema>(make_arrow<ArrowSchema>(node, nullptr)), kSchemaName,
                        [](PyObject* capsule) { drop_arrow<ArrowSchema>(capsule, kSchemaName); });
}

py::object array_capsule(const NodePointer& node, py::object held) {
  return own_by_capsule(std::make_unique<ArrowArray>(make_arrow<ArrowArray>(node, hold(std::move(held)))), kArrayName,
                        [](PyObject* capsule) { drop_arrow<ArrowArray>(capsule, kArrayName); });
}

py::object stream_capsule(const NodePointer& node, py::object held) {
  auto stream = std::make_unique<ArrowArrayStream>();
  auto parts = std::make_unique<ArrowStreamParts>(node, hold(std::move(held)));
  *stream = {&get_schema, &get_next, &get_last_error, &release_stream, parts.release()};
  return own_by_capsule(std::move(stream), kStreamName,
                        [](PyObject* capsule) { drop_arrow<ArrowArrayStream>(capsule, kStreamName); });
}

py::object device_array_capsule(const NodePointer& node, py::object held, std::int32_t type, std::int64_t device) {
  auto array = std::make_unique<ArrowDeviceArray>();
  array->array = make_arrow<ArrowArray>(node, hold(std::move(held)));
  array->device_type = type;
  array->device_id = device;
  return own_by_capsule(std::move(array), kDeviceArrayName, [](PyObject* capsule) {
    const std::unique_ptr<ArrowDeviceArray> owned(
        static_cast<ArrowDeviceArray*>(PyCapsule_GetPointer(capsule, kDeviceArrayName)));
    if (owned->array.release != nullptr) owned->array.release(&owned->array);
  });
}

NodePointer make_node(std::string format, std::string name, std::int64_t length, std::int64_t nulls,
                      const std::vector<std::uintptr_t>& buffers, std::vector<NodePointer> children) {
  auto node = std::make_shared<ArrowNode>();
  node->format = std::move(format);
  node->name = std::move(name);
  node->length = length;
  node->nulls = nulls;
  for (const std::uintptr_t address : buffers) node->buffers.push_back(reinterpret_cast<const void*>(address));
  node->children = std::move(children);
  return node;
}

}  // namespace

void bind_arrow(py::module_& module) {
  py::class_<ArrowNode, NodePointer>(module, "ArrowNode", py::is_final(),
                                     "A column in Arrow's layout, or a part of one.")
      .def(py::init(&make_node), py::arg("format"), py::arg("name"), py::arg("length"), py::arg("nulls"),
           py::arg("buffers"), py::arg("children"))
      .def("schema", &schema_capsule)
      .def("array", &array_capsule, py::arg("held"))
      .def("stream", &stream_capsule, py::arg("held"))
      .def("device_array", &device_array_capsule, py::arg("held"), py::arg("device_type"), py::arg("device_id"));
}

}  // namespace gpuhash::bindings
