#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/context.hpp"
#include "bindings/gil.hpp"
#include "table/executor.hpp"
#include "table/wide_keys.hpp"

/// Keys of several columns, side by side in rows of bytes.
namespace gpuhash::bindings {

namespace {

using MoveColumn = void (WideKeys::*)(DeviceContext&, const PackedColumn&, Stream) const;

/// Each column with its part of the rows, into which, or out of which, it is moved.
void move_columns(const ContextPointer& context, const std::vector<const Array*>& columns, const Array& rows,
                  std::uintptr_t stream_address, MoveColumn move, bool packs) {
  check_dense(*context, rows, "rows");
  std::int64_t stride = 0;
  for (const Array* const column : columns) stride += static_cast<std::int64_t>(itemsize(column->dtype));
  const std::int64_t count = columns.empty() ? 0 : columns.front()->elements();
  if (rows.bytes() != count * stride)
    throw std::invalid_argument("rows has " + std::to_string(rows.bytes()) + " bytes, expected " +
                                std::to_string(count * stride));
  if (packs && rows.readonly) throw std::invalid_argument("rows is read-only");
  std::vector<PackedColumn> moved;
  std::int64_t offset = 0;
  for (const Array* const column : columns) {
    check_dense(*context, *column, "a column");
    if (column->elements() != count)
      throw std::invalid_argument("a column has " + std::to_string(column->elements()) + " elements, expected " +
                                  std::to_string(count));
    if (!packs && column->readonly) throw std::invalid_argument("a column is read-only");
    const auto bytes = static_cast<std::int64_t>(itemsize(column->dtype));
    moved.push_back({column->data, static_cast<std::byte*>(rows.data) + offset, stride, count, bytes});
    offset += bytes;
  }
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  if (count == 0) return;
  for (const PackedColumn& column : moved) (context->executors().wide_keys->*move)(*context, column, stream);
}

}  // namespace

void bind_packed_keys(py::module_& module) {
  const auto context = py::arg("context");
  const auto columns = py::arg("columns");
  const auto rows = py::arg("rows");
  const auto stream = py::arg("stream");
  module.def(
      "pack_columns",
      [](const ContextPointer& where, const std::vector<const Array*>& from, const Array& to, std::uintptr_t on) {
        move_columns(where, from, to, on, &WideKeys::pack, true);
      },
      context, columns, rows, stream);
  module.def(
      "unpack_columns",
      [](const ContextPointer& where, const std::vector<const Array*>& to, const Array& from, std::uintptr_t on) {
        move_columns(where, to, from, on, &WideKeys::unpack, false);
      },
      context, columns, rows, stream);
}

}  // namespace gpuhash::bindings
