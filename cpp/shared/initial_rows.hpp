#pragma once

#include <cstdint>
#include <cstring>

#include <gpuhash/initializer.hpp>
#include "shared/arithmetic.hpp"
#include "shared/hash.hpp"
#include "shared/host_device.hpp"
#include "shared/normal_quantile.hpp"
#include "shared/philox.hpp"
#include "shared/short_floats.hpp"

/// What is written into the rows of new keys, one definition for host and device: both give the same bits. Rows are
/// written in blocks of kPerBlock elements, each of which may be another thread's.
namespace gpuhash {

namespace detail {

template <class T>
GPUHASH_HD T round_to(double number) {
  if constexpr (sizeof(T) == sizeof(std::uint16_t))
    return T::from_float(static_cast<float>(number));
  else
    return static_cast<T>(number);
}

inline constexpr double kCut = 2.0;                           // standard deviations, as TensorFlow cuts
inline constexpr double kBelowCut = 0x1.74bcf82c9d860p-6;     // the normal distribution's part below -kCut
inline constexpr double kBetweenCuts = 0x1.e8b4307d3627ap-1;  // 1 - 2 * kBelowCut

/// The probability whose quantile is drawn, for a number that is uniform in (0, 1).
GPUHASH_HD double drawn_probability(Distribution distribution, double uniform) {
  if (distribution != Distribution::kTruncatedNormal) return uniform;
  return rounded_sum(kBelowCut, rounded_product(kBetweenCuts, uniform));
}

/// A number of the distribution, out of a uniform one or a quantile.
GPUHASH_HD double drawn_number(Distribution distribution, double first, double second, double number) {
  if (distribution == Distribution::kUniform) {
    const double inside = rounded_sum(first, rounded_product(rounded_sum(second, -first), number));
    return inside < second ? inside : second;
  }
  if (distribution == Distribution::kTruncatedNormal) number = number < -kCut ? -kCut : number > kCut ? kCut : number;
  return rounded_sum(first, rounded_product(second, number));
}

}  // namespace detail

/// Rows of floating numbers that are drawn.
template <class T>
struct DrawnRows {
  using Element = T;
  /// Elements take 32 bits of the generator, those of 8 bytes take 64.
  static constexpr std::int64_t kPerBlock = sizeof(T) == 8 ? 2 : 4;

  class Row {
   public:
    GPUHASH_HD Row(const DrawnRows& rows, const Uint128& key) : rows_(rows), numbers_(rows.seed, key) {}

    GPUHASH_HD void write(T* row, std::int64_t block, std::int64_t elements) const {
      double numbers[kPerBlock];
      draw_uniform(numbers, block);
      for (int i = 0; i < kPerBlock; ++i) {
        double number = numbers[i];
        if (rows_.distribution != Distribution::kUniform)
          number = normal_quantile(detail::drawn_probability(rows_.distribution, number));
        const std::int64_t element = block * kPerBlock + i;
        if (element < elements) row[element] = rows_.element(number);
      }
    }

    /// kPerBlock numbers in (0, 1), neither end: each the middle of one of 2^32 or 2^52 parts.
    GPUHASH_HD void draw_uniform(double* numbers, std::int64_t block) const {
      const PhiloxBlock drawn = numbers_.block(static_cast<std::uint64_t>(block));
      if constexpr (kPerBlock == 4) {
        for (int i = 0; i < 4; ++i) numbers[i] = (drawn.words[i] + 0.5) * 0x1p-32;
      } else {
        for (int i = 0; i < 2; ++i) {
          const std::uint64_t bits = drawn.words[2 * i] | std::uint64_t{drawn.words[2 * i + 1]} << 32;
          numbers[i] = (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
        }
      }
    }

   private:
    DrawnRows rows_;
    KeyNumbers numbers_;
  };

  GPUHASH_HD Row of(const Uint128& key) const { return {*this, key}; }

  /// The element of a uniform number, or of a quantile.
  GPUHASH_HD T element(double number) const {
    return detail::round_to<T>(detail::drawn_number(distribution, first, second, number));
  }

  Distribution distribution;
  double first;
  double second;
  std::uint64_t seed;
};

/// Rows of one element over and over; T has as many bytes as it.
template <class T>
struct ConstantRows {
  using Element = T;
  static constexpr std::int64_t kPerBlock = 1;

  struct Row {
    GPUHASH_HD void write(T* row, std::int64_t block, std::int64_t) const { row[block] = element; }
    T element;
  };

  GPUHASH_HD Row of(const Uint128&) const { return {element}; }

  T element;
};

/// Calls run(rows) with the initializer's DrawnRows or ConstantRows, of elements of the dtype.
template <class Run>
void with_initial_rows(const Initializer& from, DType dtype, Run run) {
  const auto constant = [&](auto element) {
    std::memcpy(&element, from.constant.data(), sizeof element);
    run(ConstantRows<decltype(element)>{element});
  };
  const auto drawn = [&](auto element) {
    run(DrawnRows<decltype(element)>{from.distribution, from.first, from.second, from.seed});
  };
  if (from.distribution == Distribution::kConstant) {
    switch (itemsize(dtype)) {
      case 1:
        return constant(std::uint8_t{});
      case 2:
        return constant(std::uint16_t{});
      case 4:
        return constant(std::uint32_t{});
      case 8:
        return constant(std::uint64_t{});
      default:
        return constant(Uint128{});
    }
  }
  switch (dtype) {
    case DType::kFloat16:
      return drawn(Float16{});
    case DType::kBFloat16:
      return drawn(BFloat16{});
    case DType::kFloat32:
      return drawn(float{});
    default:
      return drawn(double{});
  }
}

}  // namespace gpuhash
