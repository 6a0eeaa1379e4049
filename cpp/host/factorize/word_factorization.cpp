#include "host/factorize/word_factorization.hpp"

#include <cstdint>
#include <utility>

#include "host/factorize/few_words.hpp"
#include "host/factorize/near_words.hpp"
#include "host/factorize/words_by_part.hpp"

namespace gpuhash::host {
namespace {

/// A small batch is *near*: it fits a cache, and its first occurrences are found there. Of others the first keys, the
/// *prefix*, tell what they are like. Where few of them are distinct, all of the batch is counted in a small table (one
/// for each thread). Otherwise, or where that table gets full after all, the batch is partitioned.
template <class Word>
std::unique_ptr<Factorization> make(const WordBatch<Word>& batch) {
  if (is_near(batch.ranges, batch.options.codes)) {
    if (auto counted = count_near_words(batch)) return counted;
    return make_near_words(batch);
  }
  HotPrefix<Word> hot;
  if (auto few = find_few_words(batch, hot)) return few;
  return make_words_by_part(batch, std::move(hot));
}

}  // namespace

std::unique_ptr<Factorization> make_word_factorization(DeviceContext& context, const NumberKeys& keys,
                                                       const FactorizationOptions& options) {
  if (keys.bytes() > sizeof(std::uint32_t)) return make(WordBatch<std::uint64_t>(context, keys, options));
  return make(WordBatch<std::uint32_t>(context, keys, options));
}

}  // namespace gpuhash::host
