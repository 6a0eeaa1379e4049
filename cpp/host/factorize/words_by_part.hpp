#pragma once

#include <memory>

#include "host/factorize/hot_prefix.hpp"
#include "host/factorize/word_way.hpp"

namespace gpuhash::host {

/// Partitions a batch that is not near, and finds the distinct words of each part. Hot words are set aside before that,
/// where there are enough of them. Word: std::uint32_t or std::uint64_t.
template <class Word>
std::unique_ptr<Factorization> make_words_by_part(const WordBatch<Word>& batch, HotPrefix<Word> hot);

}  // namespace gpuhash::host
