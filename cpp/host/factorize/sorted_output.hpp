#pragma once

#include <cstdint>
#include <functional>

#include <gpuhash/factorization.hpp>
#include "shared/key_numbers.hpp"

namespace gpuhash::host {

/// What is known of the keys of a factorization that is to be written in their order.
struct DistinctKeys {
  DeviceContext& context;
  NumberFormat format;
  std::int64_t bytes;     // of a key, at most 8
  std::int64_t keys;      // of the batch
  std::int64_t distinct;  // < 2^32
};

/// Writes what is asked for with ids in ascending order of the keys. write_in_order(out) writes it with other ids; all
/// that it is asked for lies in memory of this call, but for codes.
void write_sorted(const DistinctKeys& known, const FactorizationOutput& out,
                  const std::function<void(const FactorizationOutput&)>& write_in_order);

}  // namespace gpuhash::host
