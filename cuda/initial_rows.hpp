#pragma once

#include <cstdint>

#include <gpuhash/device_context.hpp>
#include "shared/layout.hpp"
#include "table/orders.hpp"

namespace gpuhash::cuda {

/// Fills what begins at `offset` bytes in the rows of keys that were new; `numbers` are those of all keys' rows.
void initialise_rows(const RowView& rows, const InitialRows& initial, std::int64_t offset, const KeyBatch& keys,
                     const bool* is_new, const std::int64_t* numbers, Stream stream);

}  // namespace gpuhash::cuda
