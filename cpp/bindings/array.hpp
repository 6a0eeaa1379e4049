#pragma once

#include <dlpack/dlpack.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include <gpuhash/memory_range.hpp>

namespace gpuhash::bindings {

namespace py = pybind11;

/// A tensor of any framework, borrowed. Made and destroyed with the GIL held.
struct Array {
  DType dtype = DType::kInt64;
  std::vector<std::int64_t> shape;
  Device device;
  void* data = nullptr;
  bool contiguous = false;  // C-contiguous and aligned to its elements
  bool readonly = false;

  py::object tensor;             // what keeps the memory alive: the tensor itself
  std::shared_ptr<void> memory;  // or memory that it lent

  std::int64_t elements() const;
  std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(itemsize(dtype)); }
  /// Of a contiguous one.
  MemoryRange range() const { return {data, bytes()}; }
};

/// C-contiguous? Axes of length 1 and empty arrays do not care for their strides. `strides` [shape.size()] in units of
/// `unit`, the distance of neighbours.
template <class Integer>
bool is_contiguous(std::span<const std::int64_t> shape, const Integer* strides, std::int64_t unit) {
  bool dense = true;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] == 0) return true;
    if (shape[axis] != 1 && strides[axis] != unit) dense = false;
    unit *= shape[axis];
  }
  return dense;
}

/// The functions in C that a type of tensors offers, in a version that this code knows; null where it has none.
const DLPackExchangeAPI* find_exchange(py::handle type);

DLDataType to_dlpack(DType dtype);
DLDevice to_dlpack(const Device& device);
py::tuple to_tuple(const std::vector<std::int64_t>& shape);

Array borrow(const py::object& tensor, const py::object& stream);

}  // namespace gpuhash::bindings

/// pybind11 makes None a null pointer only after it has asked None for the types of other extensions, which costs more
/// than a lookup in a small table: 0.5 us.
template <>
class pybind11::detail::type_caster<gpuhash::bindings::Array>
    : public pybind11::detail::type_caster_base<gpuhash::bindings::Array> {
 public:
  bool load(handle source, bool convert) {
    if (!source.is_none()) return type_caster_base::load(source, convert);
    value = nullptr;
    return true;
  }
};
