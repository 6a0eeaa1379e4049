#pragma once

#include <cstdint>
#include <deque>

#include <gpuhash/requests.hpp>
#include <gpuhash/span.hpp>
#include "table/sharded/split_batch.hpp"

namespace gpuhash {

/// Looks up the keys of batches at their shards, in the turn of a call; each batch has not begun, and is of the request
/// with the same number. Returns how many keys are absent, of the requests that count them.
std::int64_t look_up_at_shards(std::deque<SplitBatch>& batches, Span<const Lookup> requests);

}  // namespace gpuhash
