#include <gpuhash/table.hpp>

namespace gpuhash {
namespace {

constexpr std::int64_t kMaxInlineBytes = 8;

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

bool TableOptions::has_rows() const { return value_dtype && (!value_shape.empty() || value_bytes() > kMaxInlineBytes); }

}  // namespace gpuhash
