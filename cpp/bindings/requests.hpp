#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gpuhash/table.hpp>
#include "bindings/array.hpp"

/// What Python gives for the batches of a call, checked so that nothing is read or written beyond an array.
namespace gpuhash::bindings {

using TablePointer = std::shared_ptr<Table>;

/// Of a column that is read: its number, the array of its values, and the fallback or None.
using PythonRead = std::tuple<std::size_t, const Array*, const Array*>;

/// Throws std::invalid_argument where the array is not dense, in the table's memory and of so many bytes.
void check_bytes(const Table& table, const Array& array, const char* role, std::size_t item_bytes, std::int64_t bytes);

/// The memory of an optional output.
template <class T>
T* output(const Table& table, const Array* array, const char* role, std::int64_t count) {
  if (array == nullptr) return nullptr;
  check_bytes(table, *array, role, sizeof(T), count * static_cast<std::int64_t>(sizeof(T)));
  if (array->readonly) throw std::invalid_argument(std::string(role) + " is read-only");
  return static_cast<T*>(array->data);
}

KeyBatch to_keys(const Table& table, const Array* keys);

/// `count`: values per column.
std::vector<Read> to_reads(const Table& table, const std::vector<PythonRead>& given, std::int64_t count);

/// look_up, change, erase and export_items.
void bind_requests(pybind11::class_<Table, TablePointer>& table);

}  // namespace gpuhash::bindings
