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

/// A number of the distribution, out of one that is uniform in (0, 1).
GPUHASH_HD double draw(Distribution distribution, double first, double second, double uniform) {
  constexpr double kCut = 2.0;                           // standard deviations, as TensorFlow cuts
  constexpr double kBelowCut = 0x1.74bcf82c9d860p-6;     // the normal distribution's part below -kCut
  constexpr double kBetweenCuts = 0x1.e8b4307d3627ap-1;  // 1 - 2 * kBelowCut
  if (distribution == Distribution::kUniform) {
    const double width = rounded_sum(second, -first);
    const double number = rounded_sum(first, rounded_product(width, uniform));
    return number < second ? number : second;
  }
  double z;
  if (distribution == Distribution::kTruncatedNormal) {
    z = normal_quantile(rounded_sum(kBelowCut, rounded_product(kBetweenCuts, uniform)));
    z = z < -kCut ? -kCut : z > kCut ? kCut : z;
  } else {
    z = normal_quantile(uniform);
  }
  return rounded_sum(first, rounded_product(second, z));
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
      const PhiloxBlock numbers = numbers_.block(static_cast<std::uint64_t>(block));
      for (int i = 0; i < kPerBlock; ++i) {
        const std::int64_t element = block * kPerBlock + i;
        if (element < elements)
          row[element] =
              detail::round_to<T>(detail::draw(rows_.distribution, rows_.first, rows_.second, uniform(numbers, i)));
      }
    }

   private:
    /// In (0, 1), neither end: the middle of one of 2^32 or 2^52 parts.
    GPUHASH_HD static double uniform(const PhiloxBlock& numbers, int i) {
      if constexpr (kPerBlock == 4) return (numbers.words[i] + 0.5) * 0x1p-32;
      const std::uint64_t bits = numbers.words[2 * i] | std::uint64_t{numbers.words[2 * i + 1]} << 32;
      return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
    }

    DrawnRows rows_;
    KeyNumbers numbers_;
  };

  GPUHASH_HD Row of(const Uint128& key) const { return {*this, key}; }

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
