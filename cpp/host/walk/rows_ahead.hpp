#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "host/walk/pipeline.hpp"

namespace gpuhash::host {

/// Rows of the keys that a pipeline meets: they are asked for at once, and worked on some keys later, in order. To
/// write whole rows is no reason: the processor does not wait for that, and was 0.9 to 1.3 times as fast with it.
template <bool kWrites>
class RowsAhead {
 public:
  /// work(row, i) is called for a row that was pushed before, with its key's position. It works on bytes [begin, end).
  template <class Byte, class Work>
  void push(Byte* row, std::int64_t begin, std::int64_t end, std::int64_t i, const Work& work) {
    end = std::min(end, begin + kAskedBytes);
    for (std::int64_t byte = begin; byte < end; byte += 64) __builtin_prefetch(row + byte, kWrites);
    rows_.push_if(true, {const_cast<std::byte*>(row), i});
    if (rows_.size() > kRows) pop(work);
  }
  template <class Work>
  void finish(const Work& work) {
    while (rows_.size() > 0) pop(work);
  }

 private:
  static constexpr std::uint64_t kRows = 8;
  static constexpr std::int64_t kAskedBytes = 512;  // of a row; the processor sees by itself that more are used

  struct Row {
    std::byte* data;
    std::int64_t i;
  };

  template <class Work>
  void pop(const Work& work) {
    const Row row = rows_.pop();
    work(row.data, row.i);
  }

  Queue<Row, 16> rows_;
};

}  // namespace gpuhash::host
