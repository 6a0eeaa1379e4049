#pragma once

#include <memory>

#include "host/factorize/hot_prefix.hpp"
#include "host/factorize/word_way.hpp"

namespace gpuhash::host {

/// Counts a near batch in a small table. Null: nobody wants counts alone, or so many keys are distinct, or seem to be
/// beforehand or after an eighth of them, that make_near_words() is faster.
template <class Word>
std::unique_ptr<Factorization> count_near_words(const WordBatch<Word>& batch);

/// Counts a batch that is not near in small tables. Null: its prefix tells that so many keys are distinct that this
/// does not pay, or the tables got full, and the batch has to be read again; `hot` gets what the prefix tells of it.
template <class Word>
std::unique_ptr<Factorization> find_few_words(const WordBatch<Word>& batch, HotPrefix<Word>& hot);

}  // namespace gpuhash::host
