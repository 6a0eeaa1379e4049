// What attributes of ops may be: dtypes of keys and values, and choices by the names that libgpuhash has for them.
#pragma once

#include <cstddef>
#include <string>

#include <gpuhash/names.hpp>

namespace gpuhash::tensorflow_ops {

inline constexpr const char* kKeyDtypes = "{int8, uint8, int16, uint16, int32, uint32, int64, uint64}";
inline constexpr const char* kValueDtypes =
    "{bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, half, bfloat16, float, double, complex64, "
    "complex128}";

/// All names, each in quotes.
template <class Choice, std::size_t kCount>
std::string quoted(const Names<Choice, kCount>& names) {
  std::string text;
  for (const auto& [name, choice] : names) text.append(text.empty() ? "'" : ", '").append(name).append("'");
  return text;
}

}  // namespace gpuhash::tensorflow_ops
