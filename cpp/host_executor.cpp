#include "host_executor.hpp"

#include <cstring>
#include <type_traits>

#include "apply.hpp"
#include "host_combine.hpp"
#include "host_find.hpp"
#include "host_parallel.hpp"
#include "host_rehash.hpp"
#include "host_rows.hpp"
#include "host_set_routines.hpp"

namespace gpuhash {

using host::for_each_part;
using host::load_word;
using host::Purpose;
using host::Reach;
using host::store_word;
using host::Tally;

namespace {

template <class View>
bool has_rows(const View& view) {
  return View::kHasValue && view.rows.bytes != 0;
}

const std::byte* value_at(const ValueBatch& values, std::int64_t i) {
  return static_cast<const std::byte*>(values.data) + (values.broadcast ? 0 : i * values.bytes);
}

std::int64_t stride_of(const ValueBatch& values) { return values.broadcast ? 0 : values.bytes; }

/// Are keys and values as wide as the slot's?
template <class View, class Batch>
bool is_plain(const View& view, const Batch& batch) {
  if (batch.keys.bytes != sizeof(typename View::Key) || has_rows(view)) return false;
  return !View::kHasValue || batch.values.bytes == sizeof(typename View::Value);
}

/// A new key's slot gets key and value. Else, place() is told what is there.
template <class View>
void store_new(const View& view, const typename View::Key& stored, typename View::SlotType* slot,
               [[maybe_unused]] const ValueBatch& values, [[maybe_unused]] std::int64_t i,
               [[maybe_unused]] host::RowSource& row_source) {
  slot->key = stored;
  if constexpr (View::kHasValue) {
    using Value = typename View::Value;
    if (has_rows(view)) {
      const std::uint64_t row = row_source.take();
      slot->value = static_cast<Value>(row);
      std::memcpy(host::row_data(view, row), value_at(values, i), static_cast<std::size_t>(values.bytes));
    } else {
      slot->value = load_word<Value>(value_at(values, i), 0, values.bytes);
    }
  }
}

/// As Insertion, with keys and values as wide as the slot's: what a batch mostly is.
template <class View>
struct PlainInsertion {
  static constexpr bool kPlain = true;
  using Value = typename View::Value;

  const std::byte* values;  // null in sets
  std::int64_t stride;      // bytes from a key's value to the next
  bool assigns;
  bool* inserted;  // [n] or null

  void place(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) const {
    if (inserted != nullptr) inserted[i] = is_new;
    if (slot == nullptr) return;
    slot->key = stored;
    if constexpr (View::kHasValue)
      if (is_new || assigns) std::memcpy(&slot->value, values + i * stride, sizeof(Value));
  }
};

template <class View>
struct Insertion {
  static constexpr bool kPlain = false;

  View view;
  InsertBatch batch;
  host::RowSource* row_source;

  void place(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) const {
    if (is_new) {
      store_new(view, stored, slot, batch.values, i, *row_source);
    } else if constexpr (View::kHasValue) {
      if (batch.mode == InsertMode::kAssign && slot != nullptr) {
        const std::byte* const value = value_at(batch.values, i);
        if (has_rows(view))
          std::memcpy(host::row_data(view, slot->value), value, static_cast<std::size_t>(batch.values.bytes));
        else
          slot->value = load_word<typename View::Value>(value, 0, batch.values.bytes);
      }
    }
    if (batch.inserted != nullptr) batch.inserted[i] = is_new;
  }
};

/// As Application, for additions of T, which is as wide as the slot's value.
template <class View, class T>
struct PlainAddition {
  static constexpr bool kPlain = true;
  static_assert(sizeof(T) == sizeof(typename View::Value));

  const std::byte* values;
  std::int64_t stride;  // bytes from a key's value to the next
  bool* inserted;       // [n] or null

  void place(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) const {
    if (inserted != nullptr) inserted[i] = is_new;
    if (slot == nullptr) return;
    slot->key = stored;
    T update;
    std::memcpy(&update, values + i * stride, sizeof(T));
    if (!is_new) update = combine(ApplyOp::kAdd, cast_bits<T>(slot->value), update);
    std::memcpy(&slot->value, &update, sizeof(T));
  }
};

template <class View>
struct Application {
  static constexpr bool kPlain = false;

  View view;
  ApplyBatch batch;
  host::CombineFn combine;
  host::RowSource* row_source;

  void place(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) const {
    if (is_new) {
      store_new(view, stored, slot, batch.values, i, *row_source);
    } else if constexpr (View::kHasValue) {
      if (slot != nullptr) {
        void* const value =
            has_rows(view) ? static_cast<void*>(host::row_data(view, slot->value)) : static_cast<void*>(&slot->value);
        combine(value, value_at(batch.values, i), batch.elements);
      }
    }
    if (batch.inserted != nullptr) batch.inserted[i] = is_new;
  }
};

template <class View>
struct Erasure {
  static constexpr bool kPlain = false;

  View view;
  bool* erased;  // [n] or null
  host::RowSink* row_sink;

  void found(std::int64_t i, typename View::SlotType* slot, Tally& tally) const {
    if (erased != nullptr) erased[i] = true;
    --tally.size;
    ++tally.erased;
    if constexpr (View::kHasValue) {
      if (has_rows(view)) row_sink->give_back(slot->value);
      slot->value = empty_value<typename View::Value>();
    }
    // Where a key may have passed, an empty slot would hide it.
    constexpr auto kEmpty = empty_key<typename View::Key>();
    const bool never_passed = host::Portable::slots_with<View>(host::bucket_of(view, slot), kEmpty).any();
    slot->key = never_passed ? kEmpty : erased_key<typename View::Key>();
  }
  void absent(std::int64_t i) const {
    if (erased != nullptr) erased[i] = false;
  }
};

template <class View>
struct AbsentKeys {
  static constexpr bool kPlain = false;

  KeyBatch keys;
  typename View::Key* to;

  void found(std::int64_t, typename View::SlotType*) {}
  void absent(std::int64_t i) { *to++ = load_word<typename View::Key>(keys.data, i, keys.bytes); }
  void left_region(std::int64_t) {}
};

}  // namespace

template <class Key, class Value>
void HostExecutor<Key, Value>::clear(DeviceContext&, const View& view, Stream) const {
  const std::int64_t bucket_count = std::int64_t{view.geometry.bucket_count} + 1;
  // Several threads also because the first touch of a page is slow.
  for_each_part(bucket_count, host::reader_parts(bucket_count), [&](int, std::int64_t begin, std::int64_t end) {
    std::memset(static_cast<void*>(host::bucket_at(view, static_cast<std::uint64_t>(begin))), kEmptyByte,
                static_cast<std::size_t>(end - begin) * View::kBucketBytes);
  });
  std::memset(view.filters, 0, View::filter_bytes(view.geometry.bucket_count));
  *view.control = Control{};
}

template <class Key, class Value>
void HostExecutor<Key, Value>::find(DeviceContext&, const View& view, const KeyBatch& keys, const FindOutput& out,
                                    Stream) const {
  std::atomic<std::uint64_t> present{0};
  for_each_part(keys.count, host::reader_parts(keys.count), [&](int, std::int64_t begin, std::int64_t end) {
    present.fetch_add(host::find_range(view, keys, begin, end, out), std::memory_order_relaxed);
  });
  if (out.count_missing)
    view.control->missing = static_cast<std::uint64_t>(keys.count) - present.load(std::memory_order_relaxed);
}

template <class Key, class Value>
void HostExecutor<Key, Value>::insert(DeviceContext&, const View& view, const InsertBatch& batch, Stream) const {
  if (is_plain(view, batch)) {
    const PlainInsertion<View> insertion{static_cast<const std::byte*>(batch.values.data), stride_of(batch.values),
                                         batch.mode == InsertMode::kAssign, batch.inserted};
    return host::write_each<Purpose::kInsertion>(view, batch.keys, insertion);
  }
  host::RowSource row_source(view.rows, *view.control);
  host::write_each<Purpose::kInsertion>(view, batch.keys, Insertion<View>{view, batch, &row_source});
  row_source.settle();
}

template <class Key, class Value>
void HostExecutor<Key, Value>::apply(DeviceContext&, const View& view, const ApplyBatch& batch, Stream) const {
  if constexpr (View::kHasValue) {
    const auto add = [&]<class T>(T) {
      const PlainAddition<View, T> addition{static_cast<const std::byte*>(batch.values.data), stride_of(batch.values),
                                            batch.inserted};
      host::write_each<Purpose::kInsertion>(view, batch.keys, addition);
    };
    if (batch.op == ApplyOp::kAdd && is_plain(view, batch)) {
      using Float = std::conditional_t<sizeof(Value) == 8, double, float>;
      if (is_integer(batch.dtype)) return add(Value{});  // unsigned or not, the sum has the same bits
      if (batch.dtype == (sizeof(Value) == 8 ? DType::kFloat64 : DType::kFloat32)) return add(Float{});
    }
  }
  host::RowSource row_source(view.rows, *view.control);
  const host::CombineFn combine = host::combine_function(batch.dtype, batch.op);
  host::write_each<Purpose::kInsertion>(view, batch.keys, Application<View>{view, batch, combine, &row_source});
  row_source.settle();
}

template <class Key, class Value>
void HostExecutor<Key, Value>::erase(DeviceContext&, const View& view, const KeyBatch& keys, bool* erased, const Plan*,
                                     Stream) const {
  host::RowSink row_sink(view.rows, *view.control);
  host::write_each<Purpose::kLookup>(view, keys, Erasure<View>{view, erased, &row_sink});
  row_sink.settle();
}

template <class Key, class Value>
void HostExecutor<Key, Value>::list_absent(DeviceContext&, const View& view, const KeyBatch& keys, Key* out,
                                           Stream) const {
  const int parts = host::reader_parts(keys.count);
  const auto list = [&](std::int64_t begin, std::int64_t end) {
    AbsentKeys<View> absent_keys{keys, out + begin};
    host::walk_each<Purpose::kLookup>(view, Reach::kTable, keys, host::FromPosition{begin}, end - begin, absent_keys);
    return absent_keys.to - (out + begin);
  };
  if (parts == 1) {
    view.control->absent = static_cast<std::uint64_t>(list(0, keys.count));
    return;
  }
  // Every thread lists at the beginning of its own part; the lists are then moved together.
  auto counts = host::scratch<std::int64_t>(parts);
  for_each_part(keys.count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    counts[static_cast<std::size_t>(part)] = list(begin, end);
  });
  std::int64_t total = 0;
  for (int part = 0; part < parts; ++part) {
    const std::int64_t count = counts[static_cast<std::size_t>(part)];
    std::memmove(out + total, out + host::part_begin(keys.count, part, parts),
                 static_cast<std::size_t>(count) * sizeof(Key));
    total += count;
  }
  view.control->absent = static_cast<std::uint64_t>(total);
}

template <class Key, class Value>
void HostExecutor<Key, Value>::rehash(DeviceContext& context, const View& from, const View& to, bool compact_rows,
                                      Stream stream) const {
  clear(context, to, stream);
  host::Rehash<View>(from, to, compact_rows).run();
}

template <class Key, class Value>
void HostExecutor<Key, Value>::export_items(DeviceContext&, const View& view, void* keys, std::uint32_t key_bytes,
                                            [[maybe_unused]] void* values, [[maybe_unused]] std::int64_t value_bytes,
                                            [[maybe_unused]] std::int64_t* rows, Stream) const {
  const auto write = [&](std::int64_t first_bucket, std::int64_t last_bucket, std::int64_t at) {
    host::for_each_live(view, static_cast<std::uint64_t>(first_bucket), static_cast<std::uint64_t>(last_bucket),
                        [&](const typename View::SlotType* slot, bool stray) {
                          if (keys != nullptr) store_word(keys, at, key_bytes, key_of_slot(slot->key, stray));
                          if constexpr (View::kHasValue) {
                            if (rows != nullptr) rows[at] = static_cast<std::int64_t>(slot->value);
                            if (values == nullptr) {
                            } else if (has_rows(view)) {
                              std::memcpy(static_cast<std::byte*>(values) + at * value_bytes,
                                          host::row_data(view, slot->value), static_cast<std::size_t>(value_bytes));
                            } else {
                              store_word(values, at, value_bytes, slot->value);
                            }
                          }
                          ++at;
                        });
  };
  const std::int64_t bucket_count = std::int64_t{view.geometry.bucket_count} + 1;
  const int parts = host::reader_parts(bucket_count);
  if (parts == 1) return write(0, bucket_count, 0);
  auto counts = host::scratch<std::int64_t>(parts);
  for_each_part(bucket_count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t count = 0;
    host::for_each_live(view, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end),
                        [&](const auto*, bool) { ++count; });
    counts[static_cast<std::size_t>(part)] = count;
  });
  for_each_part(bucket_count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t before = 0;
    for (int p = 0; p < part; ++p) before += counts[static_cast<std::size_t>(p)];
    write(begin, end, before);
  });
}

template class HostExecutor<std::uint32_t, NoValue>;
template class HostExecutor<std::uint32_t, std::uint32_t>;
template class HostExecutor<std::uint64_t, NoValue>;
template class HostExecutor<std::uint64_t, std::uint64_t>;
template class HostExecutor<Uint128, NoValue>;
template class HostExecutor<Uint128, std::uint64_t>;

const Executors& host_executors() {
  static const HostExecutor<std::uint32_t, NoValue> k4;
  static const HostExecutor<std::uint32_t, std::uint32_t> k4v4;
  static const HostExecutor<std::uint64_t, NoValue> k8;
  static const HostExecutor<std::uint64_t, std::uint64_t> k8v8;
  static const HostExecutor<Uint128, NoValue> k16;
  static const HostExecutor<Uint128, std::uint64_t> k16v8;
  static const Executors executors{&k4, &k4v4, &k8, &k8v8, &k16, &k16v8, &host_set_routines()};
  return executors;
}

}  // namespace gpuhash
