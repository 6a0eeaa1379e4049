#pragma once

#include <atomic>
#include <cstring>
#include <span>
#include <type_traits>

#include "host/executor.hpp"
#include "host/parallel.hpp"
#include "host/walk/export.hpp"
#include "host/walk/find.hpp"
#include "host/walk/merged_keys.hpp"
#include "host/walk/operations.hpp"
#include "host/walk/rehash.hpp"
#include "host/walk/write_each.hpp"

namespace gpuhash::host {

/// The algorithms on the host, on all cores; done when a call returns. A batch has the effect of a loop over it, in
/// order.
template <class Key, class Value>
class HostExecutor final : public Executor<Key, Value> {
 public:
  using View = TableView<Key, Value>;

  void clear(DeviceContext&, const View& view, Stream) const override;
  void find(DeviceContext&, const View& view, const KeyBatch& keys, const FindOrder& out, Stream) const override;
  void insert(DeviceContext&, const View& view, const InsertOrder& batch, Stream) const override;
  void apply(DeviceContext&, const View& view, const ApplyOrder& batch, Stream) const override;
  void read_columns(DeviceContext&, const View& view, const std::int64_t* rows, std::int64_t count,
                    std::span<const ColumnRead> columns, Stream) const override;
  void change_columns(DeviceContext&, const View& view, const ColumnsOrder& batch, Stream) const override;
  void erase(DeviceContext&, const View& view, const KeyBatch& keys, bool* erased, const Plan*, Stream) const override;
  void list_absent(DeviceContext&, const View& view, const KeyBatch& keys, Key* out, Stream) const override;
  void rehash(DeviceContext&, const View& from, const View& to, bool compact_rows, RehashMemory, Stream) const override;
  void export_items(DeviceContext&, const View& view, void* keys, std::uint32_t key_bytes, void* values,
                    std::int64_t value_bytes, std::int64_t* rows, Stream) const override;
};

template <class Key, class Value>
void HostExecutor<Key, Value>::clear(DeviceContext&, const View& view, Stream) const {
  const std::int64_t bucket_count = std::int64_t{view.geometry.bucket_count} + 1;
  // Several threads also because the first touch of a page is slow. Once begun it is done whole: in slots of which a
  // part is empty, keys lie where no walk gets any more.
  for_each_part(bucket_count, reader_parts(bucket_count), [&](int, std::int64_t begin, std::int64_t end) {
    clear_buckets(view, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end));
  });
  *view.control = Control{};
}

template <class Key, class Value>
void HostExecutor<Key, Value>::find(DeviceContext&, const View& view, const KeyBatch& keys, const FindOrder& out,
                                    Stream) const {
  std::atomic<std::uint64_t> present{0};
  for_each_part(keys.count, reader_parts(keys.count), [&](int, std::int64_t first, std::int64_t last) {
    in_pieces(first, last, kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
      present.fetch_add(find_range(view, keys, begin, end, out), std::memory_order_relaxed);
    });
  });
  if (out.count_missing)
    view.control->missing = static_cast<std::uint64_t>(keys.count) - present.load(std::memory_order_relaxed);
}

template <class Key, class Value>
void HostExecutor<Key, Value>::insert(DeviceContext&, const View& view, const InsertOrder& batch, Stream) const {
  if (are_plain(view, batch.values)) {
    const PlainInsertion<View> insertion{static_cast<const std::byte*>(batch.values.data), stride_of(batch.values),
                                         batch.action == Action::kAssign};
    return write_each<Purpose::kInsertion>(view, batch.keys, insertion, batch.inserted, batch.stop);
  }
  RowSource row_source(view.rows, *view.control);
  write_each<Purpose::kInsertion>(view, batch.keys, Insertion<View>{view, batch, &row_source}, batch.inserted,
                                  batch.stop);
}

template <class Key, class Value>
void HostExecutor<Key, Value>::apply(DeviceContext&, const View& view, const ApplyOrder& batch, Stream) const {
  if constexpr (View::kHasValue) {
    const auto write = [&](const auto& operation_of) {
      if (MergedKeys<View>::allows(view, batch))
        if (const auto merged = MergedKeys<View>::make(view, batch)) return merged->write(operation_of);
      write_each<Purpose::kInsertion>(view, batch.keys, operation_of(batch), batch.inserted, batch.stop);
    };
    constexpr DType kFloat = sizeof(Value) == 8 ? DType::kFloat64 : DType::kFloat32;
    const bool is_float = batch.dtype == kFloat;
    if (batch.op == Action::kAdd && are_plain(view, batch.values) && (is_float || is_integer(batch.dtype)))
      return write([is_float](const ApplyOrder& order) {
        return PlainAddition<View>{static_cast<const std::byte*>(order.values.data), stride_of(order.values), is_float};
      });
    RowSource row_source(view.rows, *view.control);
    const CombineFn combine = combine_function(batch.dtype, batch.op);
    write([&](const ApplyOrder& order) { return Application<View>{view, order, combine, &row_source}; });
  }
}

template <class Key, class Value>
void HostExecutor<Key, Value>::read_columns(DeviceContext&, const View& view, const std::int64_t* rows,
                                            std::int64_t count, std::span<const ColumnRead> columns, Stream) const {
  host::read_columns(view.rows, rows, count, columns);
}

template <class Key, class Value>
void HostExecutor<Key, Value>::change_columns(DeviceContext&, const View& view, const ColumnsOrder& batch,
                                              Stream) const {
  if constexpr (kMayHaveRows<View>) {
    const RowWriter writer(batch);
    RowSource row_source(view.rows, *view.control);
    write_each<Purpose::kInsertion>(view, batch.keys, ColumnsChange<View>{view, &writer, &row_source, batch.rows},
                                    batch.inserted, batch.stop);
  }
}

template <class Key, class Value>
void HostExecutor<Key, Value>::erase(DeviceContext&, const View& view, const KeyBatch& keys, bool* erased, const Plan*,
                                     Stream) const {
  RowSink row_sink(view.rows, *view.control);
  write_each<Purpose::kLookup>(view, keys, Erasure<View>{view, &row_sink}, erased);
}

template <class Key, class Value>
void HostExecutor<Key, Value>::list_absent(DeviceContext&, const View& view, const KeyBatch& keys, Key* out,
                                           Stream) const {
  const int parts = reader_parts(keys.count);
  const auto list = [&](std::int64_t first, std::int64_t last) {
    AbsentKeys<View> absent_keys{keys, out + first};
    in_pieces(first, last, kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
      walk<Purpose::kLookup>(view, Reach::kTable, run_of(keys, begin, end), absent_keys);
    });
    return absent_keys.to - (out + first);
  };
  if (parts == 1) {
    view.control->absent = static_cast<std::uint64_t>(list(0, keys.count));
    return;
  }
  // Every thread lists at the beginning of its own part; the lists are then moved together.
  auto counts = scratch<std::int64_t>(parts);
  for_each_part(keys.count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    counts[static_cast<std::size_t>(part)] = list(begin, end);
  });
  std::int64_t total = 0;
  for (int part = 0; part < parts; ++part) {
    const std::int64_t count = counts[static_cast<std::size_t>(part)];
    std::memmove(out + total, out + part_begin(keys.count, part, parts), static_cast<std::size_t>(count) * sizeof(Key));
    total += count;
  }
  view.control->absent = static_cast<std::uint64_t>(total);
}

template <class Key, class Value>
void HostExecutor<Key, Value>::rehash(DeviceContext&, const View& from, const View& to, bool compact_rows, RehashMemory,
                                      Stream) const {
  Rehash<View>(from, to, compact_rows).run();
}

template <class Key, class Value>
void HostExecutor<Key, Value>::export_items(DeviceContext&, const View& view, void* keys, std::uint32_t key_bytes,
                                            void* values, std::int64_t value_bytes, std::int64_t* rows, Stream) const {
  const typename ItemWriter<View>::Output out{keys, key_bytes, values, value_bytes, rows};
  const auto write = [&](std::int64_t first_bucket, std::int64_t last_bucket, std::int64_t at) {
    ItemWriter<View> writer(view, out, at);
    in_pieces(first_bucket, last_bucket, kBucketsPerPiece, [&](std::int64_t begin, std::int64_t end) {
      writer.write(static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end));
    });
  };
  const std::int64_t bucket_count = std::int64_t{view.geometry.bucket_count} + 1;
  const int parts = reader_parts(bucket_count);
  if (parts == 1) return write(0, bucket_count, 0);
  auto counts = scratch<std::int64_t>(parts);
  for_each_part(bucket_count, parts, [&](int part, std::int64_t first, std::int64_t last) {
    std::int64_t count = 0;
    in_pieces(first, last, kBucketsPerPiece, [&](std::int64_t begin, std::int64_t end) {
      count += count_live(view, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end));
    });
    counts[static_cast<std::size_t>(part)] = count;
  });
  for_each_part(bucket_count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t before = 0;
    for (int p = 0; p < part; ++p) before += counts[static_cast<std::size_t>(p)];
    write(begin, end, before);
  });
}

template <class Key, class Value>
const Executor<Key, Value>& HostAlgorithms::executor() {
  static const auto& executor = *new HostExecutor<Key, Value>;  // never destroyed: threads may work at exit
  return executor;
}

}  // namespace gpuhash::host
