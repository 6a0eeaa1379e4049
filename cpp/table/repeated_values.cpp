#include "table/repeated_values.hpp"

#include <cstring>
#include <type_traits>

#include "shared/arithmetic.hpp"

namespace gpuhash {
namespace {

/// By powers of two of it.
template <class T>
T repeated_by_powers(Action op, T value, std::uint64_t times) {
  for (; times % 2 == 0; times /= 2) value = combine(op, value, value);
  T all = value;
  while ((times /= 2) != 0) {
    value = combine(op, value, value);
    if (times % 2 != 0) all = combine(op, all, value);
  }
  return all;
}

/// What the value comes to when `kOp` is done with it that often. Counts are 1 as a rule, and no branch tells them
/// from others.
template <class T, Action kOp>
T repeated(T value, std::uint64_t times) {
  if constexpr (!std::is_integral_v<T> || kOp == Action::kMultiply)
    return repeated_by_powers(kOp, value, times);
  else if constexpr (kOp == Action::kAdd)
    return combine(Action::kMultiply, value, static_cast<T>(times));
  else if constexpr (kOp == Action::kBitXor)
    return combine(Action::kMultiply, value, static_cast<T>(times & 1));
  else
    return value;
}

template <class T, Action kOp>
void repeat_all(const char* value, std::int64_t elements, const std::int64_t* times, std::int64_t count, char* to) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
  if constexpr (std::is_integral_v<T> && sizeof(T) == sizeof *times && kOp == Action::kAdd) {
    T one;
    std::memcpy(&one, value, sizeof one);
    if (static_cast<const void*>(to) == times && one == 1) return;  // numbers are what they count
  }
  // In order, by one thread: a value that is narrower than a count lies where an earlier one was.
  for (std::int64_t i = 0; i < count; ++i) {
    const auto all_times = static_cast<std::uint64_t>(times[i]);
    for (std::int64_t e = 0; e < elements; ++e) {
      T one;
      std::memcpy(&one, value + e * kBytes, sizeof one);
      const T all = repeated<T, kOp>(one, all_times);
      std::memcpy(to + (i * elements + e) * kBytes, &all, sizeof all);
    }
  }
}

}  // namespace

void repeat_values(DType dtype, Action op, const void* value, std::int64_t elements, const std::int64_t* times,
                   std::int64_t count, void* to) {
  dispatch_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    dispatch_op(op, [&](auto constant) {
      repeat_all<T, decltype(constant)::value>(static_cast<const char*>(value), elements, times, count,
                                               static_cast<char*>(to));
    });
  });
}

}  // namespace gpuhash
