#include <gpuhash/table.hpp>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <deque>
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
#include "core/constants.hpp"

/// Methods take what they need from Python, check what would otherwise read or write beyond an array, and drop the GIL
/// before they call the table: a table waits for its mutex, and its memory resource may want the GIL.
namespace gpuhash::bindings {

namespace {

using TablePointer = std::shared_ptr<Table>;

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
                        std::int64_t key_elements, const std::optional<std::string>& value_dtype,
                        std::vector<std::int64_t> value_shape, std::int64_t capacity,
                        std::optional<std::int64_t> max_capacity, double max_load_factor, bool deterministic,
                        std::optional<std::uint64_t> seed, const std::optional<PythonInitializer>& initializer,
                        bool sharded, const std::vector<PythonColumn>& columns) {
  TableOptions options;
  options.key_dtype = dtype_from_name(key_dtype);
  options.key_elements = key_elements;
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
  const GilRelease unlocked;
  if (!sharded) return with_context(Table::make(options, contexts.at(0)), contexts.at(0));
  return with_context(ShardedTable::make(options, contexts), contexts.at(0));
}

// Arguments -----------------------------------------------------------------------------------------------------------

[[noreturn]] void refuse_size(const char* role, std::int64_t given, std::int64_t expected, const char* unit) {
  throw std::invalid_argument(std::string(role) + " has " + std::to_string(given) + " " + unit + ", expected " +
                              std::to_string(expected));
}

void check_bytes(const Table& table, const Array& array, const char* role, std::size_t item_bytes, std::int64_t bytes) {
  check_dense(table.context(), array, role);
  if (itemsize(array.dtype) != item_bytes)
    refuse_size(role, static_cast<std::int64_t>(itemsize(array.dtype)), static_cast<std::int64_t>(item_bytes),
                "bytes per element");
  if (array.bytes() != bytes) refuse_size(role, array.bytes(), bytes, "bytes");
}

/// The memory of an optional output.
template <class T>
T* output(const Table& table, const Array* array, const char* role, std::int64_t count) {
  if (array == nullptr) return nullptr;
  check_bytes(table, *array, role, sizeof(T), count * static_cast<std::int64_t>(sizeof(T)));
  if (array->readonly) throw std::invalid_argument(std::string(role) + " is read-only");
  return static_cast<T*>(array->data);
}

void* value_output(const Table& table, const Array* array, const char* role, std::int64_t count) {
  if (array == nullptr) return nullptr;
  const TableOptions& options = table.options();
  if (!options.value_dtype) throw std::invalid_argument(std::string(role) + " were given, but the table has no values");
  check_bytes(table, *array, role, itemsize(*options.value_dtype), count * options.value_bytes());
  if (array->readonly) throw std::invalid_argument(std::string(role) + " is read-only");
  return array->data;
}

const void* value_input(const Table& table, const Array& array, const char* role, std::int64_t count) {
  const TableOptions& options = table.options();
  if (!options.value_dtype) throw std::invalid_argument(std::string(role) + " were given, but the table has no values");
  check_bytes(table, array, role, itemsize(*options.value_dtype), count * options.value_bytes());
  return array.data;
}

std::int64_t count_keys(const Table& table, const Array& keys, const char* role) {
  const TableOptions& options = table.options();
  check_bytes(table, keys, role, itemsize(options.key_dtype), keys.bytes());
  if (keys.elements() % options.key_elements != 0)
    throw std::invalid_argument(std::string(role) + " has " + std::to_string(keys.elements()) +
                                " elements, expected a multiple of " + std::to_string(options.key_elements));
  return keys.elements() / options.key_elements;
}

/// The single value that a change is given; none for sets.
std::vector<Write> to_values(const Table& table, const Array* values, bool broadcast, std::int64_t count,
                             Action action) {
  if (values != nullptr) return {{0, value_input(table, *values, "values", broadcast ? 1 : count), broadcast, action}};
  if (table.options().value_dtype) throw std::invalid_argument("values are missing, and the table has values");
  return {};
}

/// That of find_or_insert: none where the table is to fill the rows of new keys.
std::vector<Write> to_row_values(const Table& table, const Array* values, bool broadcast, std::int64_t count) {
  if (values == nullptr) return {};
  return to_values(table, values, broadcast, count, Action::kKeep);
}

KeyBatch to_keys(const Table& table, const Array& keys) {
  return {keys.data, count_keys(table, keys, "keys"), table.options().key_bytes()};
}

// Operations ----------------------------------------------------------------------------------------------------------

/// The single value that a lookup reads; none where it is not asked for.
std::vector<Read> value_reads(const Table& table, std::int64_t count, const Array* values, const Array* fallback) {
  if (values == nullptr) return {};
  Read read{.values = value_output(table, values, "values", count)};
  if (fallback != nullptr) {
    read.fallback_per_key = fallback->bytes() != table.options().value_bytes();
    read.fallback = value_input(table, *fallback, "fallback", read.fallback_per_key ? count : 1);
  }
  return {read};
}

/// Of each column its number, the array of its values, and the fallback or None.
using PythonOutput = std::tuple<std::size_t, const Array*, const Array*>;
/// Of each column its number, its values, whether these are one value for all keys, and what becomes of it.
using PythonInput = std::tuple<std::size_t, const Array*, bool, std::string>;

const Column& column_at(const Table& table, std::size_t number) {
  const std::vector<Column>& columns = table.options().columns;
  if (number >= columns.size())
    throw std::invalid_argument("column " + std::to_string(number) + " was given, and the table has " +
                                std::to_string(columns.size()));
  return columns[number];
}

/// The array of a column's values, of so many keys.
void* column_array(const Table& table, const Column& column, const Array* array, std::int64_t count, bool is_output) {
  if (array == nullptr) throw std::invalid_argument("the values of the column \"" + column.name + "\" are missing");
  check_bytes(table, *array, column.name.c_str(), itemsize(column.dtype), count * column.bytes());
  if (is_output && array->readonly) throw std::invalid_argument(column.name + " is read-only");
  return array->data;
}

std::vector<Read> to_reads(const Table& table, const std::vector<PythonOutput>& given, std::int64_t count) {
  std::vector<Read> reads;
  for (const auto& [number, values, fallback] : given) {
    const Column& column = column_at(table, number);
    Read& read = reads.emplace_back(number, column_array(table, column, values, count, true));
    if (fallback != nullptr) {
      read.fallback_per_key = fallback->bytes() != column.bytes();
      read.fallback = column_array(table, column, fallback, read.fallback_per_key ? count : 1, false);
    }
  }
  return reads;
}

std::vector<Write> to_writes(const Table& table, const std::vector<PythonInput>& given, std::int64_t count) {
  std::vector<Write> writes;
  for (const auto& [number, values, broadcast, action] : given) {
    const Column& column = column_at(table, number);
    writes.emplace_back(number, column_array(table, column, values, broadcast ? 1 : count, false), broadcast,
                        named(kActions, action));
  }
  return writes;
}

std::int64_t find_columns(Table& table, const Array& keys, const std::vector<PythonOutput>& columns, const Array* found,
                          bool count_missing, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, keys);
  const std::vector<Read> reads = to_reads(table, columns, batch.count);
  const Lookup lookup{.keys = batch,
                      .reads = reads,
                      .found = output<bool>(table, found, "found", batch.count),
                      .count_missing = count_missing,
                      .stream = to_stream(table.context(), stream_address)};
  const GilRelease unlocked;
  return table.look_up(lookup);
}

void change_columns(Table& table, const Array& keys, const std::vector<PythonInput>& columns, const Array* rows,
                    const Array* inserted, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, keys);
  const std::vector<Write> writes = to_writes(table, columns, batch.count);
  const Change change{.keys = batch,
                      .writes = writes,
                      .inserted = output<bool>(table, inserted, "inserted", batch.count),
                      .rows = output<std::int64_t>(table, rows, "rows", batch.count),
                      .stream = to_stream(table.context(), stream_address)};
  const GilRelease unlocked;
  table.change(change);
}

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

void read_rows(Table& table, const Array& rows, const std::vector<PythonOutput>& columns,
               std::uintptr_t stream_address) {
  const std::int64_t count = count_rows(table, rows);
  const std::vector<Read> outputs = to_reads(table, columns, count);
  const Stream stream = to_stream(table.context(), stream_address);
  const GilRelease unlocked;
  table.read_rows(static_cast<const std::int64_t*>(rows.data), count, outputs, stream);
}

void pool_rows(Table& table, const Array& rows, const Array& offsets, const Array* factors, const PythonOutput& column,
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

std::int64_t find(Table& table, const Array& keys, const Array* values, const Array* found, const Array* fallback,
                  bool count_missing, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, keys);
  const std::vector<Read> reads = value_reads(table, batch.count, values, fallback);
  const Lookup lookup{.keys = batch,
                      .reads = reads,
                      .found = output<bool>(table, found, "found", batch.count),
                      .count_missing = count_missing,
                      .stream = to_stream(table.context(), stream_address)};
  const GilRelease unlocked;
  return table.look_up(lookup);
}

void check_single_column(std::size_t given) {
  if (given > 1)
    throw std::invalid_argument(std::to_string(given) + " columns were given, and the table has a single value");
}

/// Of tables with columns and without, whose single value is given as the one column 0.
std::vector<Read> to_any_reads(const Table& table, const std::vector<PythonOutput>& given, std::int64_t count) {
  if (!table.options().columns.empty()) return to_reads(table, given, count);
  check_single_column(given.size());
  if (given.empty()) return {};
  const auto& [number, values, fallback] = given.front();
  return value_reads(table, count, values, fallback);
}

std::int64_t find_and_erase(Table& table, const Array& keys, const std::vector<PythonOutput>& columns,
                            bool count_missing, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, keys);
  const std::vector<Read> reads = to_any_reads(table, columns, batch.count);
  const Erasure erasure{.keys = batch,
                        .reads = reads,
                        .all_or_none = count_missing,
                        .stream = to_stream(table.context(), stream_address)};
  const GilRelease unlocked;
  return table.erase(erasure);
}

void insert_and_find(Table& table, const Array& keys, const std::vector<PythonInput>& inputs,
                     const std::vector<PythonOutput>& columns, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, keys);
  std::vector<Write> writes;
  if (!table.options().columns.empty()) {
    writes = to_writes(table, inputs, batch.count);
  } else if (!inputs.empty()) {
    check_single_column(inputs.size());
    const auto& [number, array, broadcast, action] = inputs.front();
    writes = to_row_values(table, array, broadcast, batch.count);
  }
  const std::vector<Read> reads = to_any_reads(table, columns, batch.count);
  const Change change{
      .keys = batch, .writes = writes, .reads = reads, .stream = to_stream(table.context(), stream_address)};
  const GilRelease unlocked;
  table.change(change);
}

void rows(Table& table, const Array& keys, const Array& rows, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, keys);
  if (!table.options().has_rows()) throw std::invalid_argument("the table has no row storage");
  const Lookup lookup{.keys = batch,
                      .rows = output<std::int64_t>(table, &rows, "rows", batch.count),
                      .stream = to_stream(table.context(), stream_address)};
  const GilRelease unlocked;
  table.look_up(lookup);
}

/// "keep", "assign" or an operation.
void change_values(Table& table, const Array& keys, const Array* values, bool broadcast, const std::string& action,
                   const Array* inserted, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, keys);
  const std::vector<Write> writes = to_values(table, values, broadcast, batch.count, named(kActions, action));
  const Change change{.keys = batch,
                      .writes = writes,
                      .inserted = output<bool>(table, inserted, "inserted", batch.count),
                      .stream = to_stream(table.context(), stream_address)};
  const GilRelease unlocked;
  table.change(change);
}

void find_or_insert(Table& table, const Array& keys, const Array* values, bool broadcast, const Array& rows,
                    const Array& inserted, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, keys);
  if (!table.options().has_rows()) throw std::invalid_argument("the table has no row storage");
  const std::vector<Write> writes = to_row_values(table, values, broadcast, batch.count);
  const Change change{.keys = batch,
                      .writes = writes,
                      .inserted = output<bool>(table, &inserted, "inserted", batch.count),
                      .rows = output<std::int64_t>(table, &rows, "rows", batch.count),
                      .stream = to_stream(table.context(), stream_address)};
  const GilRelease unlocked;
  table.change(change);
}

void restore_rows(Table& table, const Array& keys, const Array& rows, std::uintptr_t stream_address) {
  const std::int64_t count = count_keys(table, keys, "keys");
  check_bytes(table, rows, "rows", sizeof(std::int64_t), count * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const Stream stream = to_stream(table.context(), stream_address);
  const GilRelease unlocked;
  table.restore_rows({keys.data, count, table.options().key_bytes()}, static_cast<const std::int64_t*>(rows.data),
                     stream);
}

void erase(Table& table, const Array& keys, const Array* erased, std::uintptr_t stream_address) {
  const KeyBatch batch = to_keys(table, keys);
  const Erasure erasure{.keys = batch,
                        .erased = output<bool>(table, erased, "erased", batch.count),
                        .stream = to_stream(table.context(), stream_address)};
  const GilRelease unlocked;
  table.erase(erasure);
}

std::int64_t export_columns(Table& table, const Array* keys, const std::vector<PythonOutput>& columns,
                            std::uintptr_t stream_address) {
  std::int64_t count = 0;
  if (keys != nullptr) {
    count = count_keys(table, *keys, "keys");
    if (keys->readonly) throw std::invalid_argument("keys is read-only");
  } else if (!columns.empty() && std::get<1>(columns.front()) != nullptr) {
    count = std::get<1>(columns.front())->bytes() / column_at(table, std::get<0>(columns.front())).bytes();
  }
  const std::vector<Read> outputs = to_reads(table, columns, count);
  const Stream stream = to_stream(table.context(), stream_address);
  const GilRelease unlocked;
  return table.export_items(
      {.keys = keys == nullptr ? nullptr : keys->data, .reads = outputs, .room = count, .stream = stream});
}

std::int64_t export_items(Table& table, const Array* keys, const Array* values, const Array* rows,
                          std::uintptr_t stream_address) {
  const TableOptions& options = table.options();
  std::int64_t count = 0;
  if (keys != nullptr) {
    count = count_keys(table, *keys, "keys");
    if (keys->readonly) throw std::invalid_argument("keys is read-only");
  } else if (values != nullptr) {
    count = values->bytes() / std::max<std::int64_t>(1, options.value_bytes());
  } else if (rows != nullptr) {
    count = rows->elements();
  }
  const std::vector<Read> reads = value_reads(table, count, values, nullptr);
  if (rows != nullptr && !options.has_rows()) throw std::invalid_argument("the table has no row storage");
  auto* const row_data = output<std::int64_t>(table, rows, "rows", count);
  const Stream stream = to_stream(table.context(), stream_address);
  const GilRelease unlocked;
  return table.export_items({.keys = keys == nullptr ? nullptr : keys->data,
                             .reads = reads,
                             .rows = row_data,
                             .room = count,
                             .stream = stream});
}

Buffer row_storage(const TablePointer& table, std::uintptr_t stream_address) {
  const TableOptions& options = table->options();
  if (!options.has_rows())
    throw std::invalid_argument("the table has no row storage: scalars of up to 8 bytes lie beside their keys");
  if (!options.value_dtype) throw std::invalid_argument("the rows of the table have columns: ask for one of them");
  const ContextPointer context = context_of(table);
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  RowStorage storage = table->row_storage(stream);
  std::vector<std::int64_t> shape = {storage.row_count};
  shape.insert(shape.end(), options.value_shape.begin(), options.value_shape.end());
  return {context, data_of(std::move(storage.memory)), *options.value_dtype, std::move(shape), stream};
}

Buffer column_storage(const TablePointer& table, std::size_t number, bool all_rows, std::uintptr_t stream_address) {
  const Column& column = column_at(*table, number);
  const RowLayout layout = place_columns(table->options().columns);
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
    buffer.memory = {std::move(buffer.memory), rows + layout.offsets[number]};
  buffer.shape.insert(buffer.shape.end(), column.shape.begin(), column.shape.end());
  buffer.strides.resize(buffer.shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = buffer.shape.size(); axis-- > 1;) {
    buffer.strides[axis] = stride;
    stride *= buffer.shape[axis];
  }
  buffer.strides[0] = layout.bytes / static_cast<std::int64_t>(itemsize(column.dtype));
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

/// What Python gives for each batch of a call with several.
using FindPart = std::tuple<TablePointer, const Array*, const Array*, const Array*, const Array*, const Array*,
                            std::uintptr_t>;  // table, keys, values, found, rows, fallback, stream
using ChangePart = std::tuple<TablePointer, const Array*, const Array*, bool, const Array*,
                              std::uintptr_t>;  // table, keys, values, broadcast, mask, stream

/// Requests, and the columns that each of them reads or writes.
template <class Request, class Item>
struct Requests {
  std::vector<Request> all;
  std::deque<std::vector<Item>> columns;

  /// The columns stay where they are.
  Span<const Item> keep(std::vector<Item> items) { return columns.emplace_back(std::move(items)); }
};

void find_parts(Table& table, const std::vector<FindPart>& given) {
  Requests<Lookup, Read> requests;
  for (const auto& [view, keys, values, found, rows, fallback, stream] : given) {
    const KeyBatch batch = to_keys(*view, *keys);
    requests.all.push_back({.keys = batch,
                            .reads = requests.keep(value_reads(*view, batch.count, values, fallback)),
                            .found = output<bool>(*view, found, "found", batch.count),
                            .rows = output<std::int64_t>(*view, rows, "rows", batch.count),
                            .stream = to_stream(view->context(), stream),
                            .view = &sharded(*view)});
  }
  const GilRelease unlocked;
  table.look_up(requests.all);
}

/// values_of(view, values, broadcast, count) says what of the values there is to be.
template <class ValuesOf>
Requests<Change, Write> change_parts(const std::vector<ChangePart>& given, ValuesOf values_of) {
  Requests<Change, Write> requests;
  for (const auto& [view, keys, values, broadcast, mask, stream] : given) {
    const KeyBatch batch = to_keys(*view, *keys);
    requests.all.push_back({.keys = batch,
                            .writes = requests.keep(values_of(*view, values, broadcast, batch.count)),
                            .inserted = output<bool>(*view, mask, "mask", batch.count),
                            .stream = to_stream(view->context(), stream),
                            .view = &sharded(*view)});
  }
  return requests;
}

/// "keep", "assign" or an operation.
void change_values_parts(Table& table, const std::vector<ChangePart>& given, const std::string& name) {
  const Action action = named(kActions, name);
  const auto requests =
      change_parts(given, [&](const Table& view, const Array* values, bool broadcast, std::int64_t count) {
        return to_values(view, values, broadcast, count, action);
      });
  const GilRelease unlocked;
  table.change(requests.all);
}

/// Given with their rows.
void find_or_insert_parts(Table& table, const std::vector<ChangePart>& given, const std::vector<const Array*>& rows) {
  Requests<Change, Write> requests = change_parts(given, to_row_values);
  if (rows.size() != given.size()) throw std::invalid_argument("rows are not one array for each part");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Change& change = requests.all[i];
    change.rows = output<std::int64_t>(*std::get<0>(given[i]), rows[i], "rows", change.keys.count);
  }
  const GilRelease unlocked;
  table.change(requests.all);
}

/// What Python gives for each batch of a call with columns: table, keys, columns, found, stream.
using FindColumnsPart = std::tuple<TablePointer, const Array*, std::vector<PythonOutput>, const Array*, std::uintptr_t>;
/// Table, keys, columns, rows, mask, stream.
using ChangeColumnsPart =
    std::tuple<TablePointer, const Array*, std::vector<PythonInput>, const Array*, const Array*, std::uintptr_t>;

void find_columns_parts(Table& table, const std::vector<FindColumnsPart>& given) {
  Requests<Lookup, Read> requests;
  for (const auto& [view, keys, columns, found, stream] : given) {
    const KeyBatch batch = to_keys(*view, *keys);
    requests.all.push_back({.keys = batch,
                            .reads = requests.keep(to_reads(*view, columns, batch.count)),
                            .found = output<bool>(*view, found, "found", batch.count),
                            .stream = to_stream(view->context(), stream),
                            .view = &sharded(*view)});
  }
  const GilRelease unlocked;
  table.look_up(requests.all);
}

void change_columns_parts(Table& table, const std::vector<ChangeColumnsPart>& given) {
  Requests<Change, Write> requests;
  for (const auto& [view, keys, columns, rows, mask, stream] : given) {
    const KeyBatch batch = to_keys(*view, *keys);
    requests.all.push_back({.keys = batch,
                            .writes = requests.keep(to_writes(*view, columns, batch.count)),
                            .inserted = output<bool>(*view, mask, "mask", batch.count),
                            .rows = output<std::int64_t>(*view, rows, "rows", batch.count),
                            .stream = to_stream(view->context(), stream),
                            .view = &sharded(*view)});
  }
  const GilRelease unlocked;
  table.change(requests.all);
}

void erase_parts(Table& table, const std::vector<ChangePart>& given) {
  std::vector<Erasure> requests;
  for (const auto& [view, keys, values, broadcast, mask, stream] : given) {
    const KeyBatch batch = to_keys(*view, *keys);
    requests.push_back({.keys = batch,
                        .erased = output<bool>(*view, mask, "mask", batch.count),
                        .stream = to_stream(view->context(), stream),
                        .view = &sharded(*view)});
  }
  const GilRelease unlocked;
  table.erase(requests);
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
  py::class_<Table, TablePointer>(module, "Table", py::is_final(), "A hash table with its dtypes erased.")
      .def(py::init(&make_table), py::arg("contexts"), py::arg("key_dtype"), py::arg("key_elements"),
           py::arg("value_dtype"), py::arg("value_shape"), py::arg("capacity"), py::arg("max_capacity"),
           py::arg("max_load_factor"), py::arg("deterministic"), py::arg("seed"), py::arg("initializer"),
           py::arg("sharded"), py::arg("columns") = std::vector<PythonColumn>())
      .def_property_readonly("context", &context_of)
      .def_property_readonly("key_dtype", [](const Table& table) { return name(table.options().key_dtype); })
      .def_property_readonly("key_elements", [](const Table& table) { return table.options().key_elements; })
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
      .def("find", &find, keys, py::arg("values"), py::arg("found"), py::arg("fallback"), py::arg("count_missing"),
           stream)
      .def("rows", &rows, keys, py::arg("rows"), stream)
      .def("insert", &change_values, keys, py::arg("values"), py::arg("broadcast"), py::arg("mode"),
           py::arg("inserted"), stream)
      .def("find_or_insert", &find_or_insert, keys, py::arg("values"), py::arg("broadcast"), py::arg("rows"),
           py::arg("inserted"), py::arg("stream"))
      .def("restore_rows", &restore_rows, keys, py::arg("rows"), stream)
      .def("apply", &change_values, keys, py::arg("values"), py::arg("broadcast"), py::arg("op"), py::arg("inserted"),
           stream)
      .def("erase", &erase, keys, py::arg("erased"), stream)
      .def("find_and_erase", &find_and_erase, keys, py::arg("columns"), py::arg("count_missing"), stream)
      .def("insert_and_find", &insert_and_find, keys, py::arg("inputs"), py::arg("columns"), stream)
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
      .def("export_items", &export_items, keys, py::arg("values"), py::arg("rows"), stream)
      .def("row_storage", &row_storage, stream)
      .def_property_readonly("columns", &columns_of)
      .def("find_columns", &find_columns, keys, py::arg("columns"), py::arg("found"), py::arg("count_missing"), stream)
      .def("change_columns", &change_columns, keys, py::arg("columns"), py::arg("rows"), py::arg("inserted"), stream)
      .def("export_columns", &export_columns, keys, py::arg("columns"), stream)
      .def("column_storage", &column_storage, py::arg("column"), py::arg("all_rows"), stream)
      .def("read_rows", &read_rows, py::arg("rows"), py::arg("columns"), stream)
      .def("pool_rows", &pool_rows, py::arg("rows"), py::arg("offsets"), py::arg("factors"), py::arg("column"), stream)
      .def("train", &train, py::arg("rows"), py::arg("gradients"), py::arg("item_of"), py::arg("factors"),
           py::arg("columns"), py::arg("step"), stream)
      .def("find_columns_parts", &find_columns_parts, py::arg("parts"))
      .def("change_columns_parts", &change_columns_parts, py::arg("parts"))
      .def("overlaps_rows", &overlaps_rows, py::arg("array"))
      .def("constant", &constant, py::arg("value"), stream)
      .def("clone", &clone, py::arg("context"), stream)
      .def_property_readonly("shards", &shards)
      .def("at", &at, py::arg("context"))
      .def("find_parts", &find_parts, py::arg("parts"))
      .def("insert_parts", &change_values_parts, py::arg("parts"), py::arg("mode"))
      .def("find_or_insert_parts", &find_or_insert_parts, py::arg("parts"), py::arg("rows"))
      .def("apply_parts", &change_values_parts, py::arg("parts"), py::arg("op"))
      .def("erase_parts", &erase_parts, py::arg("parts"));
}

}  // namespace gpuhash::bindings
