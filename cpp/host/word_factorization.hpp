#pragma once

#include <cstdint>
#include <memory>

#include <gpuhash/factorization.hpp>

namespace gpuhash::host {

/// Batches of fewer keys of at most 8 bytes are factorized by make_word_factorization().
inline constexpr std::int64_t kMostWords = 1'000'000'000;

/// Does not use batch tables: cpp/host/word_factorization.cpp tells what it does instead.
std::unique_ptr<Factorization> make_word_factorization(DeviceContext& context, const NumberKeys& keys,
                                                       const FactorizationOptions& options);

}  // namespace gpuhash::host
