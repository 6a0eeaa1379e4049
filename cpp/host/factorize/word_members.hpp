#pragma once

#include <gpuhash/factorization.hpp>

namespace gpuhash::host {

/// Factorizer::isin for keys of at most 8 bytes, fewer than Tuning::word_list_keys of either.
void find_word_members(DeviceContext& context, const NumberKeys& elements, const NumberKeys& tests, bool invert,
                       bool* mask);

}  // namespace gpuhash::host
