#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "host/parallel.hpp"
#include "host/rows/columns.hpp"
#include "host/rows/combine.hpp"
#include "host/rows/initial_rows.hpp"
#include "host/rows/rows.hpp"
#include "host/walk/rows_ahead.hpp"
#include "host/walk/write_each.hpp"
#include "shared/arithmetic.hpp"
#include "table/executor.hpp"

/// What is done to the slot of each key of a batch, in the shape that write_each() wants; AbsentKeys as walk() does.
namespace gpuhash::host {

template <class View>
bool has_rows(const View& view) {
  return View::kHasValue && view.rows.bytes != 0;
}

inline const std::byte* value_at(const ValueBatch& values, std::int64_t i) {
  return static_cast<const std::byte*>(values.data) + (values.broadcast ? 0 : i * values.bytes);
}

inline std::int64_t stride_of(const ValueBatch& values) { return values.broadcast ? 0 : values.bytes; }

/// Are values, if there are any, as wide as the slot's?
template <class View>
bool are_plain(const View& view, const ValueBatch& values) {
  return !View::kHasValue || (!has_rows(view) && values.bytes == sizeof(typename View::Value));
}

/// A new key's slot gets key and value.
template <class View>
void store_new(const View& view, const typename View::Key& stored, typename View::SlotType* slot,
               [[maybe_unused]] const ValueBatch& values, [[maybe_unused]] std::int64_t i,
               [[maybe_unused]] RowSource& row_source, [[maybe_unused]] const KeyBatch& keys,
               [[maybe_unused]] const InitialRows* initial) {
  slot->key = stored;
  if constexpr (View::kHasValue) {
    using Value = typename View::Value;
    if (has_rows(view)) {
      const std::uint64_t row = row_source.take();
      slot->value = static_cast<Value>(row);
      if (initial != nullptr)
        initialise_row(*initial, load_bytes<Uint128>(keys.data, i, keys.bytes), row_data(view, row));
      else
        copy_bytes(row_data(view, row), value_at(values, i), values.bytes);
    } else {
      slot->value = load_word<Value>(value_at(values, i), 0, values.bytes);
    }
  }
}

/// As Insertion, for values as wide as the slot's: what a batch mostly is.
template <class View>
struct PlainInsertion {
  static constexpr bool kHot = true;
  using Value = typename View::Value;

  const std::byte* values;  // null in sets
  std::int64_t stride;      // bytes from a key's value to the next
  bool assigns;

  [[gnu::always_inline]] void ask(std::int64_t i) const { __builtin_prefetch(values + i * stride); }
  void write(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) const {
    if (slot == nullptr) return;
    slot->key = stored;
    if constexpr (View::kHasValue)
      if (assigns || is_new) std::memcpy(&slot->value, values + i * stride, sizeof(Value));
  }
};

template <class View>
struct Insertion {
  View view;
  InsertOrder batch;
  RowSource* row_source;

  void write(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) const {
    if (is_new) {
      store_new(view, stored, slot, batch.values, i, *row_source, batch.keys, batch.initial);
    } else if constexpr (View::kHasValue) {
      if (batch.action == Action::kAssign && slot != nullptr) {
        const std::byte* const value = value_at(batch.values, i);
        if (has_rows(view))
          copy_bytes(row_data(view, slot->value), value, batch.values.bytes);
        else
          slot->value = load_word<typename View::Value>(value, 0, batch.values.bytes);
      }
    }
    if constexpr (View::kHasValue)
      if (batch.rows != nullptr) batch.rows[i] = slot == nullptr ? -1 : static_cast<std::int64_t>(slot->value);
  }
};

/// As Application, for additions of numbers as wide as the slot's value.
template <class View>
struct PlainAddition {
  static constexpr bool kHot = true;
  using Value = typename View::Value;
  using Float = std::conditional_t<sizeof(Value) == 8, double, float>;

  const std::byte* values;
  std::int64_t stride;  // bytes from a key's value to the next
  bool is_float;        // otherwise integers: signed or not, the sum has the same bits

  [[gnu::always_inline]] void ask(std::int64_t i) const { __builtin_prefetch(values + i * stride); }
  void write(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) const {
    if (slot == nullptr) return;
    slot->key = stored;
    Value update;
    std::memcpy(&update, values + i * stride, sizeof(Value));
    slot->value = is_new ? update : is_float ? sum<Float>(slot->value, update) : sum<Value>(slot->value, update);
  }

 private:
  template <class T>
  static Value sum(Value old, Value update) {
    return cast_bits<Value>(combine(Action::kAdd, cast_bits<T>(old), cast_bits<T>(update)));
  }
};

template <class View>
struct Application {
  View view;
  ApplyOrder batch;
  CombineFn combine;
  RowSource* row_source;
  RowsAhead<true> rows{};

  void write(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) {
    if (slot == nullptr) return;
    if (is_new) store_new(view, stored, slot, batch.values, i, *row_source, batch.keys, nullptr);
    if (batch.wide.combined != nullptr) {
      void* const value =
          has_rows(view) ? static_cast<void*>(row_data(view, slot->value)) : static_cast<void*>(&slot->value);
      if (const float* const all = batch.wide.at(i, batch.elements))
        combine_wide(batch.dtype, batch.op, value, all, batch.elements, is_new);
    } else if (!is_new) {
      if (has_rows(view))
        rows.push(row_data(view, slot->value), 0, batch.values.bytes, i, apply());
      else
        combine(&slot->value, value_at(batch.values, i), batch.elements);
    }
  }
  void finish() { rows.finish(apply()); }

 private:
  auto apply() const {
    return [this](std::byte* row, std::int64_t i) { combine(row, value_at(batch.values, i), batch.elements); };
  }
};

/// As Insertion and Application, in a table with columns.
template <class View>
struct ColumnsChange {
  View view;
  const RowWriter* writer;
  RowSource* row_source;
  std::int64_t* rows;  // [n] or null
  RowsAhead<true> known{};

  void write(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) {
    if (is_new) {
      const std::uint64_t row = row_source->take();
      slot->key = stored;
      slot->value = row;
      writer->begin(row_data(view, row), i);
    } else if (slot != nullptr) {
      known.push(row_data(view, slot->value), writer->touched_begin(), writer->touched_end(), i, meet());
    }
    if (rows != nullptr) rows[i] = slot == nullptr ? -1 : static_cast<std::int64_t>(slot->value);
  }
  void finish() { known.finish(meet()); }

 private:
  auto meet() const {
    return [this](std::byte* row, std::int64_t i) { writer->meet(row, i); };
  }
};

template <class View>
struct Erasure {
  static constexpr bool kHot = true;
  View view;
  RowSink* row_sink;

  void found(typename View::SlotType* slot, bool any_empty, Tally& tally) const {
    --tally.size;
    ++tally.erased;
    if constexpr (View::kHasValue) {
      if (has_rows(view)) row_sink->give_back(slot->value);
      slot->value = empty_value<typename View::Value>();
    }
    slot->key = mark_of_erased<typename View::Key>(any_empty);
  }
};

template <class View>
struct AbsentKeys {
  KeyBatch keys;
  typename View::Key* to;

  void absent(std::int64_t i) { *to++ = load_word<typename View::Key>(keys.data, i, keys.bytes); }
};

}  // namespace gpuhash::host
