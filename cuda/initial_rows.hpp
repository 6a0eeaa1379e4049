#pragma once

#include <gpuhash/device_context.hpp>
#include "shared/layout.hpp"
#include "table/orders.hpp"

namespace gpuhash::cuda {

/// Fills the rows of the keys that order.inserted says were new, whose numbers are in order.rows.
void initialise_rows(const RowView& rows, const InsertOrder& order, Stream stream);

}  // namespace gpuhash::cuda
