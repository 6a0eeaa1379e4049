// The calls on tables, the same for host and GPU: all that differs is the place, the stream and where a handle is.
#include <cstdint>
#include <string_view>

#include "call.h"
#include "state.h"
#include "table_calls.h"

namespace gpuhash::jax_ops {
namespace {

ffi::Error find(Place place, Handles handles, bool per_key, Operand token, Operand keys, Operand fallback, Output next,
                Output found, Output values) {
  return guarded([&] {
    Use use(place, handles, token, next);
    find_values(use, place.stream, kAllKeys, per_key, keys, fallback, found, values);
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

ffi::Error find_columns(Place place, Handles handles, std::string_view names, Numbers lengths, Numbers per_key,
                        Operand token, Operand keys, ffi::RemainingArgs fallbacks, Output next, Output rows,
                        Output found, ffi::RemainingRets values) {
  return guarded([&] {
    Use use(place, handles, token, next);
    find_column_values(use, place.stream, kAllKeys, {names, lengths}, per_key, keys, fallbacks, rows, found, values);
  });
}

template <class P>
auto bind_find_columns() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<Handles>("handles")
      .template Attr<std::string_view>("names")
      .template Attr<Numbers>("lengths")
      .template Attr<Numbers>("per_key")
      .template Arg<Operand>()
      .template Arg<Operand>()
      .RemainingArgs()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .RemainingRets();
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
    find_keys(use, place.stream, kAllKeys, keys, found);
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
    const ChainStep step = use.hand_on_step();
    use.table().look_up({.keys = batch, .rows = numbers.data(), .stream = place.stream, .step = &step});
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
    erase_keys(use, place.stream, kAllKeys, keys, erased);
  });
}

template <class P>
auto bind_erase() {
  return bind_keys<P>();
}

ffi::Error insert(Place place, Handles handles, std::string_view how, bool broadcast, Operand token, Operand keys,
                  Operand values, Output next, Output inserted) {
  return guarded([&] {
    Use use(place, handles, token, next);
    insert_keys(use, place.stream, kAllKeys, how, broadcast, keys, values, inserted);
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

/// `names`: of the columns that are given; none of a table without. Given are one array of values for each, or none.
ffi::Error find_or_insert(Place place, Handles handles, std::string_view names, Numbers lengths, Numbers broadcast,
                          Operand token, Operand keys, ffi::RemainingArgs values, Output next, Output rows,
                          Output inserted) {
  return guarded([&] {
    Use use(place, handles, token, next);
    find_or_insert_keys(use, place.stream, {names, lengths}, broadcast, keys, values, rows, inserted);
  });
}

template <class P>
auto bind_find_or_insert() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<Handles>("handles")
      .template Attr<std::string_view>("names")
      .template Attr<Numbers>("lengths")
      .template Attr<Numbers>("broadcast")
      .template Arg<Operand>()
      .template Arg<Operand>()
      .RemainingArgs()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

ffi::Error insert_columns(Place place, Handles handles, std::string_view names, Numbers lengths, std::string_view how,
                          Numbers broadcast, Operand token, Operand keys, ffi::RemainingArgs values, Output next,
                          Output inserted) {
  return guarded([&] {
    Use use(place, handles, token, next);
    insert_column_values(use, place.stream, kAllKeys, {names, lengths}, how, broadcast, keys, values, inserted);
  });
}

template <class P>
auto bind_insert_columns() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<Handles>("handles")
      .template Attr<std::string_view>("names")
      .template Attr<Numbers>("lengths")
      .template Attr<std::string_view>("how")
      .template Attr<Numbers>("broadcast")
      .template Arg<Operand>()
      .template Arg<Operand>()
      .RemainingArgs()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

/// Waits.
ffi::Error size(Place place, Handles handles, Operand token, Output next, Output size) {
  return guarded([&] {
    Use use(place, handles, token, next);
    count_keys(use, place.stream, 1, size);
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
GPUHASH_JAX_TABLE_HANDLER(find_columns);
GPUHASH_JAX_HANDLER(find_or_insert);
GPUHASH_JAX_HANDLER(insert_columns);
GPUHASH_JAX_HANDLER(size);

}  // namespace gpuhash::jax_ops
