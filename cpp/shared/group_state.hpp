#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <gpuhash/aggregation.hpp>
#include <gpuhash/dtype.hpp>
#include "shared/arithmetic.hpp"
#include "shared/host_device.hpp"
#include "shared/short_floats.hpp"

/// What is kept of a group while its rows come: a row of words of 64 bits, one for each *fold*, whatever the dtypes.
/// One definition for host and device.
namespace gpuhash {

/// What a word takes up of each row.
enum class FoldKind : std::uint8_t {
  kCount,        // values
  kAddIntegers,  // wraps
  kAddFloats,    // the word is a double
  kMin,          // of order words
  kMax,          // likewise
  kFirst,        // position; all ones: none
  kLast,         // position + 1; 0: none
  kAnyTrue,      // 1: there is one
  kAnyFalse,     // likewise
  kSquares,      // of distances from the mean, which is the word before; a double
  kPartSquares,  // likewise, of values that are sums of several
};

/// One word of each group, and where it comes from. Kernels take it by value.
struct Fold {
  FoldKind kind = FoldKind::kCount;
  DType dtype = DType::kInt64;   // of the values; never complex but for truth
  std::uint8_t step = 1;         // from one value to the next, in values: the parts of complex numbers are folded apart
  const void* values = nullptr;  // [n]
  const bool* valid = nullptr;   // [n]; null: all are
  const std::int64_t* part_counts = nullptr;
  const double* part_squares = nullptr;

  friend bool operator==(const Fold&, const Fold&) = default;
};

/// Calls visit with a value of the dtype's element type. As dispatch_dtype(), for device code as well.
template <class Visit>
GPUHASH_HD auto visit_dtype(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kBool:
      return visit(Bool{});
    case DType::kInt8:
      return visit(std::int8_t{});
    case DType::kInt16:
      return visit(std::int16_t{});
    case DType::kInt32:
      return visit(std::int32_t{});
    case DType::kInt64:
      return visit(std::int64_t{});
    case DType::kUInt8:
      return visit(std::uint8_t{});
    case DType::kUInt16:
      return visit(std::uint16_t{});
    case DType::kUInt32:
      return visit(std::uint32_t{});
    case DType::kUInt64:
      return visit(std::uint64_t{});
    case DType::kFloat16:
      return visit(Float16{});
    case DType::kBFloat16:
      return visit(BFloat16{});
    case DType::kFloat32:
      return visit(float{});
    case DType::kComplex64:
      return visit(Complex<float>{});
    case DType::kComplex128:
      return visit(Complex<double>{});
    default:
      return visit(double{});
  }
}

namespace group_state {

template <class T>
inline constexpr bool kIsShortFloat = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
inline constexpr bool kIsComplex = std::is_same_v<T, Complex<float>> || std::is_same_v<T, Complex<double>>;

template <class T>
GPUHASH_HD std::uint64_t integer_of(T value) {
  if constexpr (std::is_same_v<T, Bool>)
    return value.byte != 0 ? 1 : 0;
  else if constexpr (std::is_integral_v<T>)
    return static_cast<std::uint64_t>(value);
  else
    return 0;  // no sum of integers
}

template <class T>
GPUHASH_HD double float_of(T value) {
  if constexpr (std::is_same_v<T, Bool>)
    return value.byte != 0 ? 1 : 0;
  else if constexpr (kIsShortFloat<T>)
    return static_cast<double>(value.to_float());
  else if constexpr (kIsComplex<T>)
    return 0;  // its parts are
  else
    return static_cast<double>(value);
}

template <class T>
GPUHASH_HD bool truth_of(T value) {
  if constexpr (std::is_same_v<T, Bool>)
    return value.byte != 0;
  else if constexpr (kIsShortFloat<T>)
    return (value.bits & 0x7fffu) != 0;
  else if constexpr (kIsComplex<T>)
    return value.real != 0 || value.imag != 0;
  else
    return value != 0;
}

template <std::size_t kBytes>
using WordOf = std::conditional_t<
    kBytes == 1, std::uint8_t,
    std::conditional_t<kBytes == 2, std::uint16_t, std::conditional_t<kBytes == 4, std::uint32_t, std::uint64_t>>>;

/// A word that is less than another iff the number is. All NaNs are one: the greatest for a maximum, for a minimum the
/// least. What changes neither, the first word of a fold, reads as NaN as well.
template <class T>
GPUHASH_HD std::uint64_t order_word(T value, bool for_max) {
  if constexpr (std::is_same_v<T, Bool>) {
    return value.byte != 0 ? 1 : 0;
  } else if constexpr (std::is_integral_v<T>) {
    using Word = WordOf<sizeof(T)>;
    constexpr Word kSign = std::is_signed_v<T> ? static_cast<Word>(Word{1} << (8 * sizeof(T) - 1)) : Word{0};
    return static_cast<Word>(static_cast<Word>(value) ^ kSign);
  } else if constexpr (kIsComplex<T>) {
    return 0;  // they have no order
  } else {
    using Word = WordOf<sizeof(T)>;
    constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(T) - 1));
    const double number = float_of(value);
    if (number != number) return for_max ? static_cast<Word>(~Word{0}) : 0;
    const Word bits = cast_bits<Word>(value);
    return static_cast<Word>((bits & kSign) != 0 ? ~bits : bits | kSign);
  }
}

template <class T>
GPUHASH_HD T quiet_nan() {
  if constexpr (std::is_same_v<T, Float16>)
    return {0x7e00};
  else if constexpr (std::is_same_v<T, BFloat16>)
    return {0x7fc0};
  else if constexpr (std::is_same_v<T, Complex<float>>)
    return {quiet_nan<float>(), quiet_nan<float>()};
  else if constexpr (std::is_same_v<T, Complex<double>>)
    return {quiet_nan<double>(), quiet_nan<double>()};
  else if constexpr (std::is_same_v<T, float>)
    return cast_bits<float>(std::uint32_t{0x7fc00000});
  else if constexpr (std::is_same_v<T, double>)
    return cast_bits<double>(std::uint64_t{0x7ff8000000000000});
  else
    return T{};
}

template <class T>
GPUHASH_HD T from_order_word(std::uint64_t order) {
  if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<std::uint8_t>(order & 1)};
  } else if constexpr (std::is_integral_v<T>) {
    using Word = WordOf<sizeof(T)>;
    constexpr Word kSign = std::is_signed_v<T> ? static_cast<Word>(Word{1} << (8 * sizeof(T) - 1)) : Word{0};
    return static_cast<T>(static_cast<Word>(static_cast<Word>(order) ^ kSign));
  } else if constexpr (kIsComplex<T>) {
    return T{};
  } else {
    using Word = WordOf<sizeof(T)>;
    constexpr Word kSign = static_cast<Word>(Word{1} << (8 * sizeof(T) - 1));
    const Word word = static_cast<Word>(order);
    if (word == 0 || word == static_cast<Word>(~Word{0})) return quiet_nan<T>();
    return cast_bits<T>(static_cast<Word>((word & kSign) != 0 ? word ^ kSign : ~word));
  }
}

}  // namespace group_state

/// The word of a group without rows.
GPUHASH_HD std::uint64_t first_word(FoldKind kind) {
  if (kind == FoldKind::kMin || kind == FoldKind::kFirst) return ~std::uint64_t{0};
  return 0;
}

/// The word of two sets of rows, of which those of `a` come first.
GPUHASH_HD std::uint64_t merge_words(FoldKind kind, std::uint64_t a, std::uint64_t b) {
  switch (kind) {
    case FoldKind::kCount:
    case FoldKind::kAddIntegers:
      return a + b;
    case FoldKind::kAddFloats:
    case FoldKind::kSquares:
    case FoldKind::kPartSquares:
      return cast_bits<std::uint64_t>(cast_bits<double>(a) + cast_bits<double>(b));
    case FoldKind::kMin:
    case FoldKind::kFirst:
      return b < a ? b : a;
    case FoldKind::kMax:
    case FoldKind::kLast:
      return a < b ? b : a;
    default:
      return a | b;
  }
}

GPUHASH_HD std::int64_t pair_code(std::int64_t code, std::int64_t other, std::int64_t kinds, bool valid) {
  return code < 0 || other < 0 || !valid ? -1 : code * kinds + other;
}

GPUHASH_HD std::int64_t code_of_pair(std::int64_t pair, std::int64_t kinds) { return pair < 0 ? -1 : pair / kinds; }

/// What a part of several values adds to the squares of its group.
GPUHASH_HD double squares_of_part(double sum, std::int64_t count, double squares, double mean) {
  if (count == 0) return 0;
  const double weight = static_cast<double>(count);
  const double distance = sum / weight - mean;
  return squares + weight * distance * distance;
}

/// How the result of a request is read from the words of a group.
struct GroupResult {
  Aggregate op = Aggregate::kCount;
  DType dtype = DType::kInt64;  // of the values
  DType result = DType::kInt64;
  const void* values = nullptr;  // [n], of kFirst and kLast
  void* out = nullptr;           // [groups]
  double ddof = 1;
  int word = 0;          // of the first pass; of complex sums that of the real part, and the next is the other's
  int count_word = 0;    // of kMean and its like
  int squares_word = 0;  // of the second pass
};

GPUHASH_HD double mean_of(std::uint64_t sum, std::uint64_t count) {
  return count == 0 ? group_state::quiet_nan<double>() : cast_bits<double>(sum) / static_cast<double>(count);
}

namespace group_state {

template <class T>
GPUHASH_HD void store(void* out, std::int64_t group, T value) {
  static_cast<T*>(out)[group] = value;
}

GPUHASH_HD void store_float(const GroupResult& to, std::int64_t group, double value) {
  if (to.result == DType::kFloat32)
    store(to.out, group, static_cast<float>(value));
  else
    store(to.out, group, value);
}

GPUHASH_HD void store_complex(const GroupResult& to, std::int64_t group, double real, double imag) {
  if (to.result == DType::kComplex64)
    store(to.out, group, Complex<float>{static_cast<float>(real), static_cast<float>(imag)});
  else
    store(to.out, group, Complex<double>{real, imag});
}

/// As a functor: device code has no generic lambdas of host code.
struct StorePicked {
  const GroupResult& to;
  std::int64_t group;
  std::uint64_t position;
  bool there;

  template <class T>
  GPUHASH_HD void operator()(T) const {
    store(to.out, group, there ? static_cast<const T*>(to.values)[position] : quiet_nan<T>());
  }
};

struct StoreOrdered {
  const GroupResult& to;
  std::int64_t group;
  std::uint64_t word;

  template <class T>
  GPUHASH_HD void operator()(T) const {
    store(to.out, group, from_order_word<T>(word));
  }
};

}  // namespace group_state

/// Writes the result of one group. `row`: its words of the first pass; `squares`: of the second.
GPUHASH_HD void write_result(const GroupResult& to, std::int64_t group, const std::uint64_t* row,
                             const std::uint64_t* squares) {
  using namespace group_state;
  const std::uint64_t word = row[to.word];
  const bool complex = to.result == DType::kComplex64 || to.result == DType::kComplex128;
  switch (to.op) {
    case Aggregate::kCount:
      return store(to.out, group, static_cast<std::int64_t>(word));
    case Aggregate::kSum:
    case Aggregate::kTotal:
      if (to.result == DType::kInt64 || to.result == DType::kUInt64) return store(to.out, group, word);
      if (complex) return store_complex(to, group, cast_bits<double>(word), cast_bits<double>(row[to.word + 1]));
      return store_float(to, group, cast_bits<double>(word));
    case Aggregate::kMean:
      if (complex)
        return store_complex(to, group, mean_of(word, row[to.count_word]),
                             mean_of(row[to.word + 1], row[to.count_word]));
      return store_float(to, group, mean_of(word, row[to.count_word]));
    case Aggregate::kVar:
    case Aggregate::kStd: {
      const double degrees = static_cast<double>(row[to.count_word]) - to.ddof;
      double value = degrees > 0 ? cast_bits<double>(squares[to.squares_word]) / degrees : quiet_nan<double>();
      if (to.op == Aggregate::kStd) value = sqrt(value);
      return store_float(to, group, value);
    }
    case Aggregate::kSquares:
      return store_float(to, group, cast_bits<double>(squares[to.squares_word]));
    case Aggregate::kMin:
    case Aggregate::kMax:
      return visit_dtype(to.dtype, StoreOrdered{to, group, word});
    case Aggregate::kFirst:
      return visit_dtype(to.dtype, StorePicked{to, group, word, word != ~std::uint64_t{0}});
    case Aggregate::kLast:
      return visit_dtype(to.dtype, StorePicked{to, group, word - 1, word != 0});
    case Aggregate::kAny:
      return store(to.out, group, Bool{static_cast<std::uint8_t>(word)});
    case Aggregate::kAll:
      return store(to.out, group, Bool{static_cast<std::uint8_t>(word ^ 1)});
  }
}

}  // namespace gpuhash
