#include "host/rows/combine.hpp"

#include <cstring>

#include "shared/arithmetic.hpp"

namespace gpuhash::host {
namespace {

template <class T, Action kOp>
void combine_elements(void* to, const void* from, std::int64_t elements) {
  auto* const to_bytes = static_cast<char*>(to);
  const auto* const from_bytes = static_cast<const char*>(from);
  for (std::int64_t e = 0; e < elements; ++e) {
    const std::int64_t at = e * static_cast<std::int64_t>(sizeof(T));
    T old;
    T update;
    std::memcpy(&old, to_bytes + at, sizeof(T));  // by bytes: callers' arrays may have any alignment
    std::memcpy(&update, from_bytes + at, sizeof(T));
    const T result = combine(kOp, old, update);
    std::memcpy(to_bytes + at, &result, sizeof(T));
  }
}

template <class Short>
void combine_wide_elements(Action op, void* to, const float* from, std::int64_t elements, bool is_new) {
  for (std::int64_t e = 0; e < elements; ++e) {
    char* const at = static_cast<char*>(to) + e * static_cast<std::int64_t>(sizeof(Short));
    Short old;
    std::memcpy(&old, at, sizeof old);
    const Short result = Short::from_float(is_new ? from[e] : combine(op, old.to_float(), from[e]));
    std::memcpy(at, &result, sizeof result);
  }
}

}  // namespace

void combine_wide(DType dtype, Action op, void* to, const float* from, std::int64_t elements, bool is_new) {
  if (dtype == DType::kFloat16)
    combine_wide_elements<Float16>(op, to, from, elements, is_new);
  else
    combine_wide_elements<BFloat16>(op, to, from, elements, is_new);
}

CombineFn combine_function(DType dtype, Action op) {
  return dispatch_dtype(dtype, [op](auto element) {
    return dispatch_op(
        op, [](auto constant) -> CombineFn { return combine_elements<decltype(element), decltype(constant)::value>; });
  });
}

}  // namespace gpuhash::host
