#pragma once

#include <memory>

#include <gpuhash/factorization.hpp>

namespace gpuhash::host {

/// The factorization of keys that come in ascending order, as the ids and times of a sorted table do. Null where they
/// do not: that is known at the first key that is less than the one before.
std::unique_ptr<Factorization> make_sorted_factorization(const NumberKeys& keys);

}  // namespace gpuhash::host
