#include <gpuhash/table.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

namespace gpuhash {
namespace {

constexpr std::size_t kMaxInlineBytes = 8;

}  // namespace

std::int64_t TableOptions::value_elements() const {
  std::int64_t elements = 1;
  for (const std::int64_t extent : value_shape) elements *= extent;
  return elements;
}

std::uint32_t TableOptions::key_bytes() const {
  return static_cast<std::uint32_t>(itemsize(key_dtype) * static_cast<std::size_t>(key_elements));
}

std::int64_t TableOptions::value_bytes() const {
  return value_dtype ? static_cast<std::int64_t>(itemsize(*value_dtype)) * value_elements() : 0;
}

bool TableOptions::has_rows() const {
  if (!value_dtype) return !columns.empty();
  return !value_shape.empty() || itemsize(*value_dtype) > kMaxInlineBytes;
}

std::int64_t TableOptions::row_bytes() const {
  if (!columns.empty()) return place_columns(columns).bytes;
  return has_rows() ? value_bytes() : 0;
}

std::int64_t Column::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t Column::bytes() const { return static_cast<std::int64_t>(itemsize(dtype)) * elements(); }

RowLayout place_columns(const std::vector<Column>& columns) {
  std::vector<std::size_t> order(columns.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t c) { return itemsize(columns[c].dtype); });
  RowLayout layout;
  layout.offsets.resize(columns.size());
  for (const std::size_t c : order) {
    layout.offsets[c] = layout.bytes;
    layout.bytes += columns[c].bytes();
  }
  if (columns.empty()) return layout;
  constexpr std::int64_t kWidestWord = 16;
  const std::int64_t unit =
      layout.bytes >= kWidestWord ? kWidestWord : static_cast<std::int64_t>(itemsize(columns[order.front()].dtype));
  layout.bytes = (layout.bytes + unit - 1) / unit * unit;
  return layout;
}

}  // namespace gpuhash
