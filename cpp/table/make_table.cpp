#include <gpuhash/table.hpp>

#include <cmath>
#include <set>
#include <string>
#include <utility>

#include <gpuhash/error.hpp>
#include "table/hash_table.hpp"
#include "table/wide_key_table.hpp"

namespace gpuhash {
namespace {

constexpr std::int64_t kMaxKeyBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMaxValueBytes = std::int64_t{1} << 28;

void check_initializer(const Initializer& from, DType dtype) {
  if (from.distribution == Distribution::kConstant) return;
  if (is_integer(dtype) || is_complex(dtype) || dtype == DType::kBool)
    throw DTypeError("an initializer that draws numbers was given for values of " + std::string(name(dtype)) +
                     "; they are drawn for float16, bfloat16, float32 and float64");
  const bool uniform = from.distribution == Distribution::kUniform;
  if (!std::isfinite(from.first) || !std::isfinite(from.second) || from.second < (uniform ? from.first : 0))
    throw ShapeError("the initializer has the parameters " + std::to_string(from.first) + " and " +
                     std::to_string(from.second) +
                     "; bounds ascend, standard deviations are 0 or more, all are finite");
}

/// The bytes of one value; ShapeError for extents that cannot be.
std::int64_t check_shape(DType dtype, const std::vector<std::int64_t>& shape, const std::string& what) {
  auto bytes = static_cast<std::int64_t>(itemsize(dtype));
  for (const std::int64_t extent : shape) {
    if (extent < 1) throw ShapeError(what + " has an extent of " + std::to_string(extent) + "; extents are 1 or more");
    if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes > kMaxValueBytes)
      throw ShapeError(what + " asks for more than " + std::to_string(kMaxValueBytes) +
                       " bytes per value, the most that is possible");
  }
  return bytes;
}

void check_columns(const TableOptions& options) {
  if (options.columns.empty()) return;
  if (options.value_dtype || !options.value_shape.empty() || options.initializer)
    throw ShapeError("a table was to have columns and a single value besides: what the value is, a column says");
  std::set<std::string> names;
  std::int64_t bytes = 0;
  for (const Column& column : options.columns) {
    if (column.name.empty()) throw ShapeError("a column has no name; each has one of a character or more");
    const std::string what = "the column \"" + column.name + "\"";
    if (!names.insert(column.name).second) throw ShapeError(what + " is there twice");
    bytes += check_shape(column.dtype, column.shape, what);
    if (bytes > kMaxValueBytes)
      throw ShapeError("the columns ask for more than " + std::to_string(kMaxValueBytes) +
                       " bytes per key, the most that is possible");
    if (column.initializer) check_initializer(*column.initializer, column.dtype);
  }
}

void check(const TableOptions& options) {
  if (!is_integer(options.key_dtype))
    throw DTypeError("keys of dtype " + std::string(name(options.key_dtype)) +
                     " were given; keys are integers: view them as an integer dtype of the same width");
  const std::int64_t most = kMaxKeyBytes / static_cast<std::int64_t>(itemsize(options.key_dtype));
  if (options.key_elements < 1 || options.key_elements > most)
    throw ShapeError("keys of " + std::to_string(options.key_elements) + " x " + std::string(name(options.key_dtype)) +
                     " were asked for; a key has 1 to " + std::to_string(kMaxKeyBytes) + " bytes");
  check_columns(options);
  if (options.value_dtype) check_shape(*options.value_dtype, options.value_shape, "value_shape");
  if (options.capacity < 0)
    throw ShapeError("capacity is " + std::to_string(options.capacity) + "; slots are 0 or more");
  if (options.max_capacity && *options.max_capacity < 1)
    throw ShapeError("max_capacity is " + std::to_string(*options.max_capacity) + "; slots are 1 or more");
  if (options.max_capacity && options.capacity > *options.max_capacity)
    throw ShapeError("capacity " + std::to_string(options.capacity) + " is larger than max_capacity " +
                     std::to_string(*options.max_capacity));
  if (!(options.max_load_factor > 0 && options.max_load_factor <= 1))
    throw ShapeError("max_load_factor must lie in (0, 1], not " + std::to_string(options.max_load_factor));
  if (!options.initializer) return;
  if (!options.has_rows())
    throw ShapeError("an initializer was given; it fills rows, and the values of the table lie beside their keys");
  check_initializer(*options.initializer, *options.value_dtype);
}

}  // namespace

std::shared_ptr<Table> Table::make(const TableOptions& options, std::shared_ptr<DeviceContext> context) {
  check(options);
  if (options.key_bytes() > kMostSlotKeyBytes) return std::make_shared<WideKeyTable>(options, std::move(context));
  return make_hash_table(options, std::move(context));
}

}  // namespace gpuhash
