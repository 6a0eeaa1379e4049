#pragma once

#include <memory>

#include <gpuhash/factorization.hpp>

namespace gpuhash::host {

/// Of fewer than Tuning::word_list_keys keys of at most 8 bytes. Does not use batch tables:
/// cpp/host/factorize/word_factorization.cpp tells what it does instead.
std::unique_ptr<Factorization> make_word_factorization(DeviceContext& context, const NumberKeys& keys,
                                                       const FactorizationOptions& options);

}  // namespace gpuhash::host
