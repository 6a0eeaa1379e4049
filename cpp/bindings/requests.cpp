#include "bindings/requests.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <deque>
#include <utility>

#include <gpuhash/names.hpp>
#include <gpuhash/sharded_table.hpp>
#include "bindings/buffer.hpp"
#include "bindings/context.hpp"
#include "bindings/gil.hpp"

namespace gpuhash::bindings {

namespace {

/// Of a column that is written: its number, its values, whether these are one value for all keys, and the action.
using PythonWrite = std::tuple<std::size_t, const Array*, bool, std::string>;

// Of each batch the table as seen from the device of its arrays, the keys, what is asked, and the stream.
using PythonLookup = std::tuple<TablePointer, const Array*, std::vector<PythonRead>, const Array*, const Array*,
                                std::uintptr_t>;  // reads, found, rows
using PythonChange = std::tuple<TablePointer, const Array*, std::vector<PythonWrite>, std::vector<PythonRead>,
                                const Array*, const Array*, std::uintptr_t>;  // writes, reads, inserted, rows
using PythonErasure =
    std::tuple<TablePointer, const Array*, std::vector<PythonRead>, const Array*, std::uintptr_t>;  // reads, erased

[[noreturn]] void refuse_size(const char* role, std::int64_t given, std::int64_t expected, const char* unit) {
  throw std::invalid_argument(std::string(role) + " has " + std::to_string(given) + " " + unit + ", expected " +
                              std::to_string(expected));
}

void check_column(const Table& table, std::size_t column) {
  const std::size_t count = table.options().column_count();
  if (count == 0) throw std::invalid_argument("values were given, but the table has no values");
  if (column >= count)
    throw std::invalid_argument("column " + std::to_string(column) + " was given, and the table has " +
                                std::to_string(count));
}

/// The array of a column's values, of so many keys.
void* values_of(const Table& table, std::size_t column, const Array* array, const char* role, std::int64_t count) {
  check_column(table, column);
  const TableOptions& options = table.options();
  const std::string whose = options.columns.empty() ? role : std::string(role) + " of " + options.columns[column].name;
  if (array == nullptr) throw std::invalid_argument("the " + whose + " are missing");
  check_bytes(table, *array, whose.c_str(), itemsize(options.column_dtype(column)),
              count * options.column_bytes(column));
  return array->data;
}

std::vector<Write> to_writes(const Table& table, const std::vector<PythonWrite>& given, std::int64_t count) {
  std::vector<Write> writes;
  for (const auto& [column, values, broadcast, action] : given)
    writes.push_back({column, values_of(table, column, values, "values", broadcast ? 1 : count), broadcast,
                      named(kActions, action)});
  return writes;
}

/// For a request of a call on `asked` whose arrays lie where `seen` is seen from; null for a table without shards.
ShardedTable* view_of(const Table& asked, Table& seen) {
  auto* const view = dynamic_cast<ShardedTable*>(&seen);
  if (view == nullptr && &seen != &asked) throw std::invalid_argument("the request is one of another table");
  return view;
}

/// The columns of several requests, which stay where they are.
template <class Column>
class Columns {
 public:
  Span<const Column> keep(std::vector<Column> columns) { return all_.emplace_back(std::move(columns)); }

 private:
  std::deque<std::vector<Column>> all_;
};

std::int64_t look_up(Table& table, const std::vector<PythonLookup>& given, bool count_missing) {
  std::vector<Lookup> requests;
  Columns<Read> columns;
  for (const auto& [seen, keys, reads, found, rows, stream] : given) {
    const KeyBatch batch = to_keys(*seen, keys);
    requests.push_back({.keys = batch,
                        .reads = columns.keep(to_reads(*seen, reads, batch.count)),
                        .found = output<bool>(*seen, found, "found", batch.count),
                        .rows = output<std::int64_t>(*seen, rows, "rows", batch.count),
                        .count_missing = count_missing,
                        .stream = to_stream(seen->context(), stream),
                        .view = view_of(table, *seen)});
  }
  const GilRelease unlocked;
  return table.look_up(requests);
}

void change(Table& table, const std::vector<PythonChange>& given) {
  std::vector<Change> requests;
  Columns<Write> written;
  Columns<Read> read;
  for (const auto& [seen, keys, writes, reads, inserted, rows, stream] : given) {
    const KeyBatch batch = to_keys(*seen, keys);
    requests.push_back({.keys = batch,
                        .writes = written.keep(to_writes(*seen, writes, batch.count)),
                        .reads = read.keep(to_reads(*seen, reads, batch.count)),
                        .inserted = output<bool>(*seen, inserted, "inserted", batch.count),
                        .rows = output<std::int64_t>(*seen, rows, "rows", batch.count),
                        .stream = to_stream(seen->context(), stream),
                        .view = view_of(table, *seen)});
  }
  const GilRelease unlocked;
  table.change(requests);
}

std::int64_t erase(Table& table, const std::vector<PythonErasure>& given, bool all_or_none) {
  std::vector<Erasure> requests;
  Columns<Read> columns;
  for (const auto& [seen, keys, reads, erased, stream] : given) {
    const KeyBatch batch = to_keys(*seen, keys);
    requests.push_back({.keys = batch,
                        .reads = columns.keep(to_reads(*seen, reads, batch.count)),
                        .erased = output<bool>(*seen, erased, "erased", batch.count),
                        .all_or_none = all_or_none,
                        .stream = to_stream(seen->context(), stream),
                        .view = view_of(table, *seen)});
  }
  const GilRelease unlocked;
  return table.erase(requests);
}

std::int64_t export_items(Table& table, const Array* keys, const std::vector<PythonRead>& reads, const Array* rows,
                          std::uintptr_t stream) {
  std::int64_t room = 0;
  if (keys != nullptr) {
    room = to_keys(table, keys).count;
    if (keys->readonly) throw std::invalid_argument("keys is read-only");
  } else if (!reads.empty() && std::get<1>(reads.front()) != nullptr) {
    const std::size_t column = std::get<0>(reads.front());
    check_column(table, column);
    room = std::get<1>(reads.front())->bytes() / std::max<std::int64_t>(1, table.options().column_bytes(column));
  } else if (rows != nullptr) {
    room = rows->elements();
  }
  const std::vector<Read> columns = to_reads(table, reads, room);
  const Export all{.keys = keys == nullptr ? nullptr : keys->data,
                   .reads = columns,
                   .rows = output<std::int64_t>(table, rows, "rows", room),
                   .room = room,
                   .stream = to_stream(table.context(), stream)};
  const GilRelease unlocked;
  return table.export_items(all);
}

}  // namespace

void check_bytes(const Table& table, const Array& array, const char* role, std::size_t item_bytes, std::int64_t bytes) {
  check_dense(table.context(), array, role);
  if (itemsize(array.dtype) != item_bytes)
    refuse_size(role, static_cast<std::int64_t>(itemsize(array.dtype)), static_cast<std::int64_t>(item_bytes),
                "bytes per element");
  if (array.bytes() != bytes) refuse_size(role, array.bytes(), bytes, "bytes");
}

KeyBatch to_keys(const Table& table, const Array* keys) {
  if (keys == nullptr) throw std::invalid_argument("the keys are missing");
  const TableOptions& options = table.options();
  check_bytes(table, *keys, "keys", itemsize(options.key_dtype), keys->bytes());
  if (keys->elements() % options.key_elements != 0)
    throw std::invalid_argument("keys has " + std::to_string(keys->elements()) + " elements, expected a multiple of " +
                                std::to_string(options.key_elements));
  return {keys->data, keys->elements() / options.key_elements, options.key_bytes()};
}

std::vector<Read> to_reads(const Table& table, const std::vector<PythonRead>& given, std::int64_t count) {
  std::vector<Read> reads;
  for (const auto& [column, values, fallback] : given) {
    Read& read = reads.emplace_back();
    read.column = column;
    read.values = values_of(table, column, values, "values", count);
    if (values->readonly) throw std::invalid_argument("values is read-only");
    if (fallback == nullptr) continue;
    read.fallback_per_key = fallback->bytes() != table.options().column_bytes(column);
    read.fallback = values_of(table, column, fallback, "fallback", read.fallback_per_key ? count : 1);
  }
  return reads;
}

void bind_requests(py::class_<Table, TablePointer>& table) {
  const auto requests = py::arg("requests");
  table.def("look_up", &look_up, requests, py::arg("count_missing") = false)
      .def("change", &change, requests)
      .def("erase", &erase, requests, py::arg("all_or_none") = false)
      .def("export_items", &export_items, py::arg("keys"), py::arg("reads"), py::arg("rows"), py::arg("stream"));
}

}  // namespace gpuhash::bindings
