#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shared/layout.hpp"

/// Row storage, as the host's threads use it together. A *row* is a value that does not fit beside its key.
namespace gpuhash::host {

template <class View>
std::byte* row_data(const View& view, std::uint64_t row) {
  return view.rows.data + static_cast<std::int64_t>(row) * view.rows.bytes;
}

/// Hands out rows during one insertion: those on the free stack first, then new ones.
class RowSource {
 public:
  RowSource(const RowView& rows, Control& control) : rows_(rows), control_(control) {}
  /// When all threads are done, if only because they were interrupted.
  ~RowSource() {
    const std::uint64_t taken = taken_.load(std::memory_order_relaxed);
    const std::uint64_t reused = taken < control_.free_rows ? taken : control_.free_rows;
    control_.free_rows -= reused;
    control_.next_row += taken - reused;
  }
  RowSource(const RowSource&) = delete;
  RowSource& operator=(const RowSource&) = delete;

  std::uint64_t take() {
    const std::uint64_t ticket = taken_.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t free_rows = control_.free_rows;
    if (ticket < free_rows) return static_cast<std::uint64_t>(rows_.free[free_rows - 1 - ticket]);
    return control_.next_row + (ticket - free_rows);
  }

 private:
  const RowView& rows_;
  Control& control_;
  std::atomic<std::uint64_t> taken_{0};
};

/// Takes rows back during one erasure. The free stack has room for every row there is.
class RowSink {
 public:
  RowSink(const RowView& rows, Control& control) : rows_(rows), control_(control) {}
  /// As of a RowSource.
  ~RowSink() { control_.free_rows += given_.load(std::memory_order_relaxed); }
  RowSink(const RowSink&) = delete;
  RowSink& operator=(const RowSink&) = delete;

  void give_back(std::uint64_t row) {
    const std::uint64_t ticket = given_.fetch_add(1, std::memory_order_relaxed);
    rows_.free[control_.free_rows + ticket] = static_cast<std::int64_t>(row);
  }

 private:
  const RowView& rows_;
  Control& control_;
  std::atomic<std::uint64_t> given_{0};
};

}  // namespace gpuhash::host
