#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <gpuhash/device_context.hpp>
#include <gpuhash/error.hpp>
#include "shared/layout.hpp"

namespace gpuhash {

/// The geometry of at least `slots` slots. Throws ShapeError where they are too many.
template <class View>
Geometry make_geometry(std::int64_t slots, const Seeds& seeds) {
  const std::uint64_t wanted =
      std::max<std::uint64_t>(1, (static_cast<std::uint64_t>(slots) + View::kSlots - 1) / View::kSlots);
  if (wanted > kMaxBuckets)
    throw ShapeError("a table of " + std::to_string(slots) + " slots was asked for; at most " +
                     std::to_string(kMaxBuckets * View::kSlots) + " are possible");
  // Of two geometries for the same number of buckets only one exists, so that a copy's is that of its original.
  const std::uint64_t regions = (wanted + View::kMaxRegionBuckets - 1) / View::kMaxRegionBuckets;
  const std::uint64_t region_buckets = (wanted + regions - 1) / regions;
  return {static_cast<std::uint32_t>(regions * region_buckets), static_cast<std::uint32_t>(regions),
          static_cast<std::uint32_t>(region_buckets), seeds};
}

/// A table's capacity: its slots without those of the stray bucket.
template <class View>
std::int64_t capacity_of(const Geometry& geometry) {
  return std::int64_t{geometry.bucket_count} * View::kSlots;
}

/// The memory of one generation of a table; growth builds the next one and swaps. What lies in it is the executor's
/// work: new memory holds nothing yet.
template <class Key, class Value>
class Storage {
 public:
  using View = TableView<Key, Value>;

  Storage() = default;
  /// row_bytes: per row; 0: no row storage, whatever row_capacity says. before: null, or a generation whose rows become
  /// this one's as well where they can grow to row_capacity: they then have one address in both, and all bytes.
  Storage(DeviceContext& context, const Geometry& geometry, std::int64_t row_capacity, std::int64_t row_bytes,
          Stream stream, const Storage* before = nullptr);

  /// Bytes that a generation without rows takes.
  static std::size_t bytes_of(const Geometry& geometry) { return Layout(geometry.bucket_count).bytes; }

  const View& view() const { return view_; }
  std::int64_t capacity() const { return capacity_of<View>(view_.geometry); }
  /// Null without row storage.
  const std::shared_ptr<Allocation>& rows() const { return rows_; }
  std::int64_t nbytes() const;

  /// New rows in place of those that there are.
  void allocate_rows(DeviceContext& context, std::int64_t row_capacity, std::int64_t row_bytes, Stream stream,
                     const Storage* before = nullptr);
  /// Of memory that holds nothing yet.
  void set_seeds(const Seeds& seeds) { view_.geometry.seeds = seeds; }
  void set_may_have_erased(bool may_have_erased) { view_.may_have_erased = may_have_erased; }
  /// The stream in whose order the memory is given back.
  void set_stream(Stream stream);
  /// Others use it on streams of which the table is not told: see Allocation::lend().
  void lend(const std::shared_ptr<DeviceContext>& context);

 private:
  /// Where the parts of the block of memory begin, and its length. Filters are read as words, and lines not shared.
  struct Layout {
    static constexpr std::size_t kLine = 128;
    std::size_t filters;
    std::size_t control;
    std::size_t bytes;

    explicit Layout(std::uint64_t buckets)
        : filters(lines(View::slot_bytes(buckets))),
          control(filters + lines(View::filter_bytes(buckets))),
          bytes(control + sizeof(Control)) {}
    static constexpr std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  };

  /// No allocation is larger; sums of sizes do not overflow.
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 60;
  /// Rows of at least so many bytes grow where they lie. Memory that can grow comes in pieces of 2 MiB, and straight
  /// from the system, which takes longer than a pool.
  static constexpr std::size_t kGrowsInPlace = std::size_t{4} << 20;

  Allocation table_;                  // slots, filters and control in one block
  std::shared_ptr<Allocation> rows_;  // shared with views of the rows, which keep them
  Allocation free_rows_;
  Allocation row_tags_;
  View view_{};
};

template <class Key, class Value>
Storage<Key, Value>::Storage(DeviceContext& context, const Geometry& geometry, std::int64_t row_capacity,
                             std::int64_t row_bytes, Stream stream, const Storage* before)
    : table_(context, Layout(geometry.bucket_count).bytes, stream) {
  const Layout layout(geometry.bucket_count);
  auto* const begin = table_.template as<std::byte>();
  view_.slots = reinterpret_cast<typename View::SlotType*>(begin);
  view_.filters = reinterpret_cast<std::uint8_t*>(begin + layout.filters);
  view_.control = reinterpret_cast<Control*>(begin + layout.control);
  view_.geometry = geometry;
  if (row_bytes != 0) allocate_rows(context, row_capacity, row_bytes, stream, before);
}

template <class Key, class Value>
void Storage<Key, Value>::allocate_rows(DeviceContext& context, std::int64_t row_capacity, std::int64_t row_bytes,
                                        Stream stream, const Storage* before) {
  const auto rows = static_cast<std::size_t>(row_capacity);
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(rows, static_cast<std::size_t>(row_bytes), &bytes) || bytes > kMaxBytes)
    throw OutOfMemoryError(std::to_string(rows) + " rows of " + std::to_string(row_bytes) +
                           " bytes were asked for; no memory holds that many");
  bytes = (bytes + 3) / 4 * 4;  // whole words: the GPU swaps a single byte by way of the word around it
  free_rows_ = Allocation(context, rows * sizeof(std::int64_t), stream);
  row_tags_ = Allocation(context, rows * sizeof(std::uint32_t), stream);
  if (before != nullptr && row_capacity >= before->view_.rows.capacity && before->rows_->can_grow(bytes)) {
    rows_ = before->rows_;
    rows_->grow(bytes);  // the last thing here that may fail: what it has got stays
  } else {
    rows_ = std::make_shared<Allocation>(bytes >= kGrowsInPlace ? Allocation::growing(context, bytes, stream)
                                                                : Allocation(context, bytes, stream));
  }
  view_.rows = {rows_->template as<std::byte>(), free_rows_.template as<std::int64_t>(),
                row_tags_.template as<std::uint32_t>(), row_capacity, row_bytes};
}

template <class Key, class Value>
void Storage<Key, Value>::set_stream(Stream stream) {
  for (Allocation* memory : {&table_, &free_rows_, &row_tags_}) memory->set_stream(stream);
  if (rows_) rows_->set_stream(stream);
}

template <class Key, class Value>
void Storage<Key, Value>::lend(const std::shared_ptr<DeviceContext>& context) {
  for (Allocation* memory : {&table_, &free_rows_, &row_tags_}) memory->lend(context);
  if (rows_ != nullptr) rows_->lend(context);
}

template <class Key, class Value>
std::int64_t Storage<Key, Value>::nbytes() const {
  std::size_t bytes = rows_ ? rows_->bytes() : 0;
  for (const Allocation* memory : {&table_, &free_rows_, &row_tags_}) bytes += memory->bytes();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace gpuhash
