#pragma once

#include <cstddef>

#include "shared/hash.hpp"
#include "table/orders.hpp"

namespace gpuhash::host {

/// Fills the row of a new key. The key is as the caller has it, with zeros above.
void initialise_row(const InitialRows& order, const Uint128& key, std::byte* row);

}  // namespace gpuhash::host
