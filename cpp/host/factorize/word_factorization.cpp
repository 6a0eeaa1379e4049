#include "host/factorize/word_factorization.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "host/factorize/counted_words.hpp"
#include "host/factorize/part_firsts.hpp"
#include "host/factorize/seen_words.hpp"
#include "host/factorize/sorted_ids.hpp"
#include "host/factorize/word_partition.hpp"
#include "shared/first_occurrence.hpp"

namespace gpuhash::host {
namespace {

/// What is known of the distinct keys, in order of first occurrence, to be put into another order.
struct InOrder {
  Allocation uniques;
  Allocation counts;
  Allocation firsts;
};

/// Makes keys of the order words that belong to [distinct] of them. Two keys have more than one form, 0 and NaN: the
/// form is kept that is to be given back.
template <class Key>
struct KeyMaker {
  NumberFormat format;
  Key zero = 0;
  Key nan = 0;

  KeyMaker(const NumberFormat& of, const Key* uniques, std::int64_t distinct) : format(of) {
    if (!format.is_float) return;
    for_each_chunk(distinct, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t id = begin; id < end; ++id) {
        const std::uint64_t key = canonical(std::uint64_t{uniques[id]}, format);
        if (key == 0) zero = uniques[id];  // one thread meets it, if any does
        if (key == gpuhash::detail::canonical_nan(format)) nan = uniques[id];
      }
    });
  }
  static std::uint64_t order(Key raw, const NumberFormat& format) {
    return gpuhash::detail::ordered(canonical(std::uint64_t{raw}, format), format);
  }
  Key operator()(std::uint64_t order) const {
    const auto key = static_cast<Key>(key_of_order(order, format));
    if (!format.is_float) return key;
    return key == 0 ? zero : key == gpuhash::detail::canonical_nan(format) ? nan : key;
  }
};

using NearFirsts = PartFirsts<std::uint16_t>;
using WideNearFirsts = PartFirsts<std::uint32_t>;

/// Is a batch so small that its first occurrences are found as those of a single part? One thread does that in the
/// second cache. Of more than 2^16 keys several threads together partition faster, but two are slower where all keys
/// get ids.
bool is_near(const Ranges& batch, bool codes) {
  constexpr std::int64_t kMostNear = std::int64_t{1} << 17;
  return batch.count <= NearFirsts::kMost || (batch.count <= kMostNear && batch.parts <= (codes ? 2 : 1));
}

/// The factorization of keys that are words, on the host.
///
/// A small batch is *near*: it fits a cache, and PartFirsts finds where each key occurs first. Of others the first
/// keys, the *prefix*, tell what they are like. Where few of them are distinct, all of the batch is counted in a small
/// table (one for each thread). Otherwise, or where that table gets full after all, the batch is partitioned
/// (WordPartition); keys that came often in the prefix are set aside before that, because their ids are known: ids are
/// given in order of first occurrence.
///
/// SmallTable: CountedWords for words of 32 bits where no codes are wanted; it has none. SeenWords for others.
template <class SmallTable>
class WordFactorization final : public Factorization {
 public:
  WordFactorization(DeviceContext& context, const NumberKeys& keys, const FactorizationOptions& options,
                    const Ranges& ranges)
      : context_(context),
        keys_(keys),
        blocks_(keys_),
        options_(options),
        ranges_(ranges),
        any_order_(options.any_order && blocks_.compares_bits()) {
    if (is_near(ranges_, options.codes)) {
      if (!count_near()) distinct_ = find_near();
      return;
    }
    read_prefix();
    hot_part_ = choose_hot_words();
    if (!seem_few() || !read_as_few()) partition();
    if (!partition_) return;
    distinct_ = partition_->distinct();
    if (any_order_)
      distinct_ += count_hot_words();
    else
      hot_[0].limit_ids(static_cast<std::uint32_t>(distinct_ - 1));
  }

  std::int64_t count() const override { return distinct_; }

  bool marks_firsts() const override { return partition_ && any_order_; }

  void mark_firsts(const bool* of_keys, bool* mask) const override {
    parallel_for(ranges_.parts, [&](int range) {
      std::fill(mask + ranges_.begin(range), mask + ranges_.end(range), false);
      partition_->for_each_first(range, [&](std::int64_t position, std::int64_t id) { mask[position] = of_keys[id]; });
    });
    std::int64_t id = partition_->distinct();
    for (const HotWord& hot : hot_words_) mask[hot.first] = of_keys[id++];
  }

  void write(const FactorizationOutput& out) override {
    if (out.sorted)
      write_sorted(out);
    else
      write_in_order(out);
  }

 private:
  using Word = typename SmallTable::Word;
  static constexpr bool kCounts = std::is_same_v<SmallTable, CountedWords>;
  using Hot = HotWords<Word>;
  using Partition = WordPartition<Word>;
  static constexpr std::int64_t kPrefix = 16 * kWordBlock;
  /// Distinct keys of a small table, at most. With ids, a partition is as fast beyond even where all keys are read once
  /// more.
  static constexpr std::int64_t kMostFew = kCounts ? std::int64_t{1} << 20 : kPrefix;
  /// Where the prefix makes one expect up to so many times as many words as pay, and many have come again there, a
  /// sample of the whole batch may tell better.
  static constexpr std::int64_t kDoubted = 4;
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
  /// Keys of the sample, and those that a key that comes often has among them: one of 64.
  static constexpr std::int64_t kSample = std::int64_t{1} << 10;
  static constexpr std::int64_t kFrequent = kSample / 64;
  /// Part of the sample that has to be hot for hot keys to be set aside.
  static constexpr double kLeastHot = 0.4;
  /// Part of it from which on a partition is spared so many keys that it is as fast as small tables of many words.
  static constexpr double kSparingHot = 0.5;
  /// Part of it from which on a partition is left with few keys.
  static constexpr double kVeryHot = 0.7;

  /// Do so few keys seem distinct that small tables pay?
  bool seem_few() {
    const int parts = ranges_.parts;
    if constexpr (kCounts) {
      // In nanoseconds: what a key of the batch takes a thread less than in a partition, which takes less itself where
      // nearly all keys are hot; what a distinct key takes each thread more, and what looking it up in the lists of all
      // ranges before does.
      const double gain = hot_part_ < kVeryHot ? 6 : 2.4;
      const double cost = 20.0 * parts + 12.0 * parts * (parts - 1);
      const auto part = static_cast<std::int64_t>(gain * static_cast<double>(ranges_.count) / cost);
      const std::int64_t most = std::clamp(part, kLeastFew, kMostFew / 4 * 3);
      listed_ = expected(ranges_.count / parts);
      const bool repeats = lists_.front().size() < kPrefix / 4 * 3 && hot_part_ < kSparingHot;
      if (repeats && listed_ > most && listed_ <= kDoubted * most) listed_ = std::min(listed_, expected_by_sample());
      return listed_ <= most;
    }
    // One thread merges the tables of all others, at some 100 ns a key of each.
    const std::int64_t merged = std::int64_t{parts} * (parts - 1);
    return expected(ranges_.count) <=
           (merged == 0 ? kMostFew : std::clamp(ranges_.count / (kKeysPerMerged * merged), kLeastFew, kMostFew));
  }

  bool has_hot_words() const { return hot_part_ >= kLeastHot; }
  std::uint32_t* ids() const { return ids_.as<std::uint32_t>(); }

  /// Counts a near batch in a small table. False: nobody wants counts alone, or so many keys are distinct, or seem to
  /// be beforehand or after an eighth of them, that find_near() is faster.
  bool count_near() {
    if (options_.expected > ranges_.count / kNearFew) return false;
    if constexpr (kCounts)
      if (options_.counts && !options_.codes && ranges_.count >= kLeastNearCounted) return count_few_near();
    return false;
  }

  bool count_few_near() {
    const std::int64_t count = ranges_.count;
    const std::int64_t most = count / kNearFew;
    CountedWords& list = lists_.emplace_back(context_, count, hash_);
    bool pays = true;
    Word buffer[kWordBlock];
    const auto add = [&](std::int64_t begin, std::int64_t end) {
      for_each_word_block(begin, end, [&](std::int64_t base, std::int64_t size) {
        pays = pays && list.size() <= most;
        if (pays) list.add(blocks_.read(base, size, buffer), size, base);
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
    if (!pays) {
      lists_.clear();
      return false;
    }
    list.end();
    distinct_ = list.collect_counts(0, list.size());
    return true;
  }

  /// Returns the number of distinct keys.
  std::int64_t find_near() {
    return ranges_.count <= NearFirsts::kMost ? find_near<std::uint16_t>() : find_near<std::uint32_t>();
  }

  template <class Position>
  std::int64_t find_near() {
    const std::int64_t count = ranges_.count;
    if (!blocks_.in_place())
      near_words_ = Allocation(context_, static_cast<std::size_t>(count) * sizeof(Word), nullptr);
    const std::int64_t room = PartFirsts<Position>::room(count);
    near_memory_ = Allocation(context_, static_cast<std::size_t>(room) * sizeof(Position), nullptr);
    const auto& near = near_.template emplace<PartFirsts<Position>>(near_memory_.as<Position>(), count);
    near.find(blocks_.read(0, count, near_words_.as<Word>()), hash_, count);
    return count_firsts(near.firsts(), 0, count);
  }

  void read_prefix() {
    add_list();
    if (options_.codes) ids_ = Allocation(context_, static_cast<std::size_t>(ranges_.count) * sizeof(*ids()), nullptr);
    Word buffer[kWordBlock];
    for_each_word_block(0, kPrefix, [&](std::int64_t base, std::int64_t count) {
      const Word* const words = blocks_.read(base, count, buffer);
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

  void add_list() { lists_.emplace_back(context_, kMostFew, hash_); }

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

  /// About as many are distinct of all keys: a text says other things later, and what its prefix makes one expect is up
  /// to five times as much.
  std::int64_t expected_by_sample() const {
    if (options_.expected != 0) return options_.expected;
    const auto samples = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(ranges_.count) / 64));
    return Factorizer::of(context_).estimate_distinct(context_, keys_, std::max(samples, kPrefix), nullptr).count;
  }

  /// Those that came at least twice in the prefix, of two in one place the more frequent. Returns their part of a
  /// sample of the whole batch: a text says the same again within some thousand letters, and not later. Notes those
  /// that make up much of the sample by themselves.
  double choose_hot_words() {
    hot_ = uninitialised<Hot>(1);
    // Which of two words in one place is hot decides about the order of ids in any order: as the seed has it, then.
    hot_[0].clear(any_order_ ? WordHash<Word>::of(options_.order_seed) : hash_);
    const SmallTable& prefix = lists_.front();
    auto times = scratch<std::int64_t>(Hot::kPlaces);
    for (std::int64_t id = 0; id < prefix.size(); ++id) {
      std::int64_t& most = times[static_cast<std::size_t>(hot_[0].place(prefix.word(id)))];
      if (prefix.count(id) < 2 || prefix.count(id) <= most) continue;
      most = prefix.count(id);
      hot_[0].put(prefix.word(id), static_cast<std::uint32_t>(id));
    }
    std::ranges::fill(times, 0);
    std::int64_t sum = 0;
    for (std::int64_t j = 0; j < kSample; ++j) {
      Word buffer;
      const Word word = *blocks_.read((ranges_.count - 1) * j / (kSample - 1), 1, &buffer);
      const std::uint64_t place = hot_[0].place(word);
      if (hot_[0].word_at(place) != word) continue;
      ++sum;
      if (++times[static_cast<std::size_t>(place)] != kFrequent) continue;
      if (std::ssize(frequent_) < WordStreams<Word>::kMostFrequent) frequent_.push_back(word);
    }
    return static_cast<double>(sum) / kSample;
  }

  /// Counts all keys behind the prefix in small tables. False: they got full, and the batch has to be read again.
  bool read_as_few() {
    for (int range = 1; range < ranges_.parts; ++range) add_list();
    if constexpr (kCounts)
      return count_few();
    else
      return number_few();
  }

  bool count_few() {
    std::atomic<bool> full{false};
    parallel_for(ranges_.parts, [&](int range) {
      CountedWords& list = lists_[static_cast<std::size_t>(range)];
      Word buffer[kWordBlock];
      list.make_room_for(listed_ / 10 * 9 - list.size());  // a guess has some to spare
      read_range(range, full, list, [&](std::int64_t base, std::int64_t count) {
        list.add(blocks_.read(base, count, buffer), count, base);
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
    parallel_for(ranges_.parts, [&](int share) {
      body(part_begin(list.size(), share, ranges_.parts), part_begin(list.size(), share + 1, ranges_.parts));
    });
  }

  /// Calls body(base, count) for the blocks of a range behind the prefix, until there is no room for more in this list
  /// or in that of another range: it is full then.
  template <class Body>
  void read_range(int range, std::atomic<bool>& full, const SmallTable& list, Body body) const {
    bool has_room = true;
    const std::int64_t begin = range == 0 ? kPrefix : ranges_.begin(range);
    in_pieces(begin, ranges_.end(range), kKeysPerPiece, [&](std::int64_t piece_begin, std::int64_t piece_end) {
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
    auto hits = scratch<std::uint32_t>(ranges_.parts * Hot::kPlaces);
    std::atomic<bool> full{false};
    parallel_for(ranges_.parts, [&](int range) {
      auto own_hits = scratch<std::uint32_t>(Hot::kPlaces);
      number_range(range, known, own_hits.data(), full);
      std::copy_n(own_hits.data(), Hot::kPlaces, hits.data() + range * Hot::kPlaces);
    });
    if (full.load() || !merge()) return false;
    distinct_ = lists_.front().size();
    for (std::int64_t i = 0; i < std::ssize(hits); ++i)
      lists_.front().count(hot_[0].id_at(static_cast<std::uint64_t>(i % Hot::kPlaces))) +=
          hits[static_cast<std::size_t>(i)];
    return true;
  }

  void number_range(int range, std::int64_t known, std::uint32_t* hits, std::atomic<bool>& full) {
    SmallTable& list = lists_[static_cast<std::size_t>(range)];
    if (range > 0) list.begin_with(lists_.front(), known);
    const Hot& hot = hot_[0];
    Word buffer[kWordBlock];
    Word rest[kWordBlock];
    std::uint16_t at[kWordBlock];
    std::uint16_t places[kWordBlock];
    std::uint16_t rest_places[kWordBlock];
    read_range(range, full, list, [&](std::int64_t base, std::int64_t count) {
      const Word* const words = blocks_.read(base, count, buffer);
      if (!has_hot_words()) return list.add(words, kEachOfBlock.data(), count, base, ids_from(base));
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
    for (int range = 1; range < ranges_.parts; ++range) {
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

  void partition() {
    if (any_order_ && has_hot_words()) list_hot_words();
    lists_.clear();
    ids_ = Allocation();
    double words = static_cast<double>(ranges_.count);
    if (has_hot_words()) {
      words *= 1 - hot_part_;
      streams_.emplace(context_, blocks_, ranges_, hot_[0], any_order_ ? 0 : kPrefix);
    } else {
      streams_.emplace(context_, blocks_, ranges_, frequent_);
    }
    using Marks = typename Partition::Marks;
    const Marks marks = any_order_         ? Marks::kNone
                        : !options_.codes  ? Marks::kCounts
                        : !options_.counts ? Marks::kNumbers
                                           : Marks::kNumbersAndCounts;
    const std::optional<std::uint64_t> seed = any_order_ ? std::optional(options_.order_seed) : std::nullopt;
    partition_.emplace(context_, *streams_, hash_, seed, static_cast<std::int64_t>(words), marks);
  }

  /// In any order hot words come after all others.
  struct HotWord {
    Word word;
    std::int64_t first;  // its position in the prefix
    std::int64_t place;
    std::int64_t count;
  };

  void list_hot_words() {
    for (std::int64_t place = 0; place < Hot::kPlaces; ++place) {
      const std::uint32_t id = hot_[0].id_at(static_cast<std::uint64_t>(place));
      const Word word = lists_.front().word(id);
      if (hot_[0].word_at(place) == word) hot_words_.push_back({word, lists_.front().first(id), place, 0});
    }
  }

  /// Counts the hot words, and returns how many have come: all, unless somebody changes the keys.
  std::int64_t count_hot_words() {
    for (HotWord& hot : hot_words_) hot.count = streams_->hits(hot.place);
    std::erase_if(hot_words_, [](const HotWord& hot) { return hot.count == 0; });
    std::ranges::sort(hot_words_, {}, &HotWord::first);
    return std::ssize(hot_words_);
  }

  void write_in_order(const FactorizationOutput& out) {
    if (const auto* const near = std::get_if<NearFirsts>(&near_)) return write_near(out, *near);
    if (const auto* const near = std::get_if<WideNearFirsts>(&near_)) return write_near(out, *near);
    if (!partition_) return write_few(out);
    if (any_order_) return write_in_any_order(out);
    if (distinct_ == ranges_.count) return write_all(out);
    if (out.codes != nullptr)
      write_with_codes(out);
    else
      parallel_for(ranges_.parts, [&](int range) { write_range(range, out); });
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
      blocks_.give_back(part.count, word_at, position_at, out.uniques, part.first_id);
    });
    std::int64_t id = partition_->distinct();
    for (const HotWord& hot : hot_words_) {
      if (out.counts != nullptr) out.counts[id] = hot.count;
      if (out.uniques != nullptr) store_word(out.uniques, id, blocks_.bytes(), hot.word);
      ++id;
    }
  }

  template <class Position>
  void write_near(const FactorizationOutput& out, const PartFirsts<Position>& near) const {
    write_near_firsts(out, near.firsts());
    if (out.codes != nullptr) write_near_codes(out.codes, near.firsts(), near.scratch());
  }

  template <class Position>
  void write_near_firsts(const FactorizationOutput& out, const Position* firsts) const {
    const std::int64_t count = ranges_.count;
    const Allocation memory(context_, out.counts == nullptr ? 0 : static_cast<std::size_t>(count) * 4, nullptr);
    auto* const counts = memory.as<std::uint32_t>();  // [n], at first occurrences
    if (counts != nullptr) {
      std::fill_n(counts, count, 0u);
      for (std::int64_t i = 0; i < count; ++i) ++counts[firsts[i]];
    }
    NearBlock block;
    std::int64_t id = 0;
    for_each_word_block(0, count, [&](std::int64_t base, std::int64_t size) {
      block.size = 0;
      std::int64_t j = 0;
      with_simd([&]<class Simd>(Simd) {
        const Word* const words = near_words();
        for (; j + 8 <= size; j += 8) {
          const std::uint32_t are_first = Simd::counting_from(static_cast<Position>(base + j), firsts + base + j);
          Simd::store_chosen(are_first, words + base + j, block.words + block.size);
          Simd::store_numbers(are_first, static_cast<std::uint32_t>(base + j), block.positions + block.size);
          if (counts != nullptr) Simd::store_chosen(are_first, counts + base + j, block.counts + block.size);
          block.size += std::popcount(are_first);
        }
      });
      for (; j < size; ++j) {
        block.words[block.size] = near_words()[base + j];
        block.positions[block.size] = static_cast<std::uint32_t>(base + j);
        if (counts != nullptr) block.counts[block.size] = counts[base + j];
        block.size += firsts[base + j] == base + j ? 1 : 0;
      }
      write_distinct(
          out, id, block.size, [&](std::int64_t k) { return block.words[k]; },
          [&](std::int64_t k) { return std::int64_t{block.positions[k]}; },
          [&](std::int64_t k) { return std::int64_t{block.counts[k]}; });
      id += block.size;
    });
  }

  /// First occurrences in a block of a near batch, and room for what is written behind the last one.
  struct NearBlock {
    std::int64_t size;
    Word words[kWordBlock + 8];
    std::uint32_t positions[kWordBlock + 8];
    std::uint32_t counts[kWordBlock + 8];  // if they were asked for
  };

  /// ids: memory for as many as keys.
  template <class Position>
  void write_near_codes(std::int64_t* codes, const Position* firsts, Position* ids) const {
    const std::int64_t count = ranges_.count;
    Position id = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      ids[i] = id;
      id += firsts[i] == i ? 1 : 0;
    }
    for (std::int64_t i = 0; i < count; ++i) codes[i] = ids[firsts[i]];
  }
  const Word* near_words() const { return blocks_.in_place() ? blocks_.read(0, 0, nullptr) : near_words_.as<Word>(); }

  void write_few(const FactorizationOutput& out) const {
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
    parallel_for(ranges_.parts, [&](int range) {
      const std::uint32_t* const map = range == 0 ? nullptr : id_maps_[static_cast<std::size_t>(range - 1)].data();
      in_pieces(ranges_.begin(range), ranges_.end(range), kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
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

  /// All keys are distinct.
  void write_all(const FactorizationOutput& out) const {
    parallel_for(ranges_.parts, [&](int range) {
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

  /// What is asked for of `count` distinct words, whose ids begin with `id`: from word_at(k), from position_at(k),
  /// where each occurs first, and count_at(k), how often.
  template <class WordAt, class PositionAt, class CountAt>
  void write_distinct(const FactorizationOutput& out, std::int64_t id, std::int64_t count, WordAt word_at,
                      PositionAt position_at, CountAt count_at) const {
    if (out.counts != nullptr)
      for (std::int64_t k = 0; k < count; ++k) out.counts[id + k] = count_at(k);
    if (out.firsts != nullptr)
      for (std::int64_t k = 0; k < count; ++k) out.firsts[id + k] = position_at(k);
    if (out.uniques != nullptr) blocks_.give_back(count, word_at, position_at, out.uniques, id);
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
    parallel_for(ranges_.parts, [&](int range) { write_range_with_codes(range, out); });
    parallel_for(ranges_.parts - 1, [&](int before) {
      const auto settle = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) out.codes[i] = partition_->settled(out.codes[i]);
      };
      in_pieces(ranges_.begin(before + 1), ranges_.end(before + 1), kKeysPerPiece, settle);
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
      const std::int64_t size = std::min(kWordBlock, ranges_.count - base);
      hot->places_of(blocks_.read(base, size, buffer), size, places);
      for (std::int64_t j = 0; j < size; ++j) to[j] = hot->id_at(places[j]);
      for (std::int64_t j = 0; j < count; ++j) to[at[j]] = codes[j];
    };
    partition_->replay_codes(range, write_block);
  }

  void write_sorted(const FactorizationOutput& out) {
    if (distinct_ == 0) return;
    const auto run = [&]<class Key>(Key) {
      if (out.codes == nullptr && out.counts == nullptr && out.firsts == nullptr)
        write_keys_sorted<Key>(out);
      else
        write_numbers_sorted<Key>(out);
    };
    if (!is_order_reversible(blocks_.format())) return write_rows_sorted(out);
    switch (blocks_.bytes()) {
      case 1:
        return run(std::uint8_t{});
      case 2:
        return run(std::uint16_t{});
      case 4:
        return run(std::uint32_t{});
      default:
        return run(std::uint64_t{});
    }
  }

  /// Sorts nothing but order words.
  template <class Key>
  void write_keys_sorted(const FactorizationOutput& out) {
    if (out.uniques == nullptr) return;
    write_in_order(out);
    auto* const uniques = static_cast<Key*>(out.uniques);
    const NumberFormat format = blocks_.format();
    const KeyMaker<Key> key(format, uniques, distinct_);
    using Order = std::conditional_t<sizeof(Key) <= 4, std::uint32_t, std::uint64_t>;
    const Allocation memory(context_, 2 * static_cast<std::size_t>(distinct_) * sizeof(Order), nullptr);
    auto* const words = memory.as<Order>();
    for_each_chunk(distinct_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t id = begin; id < end; ++id)
        words[id] = static_cast<Order>(KeyMaker<Key>::order(uniques[id], format));
    });
    RadixSort<Order>::sort(words, words + distinct_, distinct_);
    for_each_chunk(distinct_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t rank = begin; rank < end; ++rank) uniques[rank] = key(words[rank]);
    });
  }

  InOrder write_aside(const FactorizationOutput& out) {
    const auto room = [&](bool wanted, std::int64_t bytes) {
      return Allocation(context_, wanted ? static_cast<std::size_t>(distinct_ * bytes) : 0, nullptr);
    };
    constexpr std::int64_t kBytes = sizeof(std::int64_t);
    InOrder aside{room(true, blocks_.bytes()), room(out.counts != nullptr, kBytes),
                  room(out.firsts != nullptr, kBytes)};
    FactorizationOutput in_order = out;
    in_order.uniques = aside.uniques.get();
    if (out.counts != nullptr) in_order.counts = aside.counts.as<std::int64_t>();
    if (out.firsts != nullptr) in_order.firsts = aside.firsts.as<std::int64_t>();
    write_in_order(in_order);
    return aside;
  }

  template <class Key>
  void write_numbers_sorted(const FactorizationOutput& out) {
    const InOrder aside = write_aside(out);
    const auto* const uniques = aside.uniques.as<Key>();
    const NumberFormat format = blocks_.format();
    const KeyMaker<Key> key(format, uniques, distinct_);
    const auto order_at = [&](std::int64_t id) { return KeyMaker<Key>::order(uniques[id], format); };
    with_ids_in_order(context_, distinct_, order_at, [&](auto id_at, auto sorted_at) {
      auto* const to = static_cast<Key*>(out.uniques);
      if (to != nullptr) for_each_rank([&](std::int64_t rank) { to[rank] = key(sorted_at(rank)); });
      put_in_order(out, aside, id_at);
    });
  }

  /// Keys of several numbers, and complex ones.
  void write_rows_sorted(const FactorizationOutput& out) {
    const InOrder aside = write_aside(out);
    const NumberFormat format = blocks_.format();
    const auto unique = [&](std::int64_t id) {
      return load_word<std::uint64_t>(aside.uniques.get(), id, blocks_.bytes());
    };
    const auto order_at = [&](std::int64_t id) {
      return order_word(to_uint128(canonical(unique(id), format)), format).low;
    };
    with_ids_in_order(context_, distinct_, order_at, [&](auto id_at, auto) {
      if (out.uniques != nullptr)
        for_each_rank([&](std::int64_t rank) { store_word(out.uniques, rank, blocks_.bytes(), unique(id_at(rank))); });
      put_in_order(out, aside, id_at);
    });
  }

  template <class Body>
  void for_each_rank(Body body) const {
    for_each_chunk(distinct_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t rank = begin; rank < end; ++rank) body(rank);
    });
  }

  /// All but the keys. Loops of their own: the processor has more of their random accesses under way.
  template <class IdAt>
  void put_in_order(const FactorizationOutput& out, const InOrder& aside, IdAt id_at) const {
    const auto* const counts = aside.counts.as<std::int64_t>();
    const auto* const firsts = aside.firsts.as<std::int64_t>();
    if (out.counts != nullptr) for_each_rank([&](std::int64_t rank) { out.counts[rank] = counts[id_at(rank)]; });
    if (out.firsts != nullptr) for_each_rank([&](std::int64_t rank) { out.firsts[rank] = firsts[id_at(rank)]; });
    if (out.codes == nullptr) return;
    const Allocation memory(context_, static_cast<std::size_t>(distinct_) * sizeof(std::uint32_t), nullptr);
    auto* const ranks = memory.as<std::uint32_t>();
    for_each_rank([&](std::int64_t rank) { ranks[id_at(rank)] = static_cast<std::uint32_t>(rank); });
    std::int64_t* const codes = out.codes;
    for_each_chunk(ranges_.count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) codes[i] = ranks[codes[i]];
    });
  }

  DeviceContext& context_;
  NumberKeys keys_;
  WordBlocks<Word> blocks_;
  FactorizationOptions options_;
  Ranges ranges_;
  bool any_order_;
  WordHash<Word> hash_;  // no answer depends on its seeds, and nobody can pick keys that meet
  std::int64_t distinct_ = 0;
  std::unique_ptr<Hot[]> hot_;
  double hot_part_ = 0;         // of the sample, that is hot
  std::vector<Word> frequent_;  // words that make up much of it
  // Where there are few keys.
  std::variant<std::monostate, NearFirsts, WideNearFirsts> near_;
  Allocation near_memory_;
  Allocation near_words_;  // [n], if the batch is not such words itself
  // Where few keys are distinct.
  std::int64_t listed_ = 0;                          // words that each list may get, if it counts
  std::vector<SmallTable> lists_;                    // one per range; with ids, the first is in the end that of all
  Allocation ids_;                                   // [n], of each key in its range's list, if codes are wanted
  std::vector<std::vector<std::uint32_t>> id_maps_;  // of each range but the first: ids in its list to ids
  // Where many are.
  std::optional<WordStreams<Word>> streams_;
  std::optional<Partition> partition_;
  std::vector<HotWord> hot_words_;  // of any order
};

}  // namespace

std::unique_ptr<Factorization> make_word_factorization(DeviceContext& context, const NumberKeys& keys,
                                                       const FactorizationOptions& options) {
  const auto make = [&]<class SmallTable>(std::type_identity<SmallTable>) -> std::unique_ptr<Factorization> {
    return std::make_unique<WordFactorization<SmallTable>>(context, keys, options, Ranges(keys.count));
  };
  if (keys.bytes() > sizeof(std::uint32_t)) return make(std::type_identity<SeenWords<std::uint64_t>>());
  if (options.codes) return make(std::type_identity<SeenWords<std::uint32_t>>());
  return make(std::type_identity<CountedWords>());
}

}  // namespace gpuhash::host
