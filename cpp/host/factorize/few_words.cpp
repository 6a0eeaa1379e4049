#include "host/factorize/few_words.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "host/factorize/counted_words.hpp"
#include "host/factorize/seen_words.hpp"
#include "host/parallel.hpp"
#include "shared/first_occurrence.hpp"

namespace gpuhash::host {
namespace {

/// A batch of which few words are distinct: all of it is counted in a small table, one for each thread. (By parts
/// instead: 1.9 times, a 16th of 2^20 int32 distinct.)
///
/// SmallTable: CountedWords for words of 32 bits where no codes are wanted; it has none. SeenWords for others. (For
/// these as well: 1.8 times, likewise.)
template <class SmallTable>
class FewWords final : public WordWay<typename SmallTable::Word> {
 public:
  using Word = typename SmallTable::Word;

  /// Reads the prefix.
  explicit FewWords(const WordBatch<Word>& batch) : WordWay<Word>(batch) {
    read_prefix();
    hot_.choose(batch_, lists_.front());
  }

  /// Of a near batch. Null: too many keys are distinct.
  static std::unique_ptr<FewWords> count_near(const WordBatch<Word>& batch) {
    if (batch.options.expected > batch.ranges.count / kNearFew || batch.ranges.count < kLeastNearCounted)
      return nullptr;
    std::unique_ptr<FewWords> few(new FewWords(batch, Near{}));
    if (!few->count_near()) few.reset();
    return few;
  }

  /// Do so few keys seem distinct that small tables pay?
  bool seem_few() {
    const int parts = batch_.ranges.parts;
    if constexpr (kCounts) {
      // In nanoseconds: what a key of the batch takes a thread less than in a partition, which takes less itself where
      // nearly all keys are hot; what a distinct key takes each thread more, and what looking it up in the lists of all
      // ranges before does.
      const double gain = hot_.part < kVeryHot ? 6 : 2.4;
      const double cost = 20.0 * parts + 12.0 * parts * (parts - 1);
      const auto part = static_cast<std::int64_t>(gain * static_cast<double>(batch_.ranges.count) / cost);
      const std::int64_t most = std::clamp(part, kLeastFew, kMostFew / 4 * 3);
      listed_ = expected(batch_.ranges.count / parts);
      return listed_ <= most;
    }
    // One thread merges the tables of all others, at some 100 ns a key of each.
    const std::int64_t merged = std::int64_t{parts} * (parts - 1);
    return expected(batch_.ranges.count) <=
           (merged == 0 ? kMostFew : std::clamp(batch_.ranges.count / (kKeysPerMerged * merged), kLeastFew, kMostFew));
  }

  /// Counts all keys behind the prefix in small tables. False: they got full, and the batch has to be read again.
  bool read_rest() {
    for (int range = 1; range < batch_.ranges.parts; ++range) add_list();
    if constexpr (kCounts)
      return count_few();
    else
      return number_few();
  }

  /// What the prefix tells of hot words. To be called last.
  HotPrefix<Word> take_hot() {
    if (batch_.any_order && hot_.sets_aside()) hot_.list(lists_.front());
    return std::move(hot_);
  }

 private:
  using WordWay<Word>::batch_;
  using WordWay<Word>::distinct_;
  using WordWay<Word>::write_distinct;
  using Hot = HotWords<Word>;
  static constexpr bool kCounts = std::is_same_v<SmallTable, CountedWords>;

  /// Distinct keys of a small table, at most. With ids, a partition is as fast beyond even where all keys are read once
  /// more.
  static constexpr std::int64_t kMostFew = kCounts ? std::int64_t{1} << 20 : kPrefix;
  /// A list that gets twice as many words as were expected, and so many more, was a mistake.
  static constexpr std::int64_t kSlack = std::int64_t{1} << 16;
  /// As many are merged in no time, and a partition takes memory for the batch.
  static constexpr std::int64_t kLeastFew = std::int64_t{1} << 12;
  /// Small tables with ids of t threads pay where a batch has so many times t (t - 1) as many keys as distinct ones.
  static constexpr std::int64_t kKeysPerMerged = 12;
  /// One of so many keys of a near batch may be distinct for a small table to be faster. In smaller batches than that
  /// it hardly is, and to try it takes an eighth of the time where many are.
  static constexpr std::int64_t kNearFew = 6;
  static constexpr std::int64_t kLeastNearCounted = std::int64_t{1} << 13;
  /// Part of the sample from which on a partition is left with few keys (2.0 times without, 2^20 int32, 0.8 of them
  /// hot).
  static constexpr double kVeryHot = 0.7;

  struct Near {};
  FewWords(const WordBatch<Word>& batch, Near) : WordWay<Word>(batch) {}

  /// False: too many keys are distinct.
  bool count_near() {
    const std::int64_t count = batch_.ranges.count;
    const std::int64_t most = count / kNearFew;
    CountedWords& list = lists_.emplace_back(batch_.context, count, batch_.hash);
    bool pays = true;
    Word buffer[kWordBlock];
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      for_each_word_block(begin, end, [&](std::int64_t base, std::int64_t size) {
        pays = pays && list.size() <= most;
        if (pays) list.add(batch_.blocks.read(base, size, buffer), size, base);
      });
      return list.size();
    };
    const std::int64_t of_sixteenth = add(0, count / 16);
    pays = of_sixteenth <= count / 20;
    const auto of_eighth = static_cast<double>(add(count / 16, count / 8));
    const double growth = of_eighth / static_cast<double>(of_sixteenth);
    const double of_all = of_eighth * growth * growth * growth;
    pays = pays && of_all <= static_cast<double>(most);
    add(count / 8, count);
    if (!pays) return false;
    list.end();
    distinct_ = list.collect_counts(0, list.size());
    return true;
  }

  void read_prefix() {
    add_list();
    if (batch_.options.codes)
      ids_ = Allocation(batch_.context, static_cast<std::size_t>(batch_.ranges.count) * sizeof(*ids()), nullptr);
    Word buffer[kWordBlock];
    for_each_word_block(0, kPrefix, [&](std::int64_t base, std::int64_t count) {
      const Word* const words = batch_.blocks.read(base, count, buffer);
      if constexpr (kCounts)
        lists_.front().add(words, count, base);
      else
        lists_.front().add(words, kEachOfBlock.data(), count, base, ids_from(base));
    });
    if constexpr (kCounts) {
      lists_.front().end();
      lists_.front().collect_counts(0, lists_.front().size());
    }
  }

  void add_list() { lists_.emplace_back(batch_.context, kMostFew, batch_.hash); }

  std::uint32_t* ids() const { return ids_.as<std::uint32_t>(); }
  std::uint32_t* ids_from(std::int64_t position) const { return ids() == nullptr ? nullptr : ids() + position; }

  /// About as many are distinct of the first `keys` of the batch, as far as the prefix tells.
  std::int64_t expected(std::int64_t keys) const {
    auto firsts = scratch<std::uint32_t>(kPrefix / 32);
    for (std::int64_t id = 0; id < lists_.front().size(); ++id) {
      const std::int64_t first = lists_.front().first(id);
      firsts[static_cast<std::size_t>(first / 32)] |= std::uint32_t{1} << (first % 32);
    }
    return batch_size::estimate_for_growth(firsts.data(), kPrefix, std::max(kPrefix, keys), kPrefix / 1024);
  }

  bool count_few() {
    std::atomic<bool> full{false};
    parallel_for(batch_.ranges.parts, [&](int range) {
      CountedWords& list = lists_[static_cast<std::size_t>(range)];
      Word buffer[kWordBlock];
      list.make_room_for(listed_ / 10 * 9 - list.size());  // a guess has some to spare
      read_range(range, full, list, [&](std::int64_t base, std::int64_t count) {
        list.add(batch_.blocks.read(base, count, buffer), count, base);
      });
      list.end();
    });
    if (full.load()) return false;
    for (std::size_t later = 1; later < lists_.size(); ++later)
      for_each_share(lists_[later], [&](std::int64_t begin, std::int64_t end) {
        lists_[later].move_counts(begin, end, std::span(lists_).first(later));
      });
    std::atomic<std::int64_t> distinct{0};
    for (CountedWords& list : lists_)
      for_each_share(list, [&](std::int64_t begin, std::int64_t end) { distinct += list.collect_counts(begin, end); });
    distinct_ = distinct;
    return true;
  }

  /// Calls body(begin, end) for a share of a list's ids on each thread.
  template <class Body>
  void for_each_share(const CountedWords& list, Body body) const {
    parallel_for(batch_.ranges.parts, [&](int share) {
      body(part_begin(list.size(), share, batch_.ranges.parts),
           part_begin(list.size(), share + 1, batch_.ranges.parts));
    });
  }

  /// Calls body(base, count) for the blocks of a range behind the prefix, until there is no room for more in this list
  /// or in that of another range: it is full then.
  template <class Body>
  void read_range(int range, std::atomic<bool>& full, const SmallTable& list, Body body) const {
    bool has_room = true;
    const std::int64_t begin = range == 0 ? kPrefix : batch_.ranges.begin(range);
    in_pieces(begin, batch_.ranges.end(range), kKeysPerPiece, [&](std::int64_t piece_begin, std::int64_t piece_end) {
      for_each_word_block(piece_begin, piece_end, [&](std::int64_t base, std::int64_t count) {
        has_room = has_room && list.has_room_for(count) && !full.load(std::memory_order_relaxed);
        if (kCounts) has_room = has_room && list.size() <= 2 * listed_ + kSlack;
        if (has_room) body(base, count);
      });
    });
    if (!has_room) full.store(true, std::memory_order_relaxed);
  }

  bool number_few() {
    const std::int64_t known = lists_.front().size();
    auto hits = scratch<std::uint32_t>(batch_.ranges.parts * Hot::kPlaces);
    std::atomic<bool> full{false};
    parallel_for(batch_.ranges.parts, [&](int range) {
      auto own_hits = scratch<std::uint32_t>(Hot::kPlaces);
      number_range(range, known, own_hits.data(), full);
      std::copy_n(own_hits.data(), Hot::kPlaces, hits.data() + range * Hot::kPlaces);
    });
    if (full.load() || !merge()) return false;
    distinct_ = lists_.front().size();
    for (std::int64_t i = 0; i < std::ssize(hits); ++i)
      lists_.front().count(hot_.words[0].id_at(static_cast<std::uint64_t>(i % Hot::kPlaces))) +=
          hits[static_cast<std::size_t>(i)];
    return true;
  }

  void number_range(int range, std::int64_t known, std::uint32_t* hits, std::atomic<bool>& full) {
    SmallTable& list = lists_[static_cast<std::size_t>(range)];
    if (range > 0) list.begin_with(lists_.front(), known);
    const Hot& hot = hot_.words[0];
    Word buffer[kWordBlock];
    Word rest[kWordBlock];
    std::uint16_t at[kWordBlock];
    std::uint16_t places[kWordBlock];
    std::uint16_t rest_places[kWordBlock];
    read_range(range, full, list, [&](std::int64_t base, std::int64_t count) {
      const Word* const words = batch_.blocks.read(base, count, buffer);
      if (!hot_.sets_aside()) return list.add(words, kEachOfBlock.data(), count, base, ids_from(base));
      hot.places_of(words, count, places);
      const std::int64_t left = hot.set_aside(words, places, count, hits, rest, at, rest_places);
      std::uint32_t* const ids = ids_from(base);
      if (ids != nullptr)
        for (std::int64_t j = 0; j < count; ++j) ids[j] = hot.id_at(places[j]);
      list.add(rest, at, left, base, ids);
    });
  }

  /// Adds what the later ranges' tables hold to that of the first. False: there is no room.
  bool merge() {
    SmallTable& all = lists_.front();
    for (int range = 1; range < batch_.ranges.parts; ++range) {
      const SmallTable& list = lists_[static_cast<std::size_t>(range)];
      auto& map = id_maps_.emplace_back(scratch<std::uint32_t>(list.size()));
      for (std::int64_t id = 0; id < list.size(); ++id) {
        if (!all.has_room_for(1)) return false;
        map[static_cast<std::size_t>(id)] = all.add(list.word(id), static_cast<std::uint32_t>(list.count(id)),
                                                    static_cast<std::uint32_t>(list.first(id)));
      }
    }
    return true;
  }

  void write_in_order(const FactorizationOutput& out) override {
    if constexpr (kCounts) {
      std::int64_t id = 0;
      for (const CountedWords& list : lists_)
        list.for_each_counted([&](const std::int64_t* ids, std::int64_t count) {
          write_listed(out, id, list, ids, count);
          id += count;
        });
    } else {
      for (std::int64_t base = 0; base < distinct_; base += kWordBlock) {
        std::int64_t ids[kWordBlock];
        const std::int64_t count = std::min(kWordBlock, distinct_ - base);
        std::iota(ids, ids + count, base);
        write_listed(out, base, lists_.front(), ids, count);
      }
    }
    if (out.codes == nullptr) return;
    parallel_for(batch_.ranges.parts, [&](int range) {
      const std::uint32_t* const map = range == 0 ? nullptr : id_maps_[static_cast<std::size_t>(range - 1)].data();
      in_pieces(batch_.ranges.begin(range), batch_.ranges.end(range), kKeysPerPiece,
                [&](std::int64_t begin, std::int64_t end) {
                  if (map == nullptr)
                    std::copy(ids() + begin, ids() + end, out.codes + begin);
                  else
                    for (std::int64_t i = begin; i < end; ++i) out.codes[i] = map[ids()[i]];
                });
    });
  }

  /// What a list knows of some words.
  void write_listed(const FactorizationOutput& out, std::int64_t id, const SmallTable& list, const std::int64_t* ids,
                    std::int64_t count) const {
    write_distinct(
        out, id, count, [&](std::int64_t k) { return list.word(ids[k]); },
        [&](std::int64_t k) { return list.first(ids[k]); }, [&](std::int64_t k) { return list.count(ids[k]); });
  }

  std::int64_t listed_ = 0;                          // words that each list may get, if it counts
  std::vector<SmallTable> lists_;                    // one per range; with ids, the first is in the end that of all
  Allocation ids_;                                   // [n], of each key in its range's list, if codes are wanted
  std::vector<std::vector<std::uint32_t>> id_maps_;  // of each range but the first: ids in its list to ids
  HotPrefix<Word> hot_;
};

template <class SmallTable>
std::unique_ptr<Factorization> find_few(const WordBatch<typename SmallTable::Word>& batch,
                                        HotPrefix<typename SmallTable::Word>& hot) {
  auto few = std::make_unique<FewWords<SmallTable>>(batch);
  if (few->seem_few() && few->read_rest()) return few;
  hot = few->take_hot();
  return nullptr;
}

}  // namespace

template <class Word>
std::unique_ptr<Factorization> count_near_words(const WordBatch<Word>& batch) {
  if constexpr (std::is_same_v<Word, CountedWords::Word>)
    if (batch.options.counts && !batch.options.codes) return FewWords<CountedWords>::count_near(batch);
  return nullptr;
}

template <class Word>
std::unique_ptr<Factorization> find_few_words(const WordBatch<Word>& batch, HotPrefix<Word>& hot) {
  if constexpr (std::is_same_v<Word, CountedWords::Word>)
    if (!batch.options.codes) return find_few<CountedWords>(batch, hot);
  return find_few<SeenWords<Word>>(batch, hot);
}

template std::unique_ptr<Factorization> count_near_words(const WordBatch<std::uint32_t>& batch);
template std::unique_ptr<Factorization> count_near_words(const WordBatch<std::uint64_t>& batch);
template std::unique_ptr<Factorization> find_few_words(const WordBatch<std::uint32_t>& batch,
                                                       HotPrefix<std::uint32_t>& hot);
template std::unique_ptr<Factorization> find_few_words(const WordBatch<std::uint64_t>& batch,
                                                       HotPrefix<std::uint64_t>& hot);

}  // namespace gpuhash::host
