#include <gpuhash/key_columns.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "shared/key_numbers.hpp"
#include "table/executor.hpp"

namespace gpuhash {
namespace {

/// More digits than these are not packed: kernels take them all as one argument.
constexpr std::int64_t kMostDigits = 16;
/// Rows that may tell that it is of no use to read all others.
constexpr std::int64_t kSampledRows = 1 << 10;
/// A GPU has read fewer bytes than these about as soon as the host has heard of a sample.
constexpr std::int64_t kLeastSampledBytesOnGpu = std::int64_t{1} << 29;

bool has_digits(const KeyColumn& column) { return column.offsets == nullptr && !is_complex(column.dtype); }

/// Where the digits of the columns are; nothing where they are too many, or a column has none.
std::vector<Digit> place_digits(const std::vector<KeyColumn>& columns) {
  std::vector<Digit> digits;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const KeyColumn& column = columns[c];
    if (!has_digits(column) || column.elements > kMostDigits - static_cast<std::int64_t>(digits.size())) return {};
    for (std::int64_t e = 0; e < column.elements; ++e) {
      Digit digit;
      digit.column = static_cast<std::int64_t>(c);
      digit.element = e;
      digit.dtype = column.dtype;
      digits.push_back(digit);
    }
  }
  return digits;
}

/// Nothing where there are too many words.
std::optional<Packing> make_packing(const std::vector<KeyColumn>& columns, std::vector<Digit> digits,
                                    const std::vector<NumberRange>& ranges) {
  std::uint64_t words = 1;
  for (std::size_t d = digits.size(); d-- > 0;) {
    Digit& digit = digits[d];
    digit.least = ranges[d].least;
    digit.most = ranges[d].most;
    digit.factor = words;
    const bool is_none = digit.least > digit.most;
    std::uint64_t numbers = is_none ? 0 : digit.most - digit.least;
    const bool has_null = digit.element == 0 && columns[static_cast<std::size_t>(digit.column)].valid != nullptr;
    std::uint64_t more = (is_none ? 0 : 1) + (has_null ? 1 : 0);
    if (__builtin_add_overflow(numbers, more, &numbers)) return std::nullopt;
    if (has_null) digit.null = numbers - 1;
    digit.has_null = has_null || digit.element != 0;
    if (__builtin_mul_overflow(words, std::max<std::uint64_t>(numbers, 1), &words)) return std::nullopt;
  }
  return Packing{std::move(digits), words};
}

/// What an integer is whose order word is 0.
__int128 least_integer(DType dtype) {
  const NumberFormat format = number_format(dtype, 1);
  return format.is_signed ? -(static_cast<__int128>(1) << (format.bits - 1)) : 0;
}

}  // namespace

const ColumnKeys& ColumnKeys::of(const DeviceContext& context) { return *context.executors().column_keys; }

std::optional<Packing> ColumnKeys::find_packing(DeviceContext& context, const KeyRows& rows, Stream stream) const {
  std::vector<Digit> digits = place_digits(rows.columns);
  if (digits.empty()) return std::nullopt;
  std::int64_t row_bytes = 0;
  for (const KeyColumn& column : rows.columns) row_bytes += column.bytes();
  const bool is_long = context.is_host() || rows.count > kLeastSampledBytesOnGpu / row_bytes;
  if (rows.count > 2 * kSampledRows && is_long) {
    KeyRows sample = rows;
    sample.count = kSampledRows;
    if (!make_packing(rows.columns, digits, find_ranges(context, sample, digits, stream))) return std::nullopt;
  }
  const std::vector<NumberRange> ranges = find_ranges(context, rows, digits, stream);
  return make_packing(rows.columns, std::move(digits), ranges);
}

Packing Packing::of(const std::vector<KeyColumn>& columns) const {
  Packing packing = *this;
  for (Digit& digit : packing.digits) {
    const DType dtype = columns[static_cast<std::size_t>(digit.column)].dtype;
    if (dtype == digit.dtype || digit.least > digit.most) continue;
    const __int128 shift = least_integer(digit.dtype) - least_integer(dtype);
    const __int128 least = static_cast<__int128>(digit.least) + shift;
    const __int128 most = static_cast<__int128>(digit.most) + shift;
    const __int128 limit = static_cast<__int128>(detail::low_bits(number_format(dtype, 1).bits));
    digit.dtype = dtype;
    if (most < 0 || least > limit) {
      digit.least = 1;
      digit.most = 0;
      continue;
    }
    digit.least = static_cast<std::uint64_t>(std::max<__int128>(least, 0));
    digit.most = static_cast<std::uint64_t>(std::min(most, limit));
    digit.base = static_cast<std::uint64_t>(static_cast<__int128>(digit.least) - least);
  }
  return packing;
}

}  // namespace gpuhash
