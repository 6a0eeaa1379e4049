// The calls on tables, the same for host and GPU: all that differs is the place, the stream and where a handle is.
#include "table_ops.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gpuhash/names.hpp>
#include <gpuhash/table.hpp>

namespace gpuhash::jax_ops {
namespace {

/// Cuts off the first name of a list.
std::string_view next_name(std::string_view& list) {
  const std::string_view name = list.substr(0, list.find(','));
  list.remove_prefix(std::min(list.size(), name.size() + 1));
  return name;
}

/// The number of a table's column.
std::size_t find_column(const TableOptions& options, std::string_view name) {
  if (name.empty()) {
    if (options.value_dtype) return 0;
    throw DTypeError(options.columns.empty() ? "the table is a set, and the program's table has values"
                                             : "the table has named columns, and the program's table a single value "
                                               "per key");
  }
  for (std::size_t i = 0; i < options.columns.size(); ++i)
    if (options.columns[i].name == name) return i;
  throw ShapeError("the table has no column \"" + std::string(name) +
                   "\", which the program's table has: give each compiled program tables of one kind");
}

/// The arrays of a call, checked.
struct Arrays {
  KeyBatch keys = {};
  std::vector<Read> reads;
  std::vector<Write> writes;
  bool* mask = nullptr;
  std::int64_t* rows = nullptr;
};

/// Gives one operand or result of a call after the other.
class ArraySource {
 public:
  explicit ArraySource(const TableCall& call) : call_(call) {}

  Operand operand() { return need(call_.operands.get<Operand>(operands_++)); }
  Output result() { return need(call_.results.get<ffi::AnyBuffer>(results_++)); }
  bool is_used_up() const { return operands_ == call_.operands.size() && results_ == call_.results.size(); }

 private:
  template <class Array>
  static Array need(ffi::ErrorOr<Array> array) {
    if (!array.has_value()) throw ShapeError("a call was given fewer arrays than it names");
    return *array;
  }

  const TableCall& call_;
  std::size_t operands_ = 0;
  std::size_t results_ = 0;
};

KeyBatch to_keys(const TableOptions& options, const Operand& keys) {
  const auto elements = static_cast<std::int64_t>(keys.element_count());
  check_array(keys, "keys", options.key_dtype, elements / options.key_elements * options.key_elements);
  return {keys.untyped_data(), elements / options.key_elements, options.key_bytes()};
}

/// An array with one value of a column for each of `count` keys.
void* checked_values(const TableOptions& options, std::size_t number, const Operand& array, std::int64_t count) {
  if (options.columns.empty()) {
    check_array(array, "values", *options.value_dtype, count * options.value_elements());
  } else {
    const Column& column = options.columns[number];
    check_array(array, "values", column.dtype, count * column.elements(), column.name);
  }
  return array.untyped_data();
}

/// Takes what is given for columns: what a change writes, and what others read for absent keys.
void take_columns(ArraySource& source, const Asked& asked, const TableOptions& options, bool changes, Arrays& arrays) {
  if (asked.given.size() != asked.lengths.size()) throw ShapeError("a call says not of each column what is given");
  const bool reads = !changes || asked.answers.find("values") != asked.answers.npos;  // others read all of theirs
  std::string_view names = asked.names;
  std::string_view actions = asked.actions;
  for (std::size_t i = 0; i < asked.lengths.size(); ++i) {
    const std::string_view name = names.substr(0, static_cast<std::size_t>(asked.lengths[i]));
    names.remove_prefix(name.size());
    const std::size_t column = find_column(options, name);
    const auto given = static_cast<Given>(asked.given[i]);
    const bool for_each = given == Given::kOneForEach;
    const void* values = nullptr;
    if (given != Given::kNothing)
      values = checked_values(options, column, source.operand(), for_each ? arrays.keys.count : 1);
    if (changes) {
      const Action action = named(kActions, next_name(actions));
      if (values != nullptr) arrays.writes.push_back({column, values, !for_each, action});
      values = nullptr;
    }
    if (reads) arrays.reads.push_back({column, nullptr, values, for_each});
  }
}

/// Row numbers, none of which may be larger than `bound`.
std::int64_t* take_rows(ArraySource& source, const TableOptions& options, std::int64_t count, std::int64_t bound) {
  if (!options.has_rows())
    throw ShapeError("this table keeps its values beside their keys and has no rows; give it a value_shape");
  const WideOutput rows(source.result(), count, "row numbers");
  rows.check_bound(bound);
  return rows.data();
}

Arrays take_arrays(const TableCall& call, bool changes = false) {
  const Table& table = call.use.table();
  const TableOptions& options = table.options();
  ArraySource source(call);
  Arrays arrays;
  arrays.keys = to_keys(options, source.operand());
  const std::int64_t count = arrays.keys.count;
  take_columns(source, call.asked, options, changes, arrays);
  for (std::string_view answers = call.asked.answers; !answers.empty();) {
    const std::string_view answer = next_name(answers);
    if (answer == "values") {
      for (Read& read : arrays.reads) read.values = checked_values(options, read.column, *source.result(), count);
    } else if (answer == "rows") {
      arrays.rows = take_rows(source, options, count, table.capacity() + (changes ? count : 0));
    } else if (answer == "scratch") {
      arrays.rows = WideOutput(source.result(), count, "scratch memory").data();
    } else {
      Output mask = source.result();
      check_array(*mask, "marks of keys", DType::kBool, count);
      arrays.mask = static_cast<bool*>(mask->untyped_data());
    }
  }
  if (!source.is_used_up()) throw ShapeError("a call was given more arrays than it names");
  arrays.keys.count = std::min(count, call.limit);
  return arrays;
}

/// An array that is memory of the table's own rows, which a change writes, is copied before.
void refuse_copy(const Table& table, const void* array, std::int64_t bytes) {
  if (table.overlaps_rows({array, bytes}))
    throw ShapeError(
        "an array that shares memory with the table's rows was given to an insertion, which cannot be recorded into a "
        "command buffer: give a copy of it, or a state that is not fixed");
}

template <class Call>
ffi::Error run_alone(Place place, Numbers handles, std::string_view answers, std::string_view names, Numbers lengths,
                     Numbers given, std::string_view actions, std::int64_t tables, Operand token,
                     ffi::RemainingArgs operands, Output next, ffi::RemainingRets results) {
  return guarded([&] {
    const Asked asked{handles, answers, names, lengths, given, actions, tables};
    Use use(place, asked.handles, token, next);
    Call::run({use, place.stream, kAllKeys, asked, operands, results});
    use.finish();
  });
}

template <class P>
auto bind_alone() {
  return bind_asked<P>().template Arg<Operand>().RemainingArgs().template Ret<ffi::AnyBuffer>().RemainingRets();
}

}  // namespace

void LookUpCall::run(const TableCall& call) {
  const Arrays arrays = take_arrays(call);
  const ChainStep step = call.use.hand_on_step();
  call.use.table().look_up({.keys = arrays.keys,
                            .reads = arrays.reads,
                            .found = arrays.mask,
                            .rows = arrays.rows,
                            .stream = call.stream,
                            .step = &step});
}

void ChangeCall::run(const TableCall& call) {
  Table& table = call.use.table();
  const TableOptions& options = table.options();
  const Arrays arrays = take_arrays(call, /*changes=*/true);
  const KeyBatch& keys = arrays.keys;
  if (options.has_rows() && table.context().is_capturing(call.stream)) {
    refuse_copy(table, keys.data, keys.count * keys.bytes);
    for (const Write& write : arrays.writes)
      refuse_copy(table, write.values, (write.broadcast ? 1 : keys.count) * options.column_bytes(write.column));
  }
  const ChainStep step = call.use.hand_on_step();
  table.change({.keys = keys,
                .writes = arrays.writes,
                .reads = arrays.reads,
                .inserted = arrays.mask,
                .rows = arrays.rows,
                .stream = call.stream,
                .step = &step});
}

void EraseCall::run(const TableCall& call) {
  const Arrays arrays = take_arrays(call);
  call.use.table().erase({.keys = arrays.keys, .reads = arrays.reads, .erased = arrays.mask, .stream = call.stream});
}

void SizeCall::run(const TableCall& call) {
  const WideOutput size(ArraySource(call).result(), 1, "the size");
  Table& table = call.use.table();
  const std::int64_t keys = table.size(call.stream);
  size.check_bound(keys * call.asked.tables);
  table.context().copy_from_host(size.data(), &keys, sizeof keys, call.stream);
}

GPUHASH_JAX_TABLE_HANDLER(look_up, run_alone<LookUpCall>, bind_alone);
GPUHASH_JAX_TABLE_HANDLER(change, run_alone<ChangeCall>, bind_alone);
GPUHASH_JAX_TABLE_HANDLER(erase, run_alone<EraseCall>, bind_alone);
GPUHASH_JAX_HANDLER(size, run_alone<SizeCall>, bind_alone);

}  // namespace gpuhash::jax_ops
