#include <gpuhash/dtype.hpp>

#include <array>
#include <string>

#include <gpuhash/error.hpp>

namespace gpuhash {
namespace {

struct Entry {
  std::string_view name;
  std::size_t itemsize;
};

// In the order of the enumerators.
constexpr std::array<Entry, kDTypeCount> kEntries{{
    {"bool", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex64", 8},
    {"complex128", 16},
}};

const Entry& entry(DType dtype) noexcept { return kEntries[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::size_t itemsize(DType dtype) noexcept { return entry(dtype).itemsize; }

std::string_view name(DType dtype) noexcept { return entry(dtype).name; }

DType dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kEntries.size(); ++i)
    if (kEntries[i].name == name) return static_cast<DType>(i);
  std::string message = "no dtype is named '" + std::string(name) + "'; expected one of";
  for (std::size_t i = 0; i < kEntries.size(); ++i) {
    message += i == 0 ? " " : ", ";
    message += kEntries[i].name;
  }
  throw DTypeError(message);
}

bool is_integer(DType dtype) noexcept { return dtype >= DType::kInt8 && dtype <= DType::kUInt64; }

bool is_complex(DType dtype) noexcept { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }

}  // namespace gpuhash
