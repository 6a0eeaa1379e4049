// What the calls on tables do, for their handlers, alone (table_ops.cc) or as parts of an exchange (exchange_ops.cc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gpuhash/names.hpp>
#include <gpuhash/table.hpp>
#include "call.h"
#include "state.h"

namespace gpuhash::jax_ops {

using Numbers = ffi::Span<const std::int64_t>;
using Handles = Numbers;

/// Of the keys, a call is about as many as this, from the first one on.
inline constexpr std::int64_t kAllKeys = std::numeric_limits<std::int64_t>::max();

/// All keys of an operand; outputs are as long, whatever part of them a call is about.
inline KeyBatch to_keys(const TableOptions& options, const Operand& keys) {
  const auto elements = static_cast<std::int64_t>(keys.element_count());
  check_array(keys, "keys", options.key_dtype, elements / options.key_elements * options.key_elements);
  return {keys.untyped_data(), elements / options.key_elements, options.key_bytes()};
}

inline KeyBatch first_of(KeyBatch batch, std::int64_t limit) {
  batch.count = std::min(batch.count, limit);
  return batch;
}

/// Before an insertion: an array that is memory of the table's own rows, which the insertion writes, would be copied.
inline void check_apart(Table& table, const Operand& array, Stream stream) {
  if (!table.options().has_rows() || !table.context().is_capturing(stream)) return;
  if (table.overlaps_rows({array.untyped_data(), static_cast<std::int64_t>(array.size_bytes())}))
    throw ShapeError(
        "an array that shares memory with the table's rows was given to an insertion, which cannot be recorded into a "
        "command buffer: give a copy of it, or a state that is not fixed");
}

/// keys  // [n, *key_shape]
/// fallback  // one value, [n, *value_shape] if per_key, or no elements: zeros
inline void find_values(Use& use, Stream stream, std::int64_t limit, bool per_key, const Operand& keys,
                        const Operand& fallback, Output& found, Output& values) {
  const TableOptions& options = use.table().options();
  const KeyBatch batch = to_keys(options, keys);
  if (!options.value_dtype) throw ShapeError("a set has no values to find: ask contains");
  const std::int64_t per_value = options.value_elements();
  check_array(*values, "values", *options.value_dtype, batch.count * per_value);
  check_array(*found, "marks of found keys", DType::kBool, batch.count);
  Read read{.values = values->untyped_data()};
  if (fallback.element_count() != 0) {
    check_array(fallback, "defaults", *options.value_dtype, per_key ? batch.count * per_value : per_value);
    read.fallback = fallback.untyped_data();
    read.fallback_per_key = per_key;
  }
  const ChainStep step = use.hand_on_step();
  use.table().look_up({.keys = first_of(batch, limit),
                       .reads = {&read, 1},
                       .found = static_cast<bool*>(found->untyped_data()),
                       .stream = stream,
                       .step = &step});
  use.finish();
}

inline void find_keys(Use& use, Stream stream, std::int64_t limit, const Operand& keys, Output& found) {
  const KeyBatch batch = to_keys(use.table().options(), keys);
  check_array(*found, "marks of found keys", DType::kBool, batch.count);
  const ChainStep step = use.hand_on_step();
  use.table().look_up({.keys = first_of(batch, limit),
                       .found = static_cast<bool*>(found->untyped_data()),
                       .stream = stream,
                       .step = &step});
  use.finish();
}

inline void erase_keys(Use& use, Stream stream, std::int64_t limit, const Operand& keys, Output& erased) {
  const KeyBatch batch = to_keys(use.table().options(), keys);
  check_array(*erased, "marks of erased keys", DType::kBool, batch.count);
  use.table().erase(
      {.keys = first_of(batch, limit), .erased = static_cast<bool*>(erased->untyped_data()), .stream = stream});
  use.finish();
}

/// `how`: "keep", "assign", or an operation's name.
/// values  // [n, *value_shape], or one value for all keys; no elements for a set
inline void insert_keys(Use& use, Stream stream, std::int64_t limit, std::string_view how, bool broadcast,
                        const Operand& keys, const Operand& values, Output& inserted) {
  Table& table = use.table();
  const TableOptions& options = table.options();
  if (!options.columns.empty())
    throw DTypeError("the table has named columns, and the program's table a single value per key");
  const KeyBatch batch = to_keys(options, keys);
  check_apart(table, keys, stream);
  const Write write{.values = values.untyped_data(), .broadcast = broadcast, .action = named(kActions, how)};
  Change change{.keys = first_of(batch, limit), .stream = stream};
  if (options.value_dtype) {
    const std::int64_t per_value = options.value_elements();
    check_array(values, "values", *options.value_dtype, broadcast ? per_value : batch.count * per_value);
    check_apart(table, values, stream);
    change.writes = {&write, 1};
  }
  check_array(*inserted, "marks of inserted keys", DType::kBool, batch.count);
  change.inserted = static_cast<bool*>(inserted->untyped_data());
  const ChainStep step = use.hand_on_step();
  change.step = &step;
  table.change(change);
  use.finish();
}

/// The columns of a call, by their names: one after the other in `text`, of so many bytes each. A program on the host
/// may meet another table than it was compiled for, so its columns are looked for in each call.
struct ColumnNames {
  std::string_view text;
  Numbers lengths;

  /// Their numbers in a table.
  std::vector<std::size_t> find_in(const std::vector<Column>& columns) const {
    std::vector<std::size_t> numbers;
    std::size_t first = 0;
    for (const std::int64_t length : lengths) {
      const std::string_view wanted = text.substr(first, static_cast<std::size_t>(length));
      first += wanted.size();
      const auto found =
          std::find_if(columns.begin(), columns.end(), [&](const Column& column) { return column.name == wanted; });
      if (found == columns.end())
        throw ShapeError("the table has no column \"" + std::string(wanted) +
                         "\", which the program's table has: give each compiled program tables of one kind");
      numbers.push_back(static_cast<std::size_t>(found - columns.begin()));
    }
    return numbers;
  }
};

inline void check_count(const char* what, std::size_t given, std::size_t columns) {
  if (given == columns) return;
  throw ShapeError(std::to_string(given) + " " + what + " were given for " + std::to_string(columns) + " columns");
}

/// fallbacks  // one for each column: one value, [n, *shape] where per_key, or no elements: zeros
/// rows  // scratch memory of 8 bytes per key, so that none has to be allocated
/// values  // one for each column: [n, *shape]
inline void find_column_values(Use& use, Stream stream, std::int64_t limit, const ColumnNames& names,
                               const Numbers& per_key, const Operand& keys, const ffi::RemainingArgs& fallbacks,
                               Output& rows, Output& found, const ffi::RemainingRets& values) {
  const TableOptions& options = use.table().options();
  const KeyBatch batch = to_keys(options, keys);
  check_array(*found, "marks of found keys", DType::kBool, batch.count);
  const std::vector<std::size_t> numbers = names.find_in(options.columns);
  check_count("marks of defaults", per_key.size(), numbers.size());
  check_count("defaults", fallbacks.size(), numbers.size());
  check_count("outputs", values.size(), numbers.size());
  std::vector<Read> reads;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Column& column = options.columns[numbers[i]];
    Output out = *values.get<ffi::AnyBuffer>(i);
    const Operand fallback = *fallbacks.get<Operand>(i);
    const bool each_its_own = per_key[i] != 0;
    check_array(*out, ("values of " + column.name).c_str(), column.dtype, batch.count * column.elements());
    reads.push_back({numbers[i], out->untyped_data(), nullptr, each_its_own});
    if (fallback.element_count() == 0) continue;
    check_array(fallback, ("defaults of " + column.name).c_str(), column.dtype,
                (each_its_own ? batch.count : 1) * column.elements());
    reads.back().fallback = fallback.untyped_data();
  }
  const ChainStep step = use.hand_on_step();
  use.table().look_up({.keys = first_of(batch, limit),
                       .reads = reads,
                       .found = static_cast<bool*>(found->untyped_data()),
                       .rows = WideOutput(rows, batch.count, "row numbers").data(),
                       .stream = stream,
                       .step = &step});
  use.finish();
}

/// `how`: as insert_keys() has it, one for each column, with commas between them.
inline Action next_action(std::string_view& how) {
  const std::string_view name = how.substr(0, how.find(','));
  how.remove_prefix(std::min(how.size(), name.size() + 1));
  return named(kActions, name);
}

/// values  // one for each column that is given: [n, *shape], or one value for all keys where broadcast
inline void insert_column_values(Use& use, Stream stream, std::int64_t limit, const ColumnNames& names,
                                 std::string_view how, const Numbers& broadcast, const Operand& keys,
                                 const ffi::RemainingArgs& values, Output& inserted) {
  Table& table = use.table();
  const TableOptions& options = table.options();
  const std::vector<std::size_t> numbers = names.find_in(options.columns);
  check_count("marks of values", broadcast.size(), numbers.size());
  check_count("values", values.size(), numbers.size());
  const KeyBatch batch = to_keys(options, keys);
  check_apart(table, keys, stream);
  check_array(*inserted, "marks of inserted keys", DType::kBool, batch.count);
  std::vector<Write> writes;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Column& column = options.columns[numbers[i]];
    const Operand given = *values.get<Operand>(i);
    const bool for_all = broadcast[i] != 0;
    check_array(given, ("values of " + column.name).c_str(), column.dtype,
                (for_all ? 1 : batch.count) * column.elements());
    check_apart(table, given, stream);
    writes.push_back({numbers[i], given.untyped_data(), for_all, next_action(how)});
  }
  table.change({.keys = first_of(batch, limit),
                .writes = writes,
                .inserted = static_cast<bool*>(inserted->untyped_data()),
                .stream = stream});
  use.finish();
}

/// Row numbers, and which keys were new. New rows get what is given, and in all columns that are not what initializers
/// say, or else zeros.
/// values  // none, or one for each column that is given: [n, *shape], or one value for all keys where broadcast
inline void find_or_insert_keys(Use& use, Stream stream, const ColumnNames& names, const Numbers& broadcast,
                                const Operand& keys, const ffi::RemainingArgs& values, Output& rows, Output& inserted) {
  Table& table = use.table();
  const TableOptions& options = table.options();
  if (!options.has_rows()) throw ShapeError("the table has no row storage: its values lie beside their keys");
  check_count("marks of values", broadcast.size(), values.size());
  const KeyBatch batch = to_keys(options, keys);
  check_apart(table, keys, stream);
  const WideOutput numbers(rows, batch.count, "row numbers");
  numbers.check_bound(table.capacity() + batch.count);
  check_array(*inserted, "marks of inserted keys", DType::kBool, batch.count);
  std::vector<Write> writes;
  const auto take = [&](std::size_t i, std::size_t column, const char* what, DType dtype, std::int64_t elements) {
    const Operand given = *values.get<Operand>(i);
    const bool for_all = broadcast[i] != 0;
    check_array(given, what, dtype, (for_all ? 1 : batch.count) * elements);
    check_apart(table, given, stream);
    writes.push_back({column, given.untyped_data(), for_all, Action::kKeep});
  };
  if (options.value_dtype) {
    if (values.size() > 1) throw ShapeError("several arrays of values were given to a table without named columns");
    if (values.size() == 1) take(0, 0, "values", *options.value_dtype, options.value_elements());
  } else {
    const std::vector<std::size_t> places = names.find_in(options.columns);
    check_count("values", values.size(), places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      const Column& column = options.columns[places[i]];
      take(i, places[i], ("values of " + column.name).c_str(), column.dtype, column.elements());
    }
  }
  table.change({.keys = batch,
                .writes = writes,
                .inserted = static_cast<bool*>(inserted->untyped_data()),
                .rows = numbers.data(),
                .stream = stream});
  use.finish();
}

/// Waits. Throws where the keys of `tables` tables as large might be more than the output's integers can count.
inline void count_keys(Use& use, Stream stream, std::int64_t tables, Output& size) {
  const WideOutput out(size, 1, "the size");
  const std::int64_t keys = use.table().size(stream);
  out.check_bound(keys * tables);
  use.table().context().copy_from_host(out.data(), &keys, sizeof keys, stream);
  use.finish();
}

}  // namespace gpuhash::jax_ops
