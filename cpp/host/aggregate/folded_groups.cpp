#include "host/aggregate/folded_groups.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/random_seed.hpp"
#include "core/tuning.hpp"
#include "host/aggregate/row_block.hpp"
#include "host/factorize/key_reader.hpp"
#include "host/parallel.hpp"
#include "shared/hash.hpp"
#include "table/aggregation_plan.hpp"

namespace gpuhash::host {
namespace {

/// Memory for items of T that become more.
template <class T>
class Grown {
 public:
  explicit Grown(DeviceContext& context) : context_(context) {}

  T* data() const { return memory_.as<T>(); }
  T& operator[](std::int64_t i) const { return data()[i]; }
  std::int64_t room() const { return static_cast<std::int64_t>(memory_.bytes() / sizeof(T)); }
  /// What lies in the first `used` stays.
  void grow(std::int64_t room, std::int64_t used) {
    scratch_may_fail();
    Allocation larger(context_, static_cast<std::size_t>(room) * sizeof(T), nullptr);
    if (used != 0) std::memcpy(larger.get(), memory_.get(), static_cast<std::size_t>(used) * sizeof(T));
    memory_ = std::move(larger);
  }

 private:
  DeviceContext& context_;
  Allocation memory_;
};

/// The groups of some rows, in order of first occurrence: their keys, by a table of their own, and their words.
class PartGroups {
 public:
  PartGroups(DeviceContext& context, const std::vector<Fold>& folds, std::uint64_t seed)
      : folds_(folds), seed_(seed), slots_(context), keys_(context), firsts_(context), words_(context), near_(context) {
    for (const Fold& fold : folds) loops_.push_back(loop_of(fold));
    keys_.grow(kFirstGroups, 0);
    firsts_.grow(kFirstGroups, 0);
    words_.grow(kFirstGroups * width() * copies_, 0);
    make_table(kFirstSlots);
  }

  std::int64_t count() const { return count_; }
  std::int64_t first(std::int64_t group) const { return firsts_[group]; }
  /// After settle().
  const std::uint64_t* words_of(std::int64_t group) const { return words_.data() + group * width(); }

  /// Before rows [begin, end) are folded: do their keys lie close to each other?
  template <class Reader>
  void look_at(const Reader& reader, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kSamples = 512;
    constexpr std::int64_t kMargin = 64;
    if (end - begin < kSamples) return;
    auto least = std::numeric_limits<std::int64_t>::max();
    auto most = std::numeric_limits<std::int64_t>::min();
    for (std::int64_t j = 0; j < kSamples; ++j) {
      const auto key = static_cast<std::int64_t>(reader[begin + (end - begin) / kSamples * j]);
      least = std::min(least, key);
      most = std::max(most, key);
    }
    const std::uint64_t range = static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least);
    if (range > static_cast<std::uint64_t>(std::min(kMostNear, (end - begin) / 4))) return;
    near_count_ = range + range / 32 + 2 * kMargin;
    near_from_ = static_cast<std::uint64_t>(least) - (near_count_ - range) / 2;
    near_.grow(static_cast<std::int64_t>(near_count_), 0);
    std::fill_n(near_.data(), near_count_, -1);
  }

  /// Folds rows [begin, end), at most kBlockRows.
  template <class Reader>
  void fold(const Reader& reader, std::int64_t begin, std::int64_t end) {
    const std::int64_t rows = end - begin;
    make_room(rows);
    const std::int64_t before = count_;
    if (near_count_ != 0)
      number_near(reader, begin, rows);
    else
      number_by_hash(reader, begin, rows);
    for (std::int64_t group = before; group < count_; ++group) set_up(group);
    if (copies_ != 1 && count_ * width() > kMostCopiedWords) settle();
    const GroupWords groups{words_.data(), width(), copies_};
    block_.set_codes(begin, rows, groups);
    if (count_ * groups.stride() > kNearWords) block_.prefetch(groups);
    for (std::size_t f = 0; f < loops_.size(); ++f)
      loops_[f](folds_[f], block_, groups.words, static_cast<std::int64_t>(f));
  }

  /// Each group has its words once.
  void settle() {
    if (copies_ == 1) return;
    for (std::int64_t group = 0; group < count_; ++group) {
      const std::uint64_t* const from = words_.data() + group * width() * copies_;
      std::uint64_t* const to = words_.data() + group * width();
      for (std::int64_t f = 0; f < width(); ++f) {
        std::uint64_t word = from[f];
        for (std::int64_t copy = 1; copy < copies_; ++copy) word = merge(f, word, from[copy * width() + f]);
        to[f] = word;  // of copies that were read before
      }
    }
    copies_ = 1;
  }

  /// Of rows that come after these; both are settled.
  void merge(const PartGroups& later) {
    for (std::int64_t group = 0; group < later.count_; ++group) {
      make_room(1);
      const std::uint64_t key = later.keys_[group];
      const std::int64_t before = count_;
      const std::int64_t own = number(key, home(key), later.firsts_[group]);
      if (own == before) set_up(own);
      std::uint64_t* const to = words_.data() + own * width();
      const std::uint64_t* const from = later.words_of(group);
      for (std::int64_t f = 0; f < width(); ++f) to[f] = merge(f, to[f], from[f]);
    }
  }

 private:
  struct Slot {
    std::uint64_t key;
    std::int64_t number;  // -1: none
  };

  static constexpr std::int64_t kFirstGroups = 2 * kBlockRows;
  static constexpr std::int64_t kFirstSlots = 4 * kBlockRows;
  static constexpr std::int64_t kMostNear = 1 << 17;    // keys, whose codes take half of the second cache
  static constexpr std::uint32_t kNearSlots = 1 << 12;  // in the second cache
  static constexpr std::int64_t kNearWords = 1 << 14;
  static constexpr std::int64_t kCopies = 4;  // GroupWords
  static constexpr std::int64_t kMostCopiedWords = 1 << 10;

  std::int64_t width() const { return static_cast<std::int64_t>(folds_.size()); }
  std::uint32_t home(std::uint64_t key) const { return static_cast<std::uint32_t>(hash_key(key, seed_) >> shift_); }
  std::uint64_t merge(std::int64_t f, std::uint64_t a, std::uint64_t b) const {
    return merge_words(folds_[static_cast<std::size_t>(f)].kind, a, b);
  }

  /// The codes of a block's rows to its offsets.
  template <class Reader>
  void number_near(const Reader& reader, std::int64_t begin, std::int64_t rows) {
    const std::int32_t* const near = near_.data();
    const std::uint64_t from = near_from_;
    const std::uint64_t count = near_count_;
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::uint64_t key = reader[begin + i];
      const std::uint64_t place = key - from;
      std::int64_t code = place < count ? near[place] : -1;
      if (code < 0) {
        code = number(key, home(key), begin + i);
        if (place < count) near_[static_cast<std::int64_t>(place)] = static_cast<std::int32_t>(code);
      }
      block_.offsets[i] = code;
    }
  }

  template <class Reader>
  void number_by_hash(const Reader& reader, std::int64_t begin, std::int64_t rows) {
    constexpr std::int64_t kAsked = 256;  // lines, half of the first cache
    std::uint64_t keys[kAsked];
    std::uint32_t homes[kAsked];
    for (std::int64_t from = 0; from < rows; from += kAsked) {
      const std::int64_t count = std::min(kAsked, rows - from);
      for (std::int64_t i = 0; i < count; ++i) {
        keys[i] = reader[begin + from + i];
        homes[i] = home(keys[i]);
      }
      if (mask_ >= kNearSlots)
        for (std::int64_t i = 0; i < count; ++i) __builtin_prefetch(slots_.data() + homes[i]);
      for (std::int64_t i = 0; i < count; ++i) block_.offsets[from + i] = number(keys[i], homes[i], begin + from + i);
    }
  }

  /// That of a key, which a row at `position` has. There is room for another one.
  std::int64_t number(std::uint64_t key, std::uint32_t at, std::int64_t position) {
    for (;; at = (at + 1) & mask_) {
      Slot& slot = slots_[at];
      if (slot.number >= 0 && slot.key == key) return slot.number;
      if (slot.number < 0) {
        slot = {key, count_};
        keys_[count_] = key;
        firsts_[count_] = position;
        return count_++;
      }
    }
  }

  void set_up(std::int64_t group) {
    std::uint64_t* word = words_.data() + group * width() * copies_;
    for (std::int64_t copy = 0; copy < copies_; ++copy)
      for (const Fold& fold : folds_) *word++ = first_word(fold.kind);
  }

  /// For so many more groups.
  void make_room(std::int64_t more) {
    const std::int64_t needed = count_ + more;
    if (needed > keys_.room()) {
      const std::int64_t room = std::max(needed, 2 * keys_.room());
      keys_.grow(room, count_);
      firsts_.grow(room, count_);
    }
    if (needed * width() * copies_ > words_.room())
      words_.grow(std::max(needed * width() * copies_, 2 * words_.room()), count_ * width() * copies_);
    if (2 * needed > static_cast<std::int64_t>(mask_) + 1) make_table(std::int64_t{2} * (std::int64_t{mask_} + 1));
  }

  void make_table(std::int64_t slots) {
    while (slots < 2 * count_ + 2 * kBlockRows) slots *= 2;
    slots_.grow(slots, 0);
    mask_ = static_cast<std::uint32_t>(slots - 1);
    shift_ = 64 - std::countr_zero(static_cast<std::uint64_t>(slots));
    std::fill_n(slots_.data(), slots, Slot{0, -1});
    for (std::int64_t group = 0; group < count_; ++group) {
      std::uint32_t at = home(keys_[group]);
      while (slots_[at].number >= 0) at = (at + 1) & mask_;
      slots_[at] = {keys_[group], group};
    }
  }

  const std::vector<Fold>& folds_;
  std::uint64_t seed_;
  std::vector<FoldBlock> loops_;
  Grown<Slot> slots_;
  std::uint32_t mask_ = 0;
  int shift_ = 0;
  Grown<std::uint64_t> keys_;   // [count_]
  Grown<std::int64_t> firsts_;  // [count_]
  Grown<std::uint64_t> words_;  // [count_ * copies_, width]
  Grown<std::int32_t> near_;    // codes of the keys from near_from_ on; -1: it has none yet
  std::uint64_t near_from_ = 0;
  std::uint64_t near_count_ = 0;
  std::int64_t copies_ = kCopies;
  std::int64_t count_ = 0;
  RowBlock block_;
};

class HostFoldedGroups final : public FoldedGroups {
 public:
  explicit HostFoldedGroups(Span<const AggregateRequest> requests) : plan_(requests) {}

  const AggregationPlan& plan() const { return plan_; }

  /// False: there are more groups than `most`, and some rows were not looked at.
  bool fold(DeviceContext& context, const NumberKeys& keys, std::int64_t most) {
    // One thread merges what all have.
    constexpr int kMostParts = 16;
    const int parts = std::min(kMostParts, reader_parts(keys.count));
    const std::uint64_t seed = random_seed();
    for (int part = 0; part < parts; ++part) parts_.push_back(std::make_unique<PartGroups>(context, plan_.folds, seed));
    std::atomic<bool> too_many{false};
    const auto run = [&](const auto& reader) {
      for_each_part(keys.count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
        PartGroups& groups = *parts_[static_cast<std::size_t>(part)];
        groups.look_at(reader, begin, end);
        in_pieces(begin, end, kKeysPerPiece, [&](std::int64_t piece_begin, std::int64_t piece_end) {
          for (std::int64_t from = piece_begin; from < piece_end; from += kBlockRows) {
            if (too_many.load(std::memory_order_relaxed)) return;
            groups.fold(reader, from, std::min(piece_end, from + kBlockRows));
            if (groups.count() > most) too_many.store(true, std::memory_order_relaxed);
          }
        });
        groups.settle();
      });
    };
    if (keys.bytes() <= sizeof(std::uint32_t))
      KeyReader<std::uint32_t>(keys).specialized(run);
    else
      KeyReader<std::uint64_t>(keys).specialized(run);
    if (too_many) return false;
    for (std::size_t part = 1; part < parts_.size(); ++part) groups().merge(*parts_[part]);
    parts_.resize(1);
    return true;
  }

  std::int64_t count() const override { return parts_.front()->count(); }

  void write(std::int64_t* firsts, Span<void* const> outs) override {
    for_each_part(count(), reader_parts(count()), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = begin; group < end; ++group) firsts[group] = groups().first(group);
      for (std::size_t r = 0; r < outs.size(); ++r) {
        GroupResult result = plan_.results[r];
        result.out = outs[r];
        for (std::int64_t group = begin; group < end; ++group)
          write_result(result, group, groups().words_of(group), nullptr);
      }
    });
  }

 private:
  PartGroups& groups() { return *parts_.front(); }

  AggregationPlan plan_;
  std::vector<std::unique_ptr<PartGroups>> parts_;
};

}  // namespace

std::unique_ptr<FoldedGroups> fold_groups(DeviceContext& context, const NumberKeys& keys,
                                          Span<const AggregateRequest> requests) {
  if (keys.bytes() > sizeof(std::uint64_t)) return nullptr;
  auto groups = std::make_unique<HostFoldedGroups>(requests);
  if (!groups->plan().squares.empty() || !groups->fold(context, keys, tuning().most_folded_groups)) return nullptr;
  return groups;
}

}  // namespace gpuhash::host
