// The calls on tables, the same for host and GPU: all that differs is the place, the stream and where a handle is.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <gpuhash/names.hpp>
#include <gpuhash/table.hpp>
#include "call.h"
#include "state.h"

namespace gpuhash::jax_ops {
namespace {

using Handles = ffi::Span<const std::int64_t>;

KeyBatch to_keys(const TableOptions& options, const Operand& keys) {
  const auto elements = static_cast<std::int64_t>(keys.element_count());
  check_array(keys, "keys", options.key_dtype, elements / options.key_elements * options.key_elements);
  return {keys.untyped_data(), elements / options.key_elements, options.key_bytes()};
}

/// The operand's memory; or a copy of it, where it is memory of the table's own rows, which the call writes.
const void* apart(Table& table, const Operand& array, Stream stream, Allocation& copy) {
  const MemoryRange memory{array.untyped_data(), static_cast<std::int64_t>(array.size_bytes())};
  if (!table.options().has_rows() || !table.overlaps_rows(memory)) return memory.data;
  if (table.context().is_capturing(stream))
    throw ShapeError(
        "an array that shares memory with the table's rows was given to an insertion, which cannot be recorded into a "
        "command buffer: give a copy of it, or a state that is not fixed");
  copy = Allocation(table.context(), array.size_bytes(), stream);
  table.context().copy(copy.get(), memory.data, array.size_bytes(), stream);
  return copy.get();
}

/// keys  // [n, *key_shape]
/// fallback  // one value, [n, *value_shape] if per_key, or no elements: zeros
ffi::Error find(Place place, Handles handles, bool per_key, Operand token, Operand keys, Operand fallback, Output next,
                Output values, Output found) {
  return guarded([&] {
    Use use(place, handles, token, next);
    const TableOptions& options = use.table().options();
    const KeyBatch batch = to_keys(options, keys);
    if (!options.value_dtype) throw ShapeError("a set has no values to find: ask contains");
    const std::int64_t per_value = options.value_elements();
    check_array(*values, "values", *options.value_dtype, batch.count * per_value);
    check_array(*found, "marks of found keys", DType::kBool, batch.count);
    FindOutput out{};
    if (fallback.element_count() != 0) {
      check_array(fallback, "defaults", *options.value_dtype, per_key ? batch.count * per_value : per_value);
      out.fallback = fallback.untyped_data();
      out.fallback_per_key = per_key;
    }
    out.values = values->untyped_data();
    out.found = static_cast<bool*>(found->untyped_data());
    out.step = use.hand_on_step();
    use.table().find(batch, out, place.stream);
    use.finish();
  });
}

template <class P>
auto bind_find() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<Handles>("handles")
      .template Attr<bool>("per_key")
      .template Arg<Operand>()
      .template Arg<Operand>()
      .template Arg<Operand>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

/// What contains, rows and erase have in common: keys in, one answer per key out.
template <class P>
auto bind_keys() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<Handles>("handles")
      .template Arg<Operand>()
      .template Arg<Operand>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

ffi::Error contains(Place place, Handles handles, Operand token, Operand keys, Output next, Output found) {
  return guarded([&] {
    Use use(place, handles, token, next);
    const KeyBatch batch = to_keys(use.table().options(), keys);
    check_array(*found, "marks of found keys", DType::kBool, batch.count);
    FindOutput out{};
    out.found = static_cast<bool*>(found->untyped_data());
    out.step = use.hand_on_step();
    use.table().find(batch, out, place.stream);
    use.finish();
  });
}

template <class P>
auto bind_contains() {
  return bind_keys<P>();
}

ffi::Error rows(Place place, Handles handles, Operand token, Operand keys, Output next, Output rows) {
  return guarded([&] {
    Use use(place, handles, token, next);
    const KeyBatch batch = to_keys(use.table().options(), keys);
    if (!use.table().options().has_rows())
      throw ShapeError("this table keeps its values beside their keys and has no rows; give it a value_shape");
    const WideOutput numbers(rows, batch.count, "row numbers");
    numbers.check_bound(use.table().capacity());
    FindOutput out{};
    out.rows = numbers.data();
    out.step = use.hand_on_step();
    use.table().find(batch, out, place.stream);
    use.finish();
  });
}

template <class P>
auto bind_rows() {
  return bind_keys<P>();
}

ffi::Error erase(Place place, Handles handles, Operand token, Operand keys, Output next, Output erased) {
  return guarded([&] {
    Use use(place, handles, token, next);
    const KeyBatch batch = to_keys(use.table().options(), keys);
    check_array(*erased, "marks of erased keys", DType::kBool, batch.count);
    use.table().erase(batch, static_cast<bool*>(erased->untyped_data()), place.stream);
    use.finish();
  });
}

template <class P>
auto bind_erase() {
  return bind_keys<P>();
}

/// `how`: "keep", "assign", or an operation's name.
/// values  // [n, *value_shape], or one value for all keys; no elements for a set
ffi::Error insert(Place place, Handles handles, std::string_view how, bool broadcast, Operand token, Operand keys,
                  Operand values, Output next, Output inserted) {
  return guarded([&] {
    Use use(place, handles, token, next);
    Table& table = use.table();
    const TableOptions& options = table.options();
    Allocation copies[2];
    KeyBatch batch = to_keys(options, keys);
    batch.data = apart(table, keys, place.stream, copies[0]);
    ValueBatch given{};
    if (options.value_dtype) {
      const std::int64_t per_value = options.value_elements();
      check_array(values, "values", *options.value_dtype, broadcast ? per_value : batch.count * per_value);
      given = {apart(table, values, place.stream, copies[1]), options.value_bytes(), broadcast};
    }
    check_array(*inserted, "marks of inserted keys", DType::kBool, batch.count);
    auto* const mask = static_cast<bool*>(inserted->untyped_data());
    if (const std::optional<InsertMode> mode = find_named(kInsertModes, how))
      table.insert(batch, given, *mode, mask, place.stream, use.hand_on_step());
    else
      table.apply(batch, given, named(kApplyOps, how), mask, place.stream);
    use.finish();
  });
}

template <class P>
auto bind_insert() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<Handles>("handles")
      .template Attr<std::string_view>("how")
      .template Attr<bool>("broadcast")
      .template Arg<Operand>()
      .template Arg<Operand>()
      .template Arg<Operand>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

/// Waits.
ffi::Error size(Place place, Handles handles, Operand token, Output next, Output size) {
  return guarded([&] {
    Use use(place, handles, token, next);
    const WideOutput out(size, 1, "the size");
    const std::int64_t keys = use.table().size(place.stream);
    out.check_bound(keys);
    use.table().context().copy_from_host(out.data(), &keys, sizeof keys, place.stream);
    use.finish();
  });
}

template <class P>
auto bind_size() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<Handles>("handles")
      .template Arg<Operand>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

}  // namespace

GPUHASH_JAX_TABLE_HANDLER(find);
GPUHASH_JAX_TABLE_HANDLER(contains);
GPUHASH_JAX_TABLE_HANDLER(rows);
GPUHASH_JAX_TABLE_HANDLER(erase);
GPUHASH_JAX_TABLE_HANDLER(insert);
GPUHASH_JAX_HANDLER(size);

}  // namespace gpuhash::jax_ops
