#include "host/factorize/words_by_part.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "host/factorize/word_partition.hpp"
#include "host/short_bytes.hpp"

namespace gpuhash::host {
namespace {

/// A batch of which many words are distinct, or seemed to be: it is partitioned (WordPartition). Words that came often
/// in the prefix are set aside before that, because their ids are known: ids are given in order of first occurrence.
template <class Word>
class WordsByPart final : public WordWay<Word> {
 public:
  WordsByPart(const WordBatch<Word>& batch, HotPrefix<Word> hot) : WordWay<Word>(batch), hot_(std::move(hot)) {
    partition();
    distinct_ = partition_->distinct();
    if (batch_.any_order)
      distinct_ += count_hot_words();
    else
      hot_.words[0].limit_ids(static_cast<std::uint32_t>(distinct_ - 1));
  }

  bool marks_firsts() const override { return batch_.any_order; }

  void mark_firsts(const bool* of_keys, bool* mask) const override {
    parallel_for(batch_.ranges.parts, [&](int range) {
      std::fill(mask + batch_.ranges.begin(range), mask + batch_.ranges.end(range), false);
      partition_->for_each_first(range, [&](std::int64_t position, std::int64_t id) { mask[position] = of_keys[id]; });
    });
    std::int64_t id = partition_->distinct();
    for (const Listed& hot : hot_.listed) mask[hot.first] = of_keys[id++];
  }

 private:
  using WordWay<Word>::batch_;
  using WordWay<Word>::distinct_;
  using WordWay<Word>::write_distinct;
  using Hot = HotWords<Word>;
  using Listed = typename HotPrefix<Word>::Listed;
  using Partition = WordPartition<Word>;

  void partition() {
    double words = static_cast<double>(batch_.ranges.count);
    if (hot_.sets_aside()) {
      words *= 1 - hot_.part;
      streams_.emplace(batch_.context, batch_.blocks, batch_.ranges, hot_.words[0], batch_.any_order ? 0 : kPrefix);
    } else {
      streams_.emplace(batch_.context, batch_.blocks, batch_.ranges, hot_.frequent);
    }
    using Marks = typename Partition::Marks;
    const Marks marks = batch_.any_order         ? Marks::kNone
                        : !batch_.options.codes  ? Marks::kCounts
                        : !batch_.options.counts ? Marks::kNumbers
                                                 : Marks::kNumbersAndCounts;
    const std::optional<std::uint64_t> seed =
        batch_.any_order ? std::optional(batch_.options.order_seed) : std::nullopt;
    partition_.emplace(batch_.context, *streams_, batch_.hash, seed, static_cast<std::int64_t>(words), marks);
  }

  /// Counts the hot words, and returns how many have come: all, unless somebody changes the keys.
  std::int64_t count_hot_words() {
    for (Listed& hot : hot_.listed) hot.count = streams_->hits(hot.place);
    std::erase_if(hot_.listed, [](const Listed& hot) { return hot.count == 0; });
    std::ranges::sort(hot_.listed, {}, &Listed::first);
    return std::ssize(hot_.listed);
  }

  void write_in_order(const FactorizationOutput& out) override {
    if (batch_.any_order) return write_in_any_order(out);
    if (distinct_ == batch_.ranges.count) return write_all(out);
    if (out.codes != nullptr)
      write_with_codes(out);
    else
      parallel_for(batch_.ranges.parts, [&](int range) { write_range(range, out); });
    const Hot* const hot = streams_->hot();
    if (out.counts != nullptr && hot != nullptr)
      for (std::int64_t place = 0; place < Hot::kPlaces; ++place)
        out.counts[hot->id_at(static_cast<std::uint64_t>(place))] += streams_->hits(place);
  }

  void write_in_any_order(const FactorizationOutput& out) const {
    partition_->for_each_part([&](const typename Partition::DistinctWords& part) {
      if (out.counts != nullptr) {
        std::int64_t* const counts = out.counts + part.first_id;
        std::fill_n(counts, part.count, std::int64_t{1});
        for (std::int64_t k = 0; k < part.repeated_count; ++k) counts[part.repeated[k]] = part.counts[k];
      }
      if (out.uniques == nullptr) return;
      const auto word_at = [&](std::int64_t k) { return part.words[k]; };
      const auto position_at = [&](std::int64_t k) { return part.positions[k]; };
      batch_.blocks.give_back(part.count, word_at, position_at, out.uniques, part.first_id);
    });
    std::int64_t id = partition_->distinct();
    for (const Listed& hot : hot_.listed) {
      if (out.counts != nullptr) out.counts[id] = hot.count;
      if (out.uniques != nullptr) store_word(out.uniques, id, batch_.blocks.bytes(), hot.word);
      ++id;
    }
  }

  /// All keys are distinct.
  void write_all(const FactorizationOutput& out) const {
    parallel_for(batch_.ranges.parts, [&](int range) {
      streams_->for_each_of_batch(range, [&](const Word* words, std::int64_t count, std::int64_t base) {
        if (out.codes != nullptr) std::iota(out.codes + base, out.codes + base + count, base);
        write_distinct(
            out, base, count, [&](std::int64_t k) { return words[k]; }, [&](std::int64_t k) { return base + k; },
            [](std::int64_t) { return std::int64_t{1}; });
      });
    });
  }

  /// What is known of the first occurrences in a block of a partition's words.
  void write_firsts(const FactorizationOutput& out, std::int64_t id, const Word* words, const std::uint16_t* at,
                    std::int64_t base, const typename Partition::Firsts& firsts) const {
    write_distinct(
        out, id, firsts.size, [&](std::int64_t k) { return words[firsts.at[k]]; },
        [&](std::int64_t k) { return base + at[firsts.at[k]]; },
        [&](std::int64_t k) { return std::int64_t{firsts.counts[k]}; });
  }

  void write_range(int range, const FactorizationOutput& out) const {
    std::int64_t id = partition_->first_id(range);
    const auto write_block = [&](const Word* words, const std::uint16_t* at, std::int64_t, std::int64_t base,
                                 const typename Partition::Firsts& firsts) {
      write_firsts(out, id, words, at, base, firsts);
      id += firsts.size;
    };
    partition_->replay_firsts(range, write_block);
  }

  void write_with_codes(const FactorizationOutput& out) {
    parallel_for(batch_.ranges.parts, [&](int range) { write_range_with_codes(range, out); });
    parallel_for(batch_.ranges.parts - 1, [&](int before) {
      const auto settle = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) out.codes[i] = partition_->settled(out.codes[i]);
      };
      in_pieces(batch_.ranges.begin(before + 1), batch_.ranges.end(before + 1), kKeysPerPiece, settle);
    });
  }

  void write_range_with_codes(int range, const FactorizationOutput& out) {
    const Hot* const hot = streams_->hot();
    std::int64_t id = partition_->first_id(range);
    const auto write_block = [&](const Word* words, const std::uint16_t* at, std::int64_t count, std::int64_t base,
                                 const typename Partition::Firsts& firsts, const std::int64_t* codes) {
      write_firsts(out, id, words, at, base, firsts);
      id += firsts.size;
      std::int64_t* const to = out.codes + base;
      if (hot == nullptr) {
        std::copy_n(codes, count, to);
        return;
      }
      Word buffer[kWordBlock];
      std::uint16_t places[kWordBlock];
      const std::int64_t size = std::min(kWordBlock, batch_.ranges.count - base);
      hot->places_of(batch_.blocks.read(base, size, buffer), size, places);
      for (std::int64_t j = 0; j < size; ++j) to[j] = hot->id_at(places[j]);
      for (std::int64_t j = 0; j < count; ++j) to[at[j]] = codes[j];
    };
    partition_->replay_codes(range, write_block);
  }

  HotPrefix<Word> hot_;
  std::optional<WordStreams<Word>> streams_;
  std::optional<Partition> partition_;
};

}  // namespace

template <class Word>
std::unique_ptr<Factorization> make_words_by_part(const WordBatch<Word>& batch, HotPrefix<Word> hot) {
  return std::make_unique<WordsByPart<Word>>(batch, std::move(hot));
}

template std::unique_ptr<Factorization> make_words_by_part(const WordBatch<std::uint32_t>& batch,
                                                           HotPrefix<std::uint32_t> hot);
template std::unique_ptr<Factorization> make_words_by_part(const WordBatch<std::uint64_t>& batch,
                                                           HotPrefix<std::uint64_t> hot);

}  // namespace gpuhash::host
