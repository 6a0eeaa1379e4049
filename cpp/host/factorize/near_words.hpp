#pragma once

#include <memory>

#include "host/factorize/word_way.hpp"

namespace gpuhash::host {

/// Is a batch so small that its first occurrences are found as those of a single part? Such a batch is *near*.
bool is_near(const Ranges& batch, bool codes);

/// Finds where each key of a near batch occurs first: the batch fits a cache. Word: std::uint32_t or std::uint64_t.
template <class Word>
std::unique_ptr<Factorization> make_near_words(const WordBatch<Word>& batch);

}  // namespace gpuhash::host
