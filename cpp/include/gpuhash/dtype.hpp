#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <gpuhash/export.hpp>

namespace gpuhash {

/// Element types of keys and values; those of DLPack that have a fixed size of 1 to 16 bytes.
enum class DType : std::uint8_t {
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
};

inline constexpr int kDTypeCount = 15;

/// Bytes of one element.
GPUHASH_API std::size_t itemsize(DType dtype) noexcept;

/// NumPy's name ("int64"); bfloat16 by the name that ml_dtypes gives it.
GPUHASH_API std::string_view name(DType dtype) noexcept;

/// The dtype of that name; DTypeError where there is none.
GPUHASH_API DType dtype_from_name(std::string_view name);

GPUHASH_API bool is_integer(DType dtype) noexcept;
GPUHASH_API bool is_complex(DType dtype) noexcept;

}  // namespace gpuhash
