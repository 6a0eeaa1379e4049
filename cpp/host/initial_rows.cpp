#include "host/initial_rows.hpp"

#include <cstdint>
#include <type_traits>

#include "shared/initial_rows.hpp"

/// Compiled without fused operations, see rounded_product(): so here, and in no header.
namespace gpuhash::host {

void initialise_row(const InitialRows& order, const Uint128& key, std::byte* row) {
  with_initial_rows(order.initializer, order.dtype, [&](const auto& rows) {
    using Rows = std::remove_cvref_t<decltype(rows)>;
    const auto of_key = rows.of(key);
    auto* const elements = reinterpret_cast<typename Rows::Element*>(row);
    for (std::int64_t block = 0; block * Rows::kPerBlock < order.elements; ++block)
      of_key.write(elements, block, order.elements);
  });
}

}  // namespace gpuhash::host
