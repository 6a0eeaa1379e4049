#pragma once

#include <cstdint>

#include "shared/host_device.hpp"
#include "shared/short_floats.hpp"

/// The quantile of the normal distribution, out of operations that IEEE 754 rounds exactly: the same bits on the host
/// and on GPUs, whose libraries' logarithms differ.
namespace gpuhash {

namespace detail {

/// By Horner's rule; coefficients from that of the highest power down.
template <class... Coefficients>
GPUHASH_HD double polynomial(double x, double sum, Coefficients... coefficients) {
  ((sum = rounded_sum(rounded_product(sum, x), coefficients)), ...);
  return sum;
}

/// Of a positive number that is not subnormal. x = m * 2^e with m about 1, and log m = 2 artanh((m - 1) / (m + 1)),
/// whose series has less than 2^-60 of its sum behind the last term here.
GPUHASH_HD double natural_logarithm(double x) {
  constexpr double kRootOf2 = 0x1.6a09e667f3bcdp+0;
  constexpr double kLogOf2 = 0x1.62e42fefa39efp-1;
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  constexpr std::uint64_t kExponentOf1 = 1023;
  const auto bits = cast_bits<std::uint64_t>(x);
  auto m = cast_bits<double>((bits & kMantissa) | kExponentOf1 << 52);  // [1, 2)
  auto e = static_cast<double>(static_cast<std::int64_t>(bits >> 52) - static_cast<std::int64_t>(kExponentOf1));
  if (m > kRootOf2) {
    m = rounded_product(m, 0.5);
    e = rounded_sum(e, 1.0);
  }
  const double t = rounded_sum(m, -1.0) / rounded_sum(m, 1.0);
  const double series = polynomial(rounded_product(t, t), 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                   1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0);
  return rounded_sum(rounded_product(e, kLogOf2), rounded_product(rounded_product(2.0, t), series));
}

/// Is the quantile of q + 1/2 near enough to 0 for central_quantile()?
GPUHASH_HD bool is_central(double q) { return q >= -0.425 && q <= 0.425; }

GPUHASH_HD double central_quantile(double q) {
  const double r = rounded_sum(0.180625, -rounded_product(q, q));
  const double above = polynomial(r, 2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4,
                                  4.5921953931549871457e+4, 1.3731693765509461125e+4, 1.9715909503065514427e+3,
                                  1.3314166789178437745e+2, 3.3871328727963666080e+0);
  const double below = polynomial(r, 5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4,
                                  2.1213794301586595867e+4, 5.3941960214247511077e+3, 6.8718700749205790830e+2,
                                  4.2313330701600911252e+1, 1.0);
  return rounded_product(q, above) / below;
}

GPUHASH_HD double tail_quantile(double probability) {
  const bool lower = probability < 0.5;
  const double tail = lower ? probability : rounded_sum(1.0, -probability);
  double r = rounded_root(-natural_logarithm(tail));
  double z;
  if (r <= 5) {
    r = rounded_sum(r, -1.6);
    z = polynomial(r, 7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
                   1.27045825245236838258e+0, 3.64784832476320460504e+0, 5.76949722146069140550e+0,
                   4.63033784615654529590e+0, 1.42343711074968357734e+0) /
        polynomial(r, 1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
                   1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e+0,
                   2.05319162663775882187e+0, 1.0);
  } else {
    r = rounded_sum(r, -5.0);
    z = polynomial(r, 2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
                   2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e+0,
                   5.46378491116411436990e+0, 6.65790464350110377720e+0) /
        polynomial(r, 2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
                   7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
                   5.99832206555887937690e-1, 1.0);
  }
  return lower ? -z : z;
}

}  // namespace detail

/// The number that a standard normal one is below with this probability, in (0, 1); to about 1 part in 10^16. (M. J.
/// Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37, 1988: PPND16.)
GPUHASH_HD double normal_quantile(double probability) {
  const double q = rounded_sum(probability, -0.5);
  return detail::is_central(q) ? detail::central_quantile(q) : detail::tail_quantile(probability);
}

}  // namespace gpuhash
