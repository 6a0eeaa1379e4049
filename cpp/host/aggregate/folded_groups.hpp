#pragma once

#include <memory>

#include <gpuhash/aggregation.hpp>

namespace gpuhash::host {

/// Aggregator::fold() of keys of up to 8 bytes.
std::unique_ptr<FoldedGroups> fold_groups(DeviceContext& context, const NumberKeys& keys,
                                          Span<const AggregateRequest> requests);

}  // namespace gpuhash::host
