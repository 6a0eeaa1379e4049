#include "host/rows/initial_rows.hpp"

#include <algorithm>
#include <cstdint>

#include "shared/initial_rows.hpp"

/// Compiled without fused operations, see rounded_product(): so here, and in no header.
namespace gpuhash::host {
namespace {

/// In steps of many elements each, which overlap, or take several at once: 64 float32 of a normal distribution take
/// 0.95 us so on a core of an AMD EPYC, and 1.27 by Row::write(), where each in a tail is a branch that was not
/// foreseen.
template <class T>
void write_row(const DrawnRows<T>& rows, const Uint128& key, T* row, std::int64_t elements) {
  constexpr std::int64_t kStep = 64;
  constexpr std::int64_t kPerBlock = DrawnRows<T>::kPerBlock;
  const auto drawn = rows.of(key);
  double numbers[kStep];
  double quantiles[kStep];
  for (std::int64_t first = 0; first < elements; first += kStep) {
    const std::int64_t count = std::min(kStep, elements - first);
    for (std::int64_t i = 0; i < count; i += kPerBlock) drawn.draw_uniform(numbers + i, (first + i) / kPerBlock);
    const double* of_elements = numbers;
    if (rows.distribution != Distribution::kUniform) {
      of_elements = quantiles;
      for (std::int64_t i = 0; i < count; ++i) {
        numbers[i] = detail::drawn_probability(rows.distribution, numbers[i]);
        quantiles[i] = detail::central_quantile(rounded_sum(numbers[i], -0.5));
      }
      for (std::int64_t i = 0; i < count; ++i)
        if (!detail::is_central(rounded_sum(numbers[i], -0.5))) quantiles[i] = detail::tail_quantile(numbers[i]);
    }
    for (std::int64_t i = 0; i < count; ++i) row[first + i] = rows.element(of_elements[i]);
  }
}

template <class T>
void write_row(const ConstantRows<T>& rows, const Uint128&, T* row, std::int64_t elements) {
  std::fill_n(row, elements, rows.element);
}

}  // namespace

void initialise_row(const InitialRows& order, const Uint128& key, std::byte* row) {
  with_initial_rows(order.initializer, order.dtype, [&]<class Rows>(const Rows& rows) {
    write_row(rows, key, reinterpret_cast<typename Rows::Element*>(row), order.elements);
  });
}

}  // namespace gpuhash::host
