#include <gpuhash/table.hpp>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <gpuhash/names.hpp>
#include <gpuhash/sharded_table.hpp>
#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/buffer.hpp"
#include "bindings/context.hpp"
#include "bindings/gil.hpp"
#include "bindings/requests.hpp"
#include "core/constants.hpp"

/// Methods take what they need from Python, check what would otherwise read or write beyond an array, and drop the GIL
/// before they call the table: a table waits for its mutex, and its memory resource may want the GIL.
namespace gpuhash::bindings {

namespace {

/// Deleter of a shared table: keeps the context's owner, which the table's interface does not hand out, findable.
///
/// It lies beside the count of weak pointers, and so as long as one of them does, such as a handle's. Therefore it
/// gives the table up when it is called, and not when it ends.
struct TableOwner {
  ContextPointer context;
  TablePointer table;
  void operator()(Table*) noexcept {
    table.reset();
    context.reset();
  }
};

TablePointer with_context(TablePointer table, ContextPointer context) {
  Table* const address = table.get();
  return {address, TableOwner{std::move(context), std::move(table)}};
}

/// A table that another extension made keeps its context alive itself.
ContextPointer context_of(const TablePointer& table) {
  if (const TableOwner* owner = std::get_deleter<TableOwner>(table)) return owner->context;
  return {table, &table->context()};
}

/// Distribution, its two parameters, the seed, and the bytes of a constant element.
using PythonInitializer = std::tuple<std::string, double, double, std::uint64_t, py::bytes>;

/// A column's name, dtype, shape, and initializer.
using PythonColumn = std::tuple<std::string, std::string, std::vector<std::int64_t>, std::optional<PythonInitializer>>;

/// A key column's name and dtype.
using PythonKeyField = std::pair<std::string, std::string>;

std::optional<Initializer> to_initializer(const std::optional<PythonInitializer>& given) {
  if (!given) return std::nullopt;
  const auto& [distribution, first, second, seed, constant] = *given;
  Initializer made{named(kDistributions, distribution), first, second, seed, {}};
  const auto bytes = static_cast<std::string_view>(constant);
  if (bytes.size() > made.constant.size()) throw std::invalid_argument("the constant is longer than an element");
  std::memcpy(made.constant.data(), bytes.data(), bytes.size());
  return made;
}

std::optional<PythonInitializer> from_initializer(const std::optional<Initializer>& initializer, DType dtype) {
  if (!initializer) return std::nullopt;
  const Initializer& from = *initializer;
  const auto* const name =
      std::ranges::find(kDistributions, from.distribution, &decltype(kDistributions)::value_type::second);
  const bool constant = from.distribution == Distribution::kConstant;
  return PythonInitializer{
      name->first, from.first, from.second, from.seed,
      py::bytes(reinterpret_cast<const char*>(from.constant.data()), constant ? itemsize(dtype) : 0)};
}

py::list key_columns_of(const Table& table) {
  py::list columns;
  for (const KeyField& column : table.options().key_columns)
    columns.append(py::make_tuple(column.name, name(column.dtype)));
  return columns;
}

py::tuple key_shape_of(const Table& table) {
  const TableOptions& options = table.options();
  if (!options.key_shape.empty() || options.key_elements == 1) return to_tuple(options.key_shape);
  return to_tuple(std::vector<std::int64_t>{options.key_elements});
}

std::optional<PythonInitializer> initializer_of(const Table& table) {
  const TableOptions& options = table.options();
  return from_initializer(options.initializer, options.value_dtype.value_or(DType::kBool));
}

py::list columns_of(const Table& table) {
  py::list columns;
  for (const Column& column : table.options().columns)
    columns.append(py::make_tuple(column.name, name(column.dtype), to_tuple(column.shape),
                                  from_initializer(column.initializer, column.dtype)));
  return columns;
}

/// One context: a table there. Several: one of several shards, whose calls' arrays lie on the first one's device.
TablePointer make_table(const std::vector<ContextPointer>& contexts, const std::string& key_dtype,
                        std::vector<std::int64_t> key_shape, const std::optional<std::string>& value_dtype,
                        std::vector<std::int64_t> value_shape, std::int64_t capacity,
                        std::optional<std::int64_t> max_capacity, double max_load_factor, bool deterministic,
                        std::optional<std::uint64_t> seed, const std::optional<PythonInitializer>& initializer,
                        bool sharded, const std::vector<PythonColumn>& columns,
                        const std::vector<PythonKeyField>& key_columns) {
  TableOptions options;
  options.key_dtype = dtype_from_name(key_dtype);
  for (const std::int64_t extent : key_shape) options.key_elements *= extent;
  options.key_shape = std::move(key_shape);
  if (value_dtype) options.value_dtype = dtype_from_name(*value_dtype);
  options.value_shape = std::move(value_shape);
  options.capacity = capacity;
  options.max_capacity = max_capacity;
  options.max_load_factor = max_load_factor;
  options.deterministic = deterministic;
  options.seed = seed;
  options.initializer = to_initializer(initializer);
  for (const auto& [name, dtype, shape, initial] : columns)
    options.columns.push_back({name, dtype_from_name(dtype), shape, to_initializer(initial)});
  for (const auto& [name, dtype] : key_columns) options.key_columns.push_back({name, dtype_from_name(dtype)});
  const GilRelease unlocked;
  if (!sharded) return with_context(Table::make(options, contexts.at(0)), contexts.at(0));
  return with_context(ShardedTable::make(options, contexts), contexts.at(0));
}

/// A single value in row storage is column 0.
Column column_at(const Table& table, std::size_t number) {
  const TableOptions& options = table.options();
  if (!options.has_rows())
    throw std::invalid_argument("the table has no row storage: scalars of up to 8 bytes lie beside their keys");
  if (number >= options.column_count())
    throw std::invalid_argument("column " + std::to_string(number) + " was given, and the table has " +
                                std::to_string(options.column_count()));
  if (!options.columns.empty()) return options.columns[number];
  return {"", *options.value_dtype, options.value_shape, std::nullopt};
}

// Rows by their numbers -----------------------------------------------------------------------------------------------

std::int64_t count_rows(const Table& table, const Array& rows) {
  if (rows.dtype != DType::kInt64)
    throw std::invalid_argument("rows are " + std::string(name(rows.dtype)) + ", expected int64");
  check_bytes(table, rows, "rows", sizeof(std::int64_t), rows.bytes());
  return rows.bytes() / static_cast<std::int64_t>(sizeof(std::int64_t));
}

const float* to_factors(const Table& table, const Array* factors, std::int64_t count) {
  if (factors == nullptr) return nullptr;
  if (factors->dtype != DType::kFloat32)
    throw std::invalid_argument("factors are " + std::string(name(factors->dtype)) + ", expected float32");
  check_bytes(table, *factors, "factors", sizeof(float), count * static_cast<std::int64_t>(sizeof(float)));
  return static_cast<const float*>(factors->data);
}

void read_rows(Table& table, const Array& rows, const std::vector<PythonRead>& columns, std::uintptr_t stream_address) {
  const std::int64_t count = count_rows(table, rows);
  const std::vector<Read> outputs = to_reads(table, columns, count);
  const Stream stream = to_stream(table.context(), stream_address);
  const GilRelease unlocked;
  table.read_rows(static_cast<const std::int64_t*>(rows.data), count, outputs, stream);
}

void pool_rows(Table& table, const Array& rows, const Array& offsets, const Array* factors, const PythonRead& column,
               std::uintptr_t stream_address) {
  const std::int64_t count = count_rows(table, rows);
  const std::int64_t bags = offsets.bytes() / static_cast<std::int64_t>(sizeof(std::int64_t)) - 1;
  if (bags < 0) throw std::invalid_argument("offsets is empty, expected one more than there are bags");
  check_bytes(table, offsets, "offsets", sizeof(std::int64_t), offsets.bytes());
  const std::vector<Read> outputs = to_reads(table, {column}, bags);
  if (outputs.front().fallback_per_key) throw std::invalid_argument("the fallback is of several rows, expected one");
  const Bags given{static_cast<const std::int64_t*>(offsets.data), bags, to_factors(table, factors, count)};
  const Stream stream = to_stream(table.context(), stream_address);
  const GilRelease unlocked;
  table.pool_rows(static_cast<const std::int64_t*>(rows.data), count, given, outputs.front(), stream);
}

void train(Table& table, const Array& rows, const Array& gradients, const Array* item_of, const Array* factors,
           const std::vector<std::size_t>& columns, const OptimizerStep& step, std::uintptr_t stream_address) {
  const std::int64_t count = count_rows(table, rows);
  const std::int64_t weights = columns.empty() ? 1 : column_at(table, columns.front()).elements();
  const std::int64_t row_bytes = weights * static_cast<std::int64_t>(itemsize(gradients.dtype));
  const std::int64_t items = item_of == nullptr || row_bytes == 0 ? count : gradients.bytes() / row_bytes;
  check_bytes(table, gradients, "gradients", itemsize(gradients.dtype), items * row_bytes);
  Gradients given{gradients.data, gradients.dtype, nullptr, to_factors(table, factors, count)};
  if (item_of != nullptr) {
    check_bytes(table, *item_of, "item_of", sizeof(std::int64_t),
                count * static_cast<std::int64_t>(sizeof(std::int64_t)));
    given.item_of = static_cast<const std::int64_t*>(item_of->data);
  }
  const Stream stream = to_stream(table.context(), stream_address);
  const GilRelease unlocked;
  table.train(static_cast<const std::int64_t*>(rows.data), count, given, columns, step, stream);
}

void restore_rows(Table& table, const Array& keys, const Array& rows, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, &keys);
  check_bytes(table, rows, "rows", sizeof(std::int64_t), batch.count * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const Stream stream = to_stream(table.context(), stream_address);
  const GilRelease unlocked;
  table.restore_rows(batch, static_cast<const std::int64_t*>(rows.data), stream);
}

Buffer column_storage(const TablePointer& table, std::size_t number, bool all_rows, std::uintptr_t stream_address) {
  const Column column = column_at(*table, number);
  const ContextPointer context = context_of(table);
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  RowStorage storage = table->row_storage(stream);
  Buffer buffer{context,
                data_of(std::move(storage.memory)),
                column.dtype,
                {all_rows ? storage.capacity : storage.row_count},
                stream};
  if (auto* const rows = static_cast<std::byte*>(buffer.memory.get()); rows != nullptr)
    buffer.memory = {std::move(buffer.memory), rows + storage.layout.offsets[number]};
  buffer.shape.insert(buffer.shape.end(), column.shape.begin(), column.shape.end());
  if (storage.layout.bytes == column.bytes()) return buffer;
  buffer.strides.resize(buffer.shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = buffer.shape.size(); axis-- > 1;) {
    buffer.strides[axis] = stride;
    stride *= buffer.shape[axis];
  }
  buffer.strides[0] = storage.layout.bytes / static_cast<std::int64_t>(itemsize(column.dtype));
  return buffer;
}

Array constant(const TablePointer& table, const Array& value, std::uintptr_t stream_address) {
  const TableOptions& options = table->options();
  const bool has_room = options.columns.empty() ? value.bytes() == options.value_bytes()
                                                : value.bytes() > 0 && value.bytes() <= options.row_bytes();
  if (value.device.platform != "cpu" || !value.contiguous || !has_room)
    throw std::invalid_argument("the constant is no value on the host");
  if (table->context().device().platform == "cpu") return value;
  Array on_device = value;
  on_device.tensor = py::object();
  on_device.device = table->context().device();
  const Stream stream = to_stream(table->context(), stream_address);
  Allocation temporary;
  const void* data = nullptr;
  {
    const GilRelease unlocked;
    const std::string_view bytes(static_cast<const char*>(value.data), static_cast<std::size_t>(value.bytes()));
    data = table->constants().upload(bytes, stream, temporary);
  }
  if (data == nullptr)
    throw std::invalid_argument(
        "the default is not in the GPU's memory yet, and cannot be copied there while a CUDA graph is captured: make "
        "the "
        "same call once before the capture, or give the default as an array on the GPU");
  on_device.data = const_cast<void*>(data);
  if (temporary.get() != nullptr)
    on_device.memory = data_of(std::make_shared<Allocation>(std::move(temporary)));
  else
    on_device.memory = {table, on_device.data};
  return on_device;
}

bool overlaps_rows(const Table& table, const Array& array) {
  if (!table.options().has_rows() || !(array.device == table.context().device())) return false;
  const MemoryRange range = array.range();
  const GilRelease unlocked;
  return table.overlaps_rows(range);
}

// Several shards ------------------------------------------------------------------------------------------------------

ShardedTable& sharded(Table& table) {
  if (auto* const made = dynamic_cast<ShardedTable*>(&table)) return *made;
  throw std::invalid_argument("the table has no shards");
}

/// Empty for a single table.
std::vector<TablePointer> shards(const TablePointer& table) {
  std::vector<TablePointer> found;
  if (const auto* const made = dynamic_cast<const ShardedTable*>(table.get()))
    for (const std::shared_ptr<Table>& shard : made->shards())
      found.push_back(with_context(shard, {shard, &shard->context()}));
  return found;
}

TablePointer at(Table& table, const ContextPointer& context) {
  return with_context(sharded(table).at(context->device()), context);
}

TablePointer clone(Table& table, const ContextPointer& context, std::uintptr_t stream_address) {
  // The stream is one of the CUDA device that is part of it, if any.
  const bool on_cpu = table.context().device().platform == "cpu" && context->device().platform == "cpu";
  const Stream stream = on_cpu ? nullptr : reinterpret_cast<Stream>(stream_address);
  const GilRelease unlocked;
  return with_context(table.clone(context, stream), context);
}

}  // namespace

void bind_table(py::module_& module) {
  using unlocked = py::call_guard<GilRelease>;
  py::class_<OptimizerStep>(module, "OptimizerStep", py::is_final(), "What an optimizer does, and with which numbers.")
      .def(py::init([](const std::string& optimizer, double learning_rate, double beta1, double beta2, double epsilon,
                       double weight_decay, std::int64_t number, bool stochastic_rounding, std::uint64_t seed) {
             return OptimizerStep{
                 named(kOptimizers, optimizer), learning_rate, beta1, beta2, epsilon, weight_decay, number,
                 stochastic_rounding,           seed};
           }),
           py::arg("optimizer"), py::arg("learning_rate"), py::arg("beta1"), py::arg("beta2"), py::arg("epsilon"),
           py::arg("weight_decay"), py::arg("number"), py::arg("stochastic_rounding"), py::arg("seed"));
  const auto keys = py::arg("keys");
  const auto stream = py::arg("stream");
  py::class_<Table, TablePointer> made(module, "Table", py::is_final(), "A hash table with its dtypes erased.");
  bind_requests(made);
  made.def(py::init(&make_table), py::arg("contexts"), py::arg("key_dtype"), py::arg("key_shape"),
           py::arg("value_dtype"), py::arg("value_shape"), py::arg("capacity"), py::arg("max_capacity"),
           py::arg("max_load_factor"), py::arg("deterministic"), py::arg("seed"), py::arg("initializer"),
           py::arg("sharded"), py::arg("columns") = std::vector<PythonColumn>(),
           py::arg("key_columns") = std::vector<PythonKeyField>())
      .def_property_readonly("context", &context_of)
      .def_property_readonly("key_dtype", [](const Table& table) { return name(table.options().key_dtype); })
      .def_property_readonly("key_shape", &key_shape_of)
      .def_property_readonly("key_columns", &key_columns_of)
      .def_property_readonly("value_dtype",
                             [](const Table& table) -> std::optional<std::string> {
                               const std::optional<DType>& dtype = table.options().value_dtype;
                               return dtype ? std::optional<std::string>(name(*dtype)) : std::nullopt;
                             })
      .def_property_readonly("value_shape", [](const Table& table) { return to_tuple(table.options().value_shape); })
      .def_property_readonly("has_rows", [](const Table& table) { return table.options().has_rows(); })
      .def_property_readonly("deterministic", [](const Table& table) { return table.options().deterministic; })
      .def_property_readonly("seed", py::cpp_function(&Table::seed, unlocked()))
      .def_property_readonly("initializer", &initializer_of)
      .def_property_readonly("max_capacity", [](const Table& table) { return table.options().max_capacity; })
      .def_property_readonly("capacity", py::cpp_function(&Table::capacity, unlocked()))
      .def_property_readonly("nbytes", py::cpp_function(&Table::nbytes, unlocked()))
      .def_property("max_load_factor", py::cpp_function(&Table::max_load_factor, unlocked()),
                    py::cpp_function(&Table::set_max_load_factor, unlocked()))
      .def(
          "size",
          [](Table& table, std::uintptr_t stream_address) {
            return table.size(to_stream(table.context(), stream_address));
          },
          stream, unlocked())
      .def("restore_rows", &restore_rows, keys, py::arg("rows"), stream)
      .def(
          "clear",
          [](Table& table, std::uintptr_t stream_address) {
            return table.clear(to_stream(table.context(), stream_address));
          },
          stream, unlocked())
      .def(
          "reserve",
          [](Table& table, std::int64_t count, std::uintptr_t stream_address) {
            return table.reserve(count, to_stream(table.context(), stream_address));
          },
          keys, stream, unlocked())
      .def(
          "rehash",
          [](Table& table, std::int64_t slots, bool compact_rows, std::uintptr_t stream_address) {
            return table.rehash(slots, compact_rows, to_stream(table.context(), stream_address));
          },
          py::arg("slots"), py::arg("compact_rows"), stream, unlocked())
      .def(
          "fix_in_place",
          [](Table& table, std::uintptr_t stream_address) {
            return table.fix_in_place(to_stream(table.context(), stream_address));
          },
          stream, unlocked())
      .def_property_readonly("columns", &columns_of)
      .def("column_storage", &column_storage, py::arg("column"), py::arg("all_rows"), stream)
      .def("read_rows", &read_rows, py::arg("rows"), py::arg("columns"), stream)
      .def("pool_rows", &pool_rows, py::arg("rows"), py::arg("offsets"), py::arg("factors"), py::arg("column"), stream)
      .def("train", &train, py::arg("rows"), py::arg("gradients"), py::arg("item_of"), py::arg("factors"),
           py::arg("columns"), py::arg("step"), stream)
      .def("overlaps_rows", &overlaps_rows, py::arg("array"))
      .def("constant", &constant, py::arg("value"), stream)
      .def("clone", &clone, py::arg("context"), stream)
      .def_property_readonly("shards", &shards)
      .def_property_readonly("owner_seed", [](Table& table) { return sharded(table).owner_seed(); })
      .def("at", &at, py::arg("context"));
}

}  // namespace gpuhash::bindings
