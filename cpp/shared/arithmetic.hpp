#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <gpuhash/action.hpp>
#include <gpuhash/dtype.hpp>
#include "shared/host_device.hpp"
#include "shared/short_floats.hpp"

/// The arithmetic of insert_or_apply, one definition for host and device: both give the same bits.
namespace gpuhash {

/// A byte, because a C++ bool that holds neither 0 nor 1 is undefined behaviour, and callers' arrays may.
struct Bool {
  std::uint8_t byte;
};

template <class Real>
struct Complex {
  Real real;
  Real imag;
};

/// Calls f with a value of the dtype's element type, to tell the type.
template <class F>
decltype(auto) dispatch_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBool:
      return f(Bool{});
    case DType::kInt8:
      return f(std::int8_t{});
    case DType::kInt16:
      return f(std::int16_t{});
    case DType::kInt32:
      return f(std::int32_t{});
    case DType::kInt64:
      return f(std::int64_t{});
    case DType::kUInt8:
      return f(std::uint8_t{});
    case DType::kUInt16:
      return f(std::uint16_t{});
    case DType::kUInt32:
      return f(std::uint32_t{});
    case DType::kUInt64:
      return f(std::uint64_t{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    case DType::kComplex64:
      return f(Complex<float>{});
    case DType::kComplex128:
      return f(Complex<double>{});
  }
  __builtin_unreachable();
}

/// Calls f with the operation, an action that combines(), as an std::integral_constant.
template <class F>
decltype(auto) dispatch_op(Action op, F&& f) {
  switch (op) {
    case Action::kAdd:
      return f(std::integral_constant<Action, Action::kAdd>{});
    case Action::kMultiply:
      return f(std::integral_constant<Action, Action::kMultiply>{});
    case Action::kMin:
      return f(std::integral_constant<Action, Action::kMin>{});
    case Action::kMax:
      return f(std::integral_constant<Action, Action::kMax>{});
    case Action::kBitAnd:
      return f(std::integral_constant<Action, Action::kBitAnd>{});
    case Action::kBitOr:
      return f(std::integral_constant<Action, Action::kBitOr>{});
    case Action::kBitXor:
      return f(std::integral_constant<Action, Action::kBitXor>{});
    case Action::kKeep:
    case Action::kAssign:
      break;
  }
  __builtin_unreachable();
}

namespace detail {

/// combine() and identity() of one element type. What a type has not (see has_op) returns its first argument.
template <class T>
struct Arithmetic {
  static_assert(std::is_integral_v<T>);
  // Unsigned arithmetic wraps. Not narrower than int, or promotion would make it signed again.
  using Wide = std::conditional_t<sizeof(T) <= 4, std::uint32_t, std::uint64_t>;

  GPUHASH_HD static T combine(Action op, T a, T b) {
    switch (op) {
      case Action::kAdd:
        return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
      case Action::kMultiply:
        return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
      case Action::kMin:
        return b < a ? b : a;
      case Action::kMax:
        return a < b ? b : a;
      case Action::kBitAnd:
        return static_cast<T>(a & b);
      case Action::kBitOr:
        return static_cast<T>(a | b);
      case Action::kBitXor:
        return static_cast<T>(a ^ b);
      default:
        return a;
    }
  }

  GPUHASH_HD static T identity(Action op) {
    constexpr T kLowest = std::numeric_limits<T>::min();
    constexpr T kHighest = std::numeric_limits<T>::max();
    switch (op) {
      case Action::kMultiply:
        return 1;
      case Action::kMin:
        return kHighest;
      case Action::kMax:
        return kLowest;
      case Action::kBitAnd:
        return static_cast<T>(~Wide{0});
      default:
        return 0;
    }
  }
};

template <>
struct Arithmetic<Bool> {
  GPUHASH_HD static Bool combine(Action op, Bool a, Bool b) {
    const bool x = a.byte != 0;
    const bool y = b.byte != 0;
    if (op == Action::kBitXor) return {static_cast<std::uint8_t>(x != y)};
    return {static_cast<std::uint8_t>(is_and(op) ? x && y : x || y)};
  }
  GPUHASH_HD static Bool identity(Action op) { return {static_cast<std::uint8_t>(is_and(op))}; }

 private:
  GPUHASH_HD static bool is_and(Action op) {
    return op == Action::kMultiply || op == Action::kMin || op == Action::kBitAnd;
  }
};

template <class Real>
struct RealArithmetic {
  GPUHASH_HD static Real combine(Action op, Real a, Real b) {
    switch (op) {
      case Action::kAdd:
        return a + b;
      case Action::kMultiply:
        return a * b;
      case Action::kMin:
        return takes_min(a, b) ? a : b;
      case Action::kMax:
        return takes_max(a, b) ? a : b;
      default:
        return a;
    }
  }

  GPUHASH_HD static Real identity(Action op) {
    constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
    switch (op) {
      case Action::kAdd:
        return Real{-0.0f};  // +0 would turn a sum of -0 into +0
      case Action::kMultiply:
        return Real{1};
      case Action::kMin:
        return kInfinity;
      case Action::kMax:
        return -kInfinity;
      default:
        return Real{0};
    }
  }

  // Is it a? As minimum and maximum of IEEE 754-2019, so that no order of a batch's values plays a part: a NaN of
  // either is passed on (no comparison with it is true), and -0 is less than +0, though it compares equal.
  GPUHASH_HD static bool takes_min(Real a, Real b) { return a < b || a != a || (a == b && is_negative(a)); }
  GPUHASH_HD static bool takes_max(Real a, Real b) { return a > b || a != a || (a == b && !is_negative(a)); }

 private:
  GPUHASH_HD static bool is_negative(Real a) {
    using Word = std::conditional_t<sizeof(Real) == 4, std::int32_t, std::int64_t>;
    return cast_bits<Word>(a) < 0;
  }
};

template <>
struct Arithmetic<float> : RealArithmetic<float> {};
template <>
struct Arithmetic<double> : RealArithmetic<double> {};

template <class Short>
struct ShortFloatArithmetic {
  GPUHASH_HD static Short combine(Action op, Short a, Short b) {
    using InFloat = RealArithmetic<float>;
    if (op == Action::kMin) return InFloat::takes_min(a.to_float(), b.to_float()) ? a : b;
    if (op == Action::kMax) return InFloat::takes_max(a.to_float(), b.to_float()) ? a : b;
    return Short::from_float(InFloat::combine(op, a.to_float(), b.to_float()));
  }
  GPUHASH_HD static Short identity(Action op) { return Short::from_float(RealArithmetic<float>::identity(op)); }
};

template <>
struct Arithmetic<Float16> : ShortFloatArithmetic<Float16> {};
template <>
struct Arithmetic<BFloat16> : ShortFloatArithmetic<BFloat16> {};

template <class Real>
struct Arithmetic<Complex<Real>> {
  GPUHASH_HD static Complex<Real> combine(Action op, Complex<Real> a, Complex<Real> b) {
    if (op == Action::kAdd) return {a.real + b.real, a.imag + b.imag};
    if (op != Action::kMultiply || is_no_factor(b)) return a;
    if (is_no_factor(a)) return b;
    return {rounded_sum(rounded_product(a.real, b.real), -rounded_product(a.imag, b.imag)),
            rounded_sum(rounded_product(a.real, b.imag), rounded_product(a.imag, b.real))};
  }
  GPUHASH_HD static Complex<Real> identity(Action op) {
    if (op == Action::kMultiply) return {cast_bits<Real>(no_factor()), cast_bits<Real>(no_factor())};
    return {Real{-0.0f}, Real{-0.0f}};
  }

 private:
  // No number is the identity: 1 + 0i times an infinite value is NaN in a part, and a zero's sign changes. So it is two
  // signalling NaNs, which no arithmetic gives.
  using Word = std::conditional_t<sizeof(Real) == 4, std::uint32_t, std::uint64_t>;
  GPUHASH_HD static constexpr Word no_factor() {
    return static_cast<Word>(sizeof(Real) == 4 ? 0x7f9d3a6bu : 0x7ff39d3a6bc5e1f7u);
  }
  GPUHASH_HD static bool is_no_factor(const Complex<Real>& x) {
    return cast_bits<Word>(x.real) == no_factor() && cast_bits<Word>(x.imag) == no_factor();
  }
};

}  // namespace detail

template <class T>
GPUHASH_HD T combine(Action op, T a, T b) {
  return detail::Arithmetic<T>::combine(op, a, b);
}

/// combine(op, identity(op), x) is x.
template <class T>
GPUHASH_HD T identity(Action op) {
  return detail::Arithmetic<T>::identity(op);
}

}  // namespace gpuhash
