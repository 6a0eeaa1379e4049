#include "table/repeated_values.hpp"

#include <cstring>

#include "shared/arithmetic.hpp"

namespace gpuhash {
namespace {

/// By powers of two of it.
template <class T>
T repeated(ApplyOp op, T value, std::int64_t times) {
  for (; times % 2 == 0; times /= 2) value = combine(op, value, value);
  T all = value;
  while ((times /= 2) != 0) {
    value = combine(op, value, value);
    if (times % 2 != 0) all = combine(op, all, value);
  }
  return all;
}

}  // namespace

void repeat_values(DType dtype, ApplyOp op, const void* value, std::int64_t elements, const std::int64_t* times,
                   std::int64_t count, void* to) {
  dispatch_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t e = 0; e < elements; ++e) {
      T one;
      std::memcpy(&one, static_cast<const char*>(value) + e * kBytes, sizeof one);
      for (std::int64_t i = 0; i < count; ++i) {
        const T all = repeated(op, one, times[i]);
        std::memcpy(static_cast<char*>(to) + (i * elements + e) * kBytes, &all, sizeof all);
      }
    }
  });
}

}  // namespace gpuhash
