#pragma once

#include <cstdint>
#include <memory>

#include <gpuhash/factorization.hpp>
#include "host/factorize/sorted_output.hpp"
#include "host/factorize/word_blocks.hpp"
#include "host/factorize/word_hash.hpp"
#include "host/factorize/word_streams.hpp"

namespace gpuhash::host {

/// A batch of keys that are words, and what its factorization is asked for.
template <class WordType>
struct WordBatch {
  using Word = WordType;

  WordBatch(DeviceContext& of, const NumberKeys& all, const FactorizationOptions& asked)
      : context(of),
        keys(all),
        blocks(keys),
        options(asked),
        ranges(keys.count),
        any_order(options.any_order && blocks.compares_bits()) {}

  DeviceContext& context;
  NumberKeys keys;
  WordBlocks<Word> blocks;
  FactorizationOptions options;
  Ranges ranges;
  bool any_order;
  WordHash<Word> hash;  // no answer depends on its seeds, and nobody can pick keys that meet
};

/// A batch of words whose distinct ones have been found in one of several ways: NearWords, FewWords or WordsByPart.
template <class Word>
class WordWay : public Factorization {
 public:
  std::int64_t count() const final { return distinct_; }

  void write(const FactorizationOutput& out) final {
    if (!out.sorted) return write_in_order(out);
    write_sorted({batch_.context, batch_.blocks.format(), batch_.blocks.bytes(), batch_.ranges.count, distinct_}, out,
                 [this](const FactorizationOutput& in_order) { write_in_order(in_order); });
  }

 protected:
  explicit WordWay(const WordBatch<Word>& batch) : batch_(batch) {}

  /// With ids in order of first occurrence, or in any order where that will do.
  virtual void write_in_order(const FactorizationOutput& out) = 0;

  /// What is asked for of `count` distinct words, whose ids begin with `id`: from word_at(k), from position_at(k),
  /// where each occurs first, and count_at(k), how often.
  template <class WordAt, class PositionAt, class CountAt>
  void write_distinct(const FactorizationOutput& out, std::int64_t id, std::int64_t count, WordAt word_at,
                      PositionAt position_at, CountAt count_at) const {
    if (out.counts != nullptr)
      for (std::int64_t k = 0; k < count; ++k) out.counts[id + k] = count_at(k);
    if (out.firsts != nullptr)
      for (std::int64_t k = 0; k < count; ++k) out.firsts[id + k] = position_at(k);
    if (out.uniques != nullptr) batch_.blocks.give_back(count, word_at, position_at, out.uniques, id);
  }

  WordBatch<Word> batch_;
  std::int64_t distinct_ = 0;
};

}  // namespace gpuhash::host
