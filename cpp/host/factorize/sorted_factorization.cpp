#include "host/factorize/sorted_factorization.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "host/factorize/key_reader.hpp"
#include "host/factorize/word_blocks.hpp"
#include "host/factorize/word_streams.hpp"
#include "host/simd/simd.hpp"

namespace gpuhash::host {
namespace {

/// Keys of 9 to 16 bytes, read as WordBlocks reads shorter ones.
class RowBlocks {
 public:
  using Word = Uint128;
  explicit RowBlocks(const NumberKeys& keys) : reader_(keys) {}

  const NumberFormat& format() const { return reader_.format(); }
  const Uint128* read(std::int64_t begin, std::int64_t count, Uint128* buffer) const {
    for (std::int64_t j = 0; j < count; ++j) buffer[j] = reader_[begin + j];
    return buffer;
  }
  template <class WordAt, class PositionAt>
  void give_back(std::int64_t count, WordAt, PositionAt position_at, void* uniques, std::int64_t id) const {
    for (std::int64_t k = 0; k < count; ++k)
      store_word(uniques, id + k, reader_.bytes(), given_back(reader_.raw(position_at(k)), format()));
  }

 private:
  KeyReader<Uint128> reader_;
};

/// Each distinct key is a *run* of equal ones, and the order of first occurrence is that of the keys. So all there is
/// to find out is where a key differs from the one before it: the batch is read once to count the runs, and once more
/// to write what they tell.
template <class Blocks>
class SortedFactorization final : public Factorization {
 public:
  explicit SortedFactorization(const NumberKeys& keys) : blocks_(keys), count_(keys.count), ranges_(keys.count) {}

  /// Are the keys in ascending order? Nothing else may be called where they are not.
  bool read() {
    if (!ascends(1, std::min(count_, kFirstLook)) || !ascends(kFirstLook, std::min(count_, kWordBlock))) return false;
    runs_ = scratch<Runs>(ranges_.parts);
    std::atomic<bool> falls{false};
    parallel_for(ranges_.parts, [&](int range) {
      Runs& runs = runs_[static_cast<std::size_t>(range)];
      in_pieces(ranges_.begin(range), ranges_.end(range), kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
        if (falls.load(std::memory_order_relaxed)) return;
        bool ascend = true;
        with_words([&] { ascend = count_runs(std::max<std::int64_t>(begin, 1), end, runs); });
        if (!ascend) falls.store(true, std::memory_order_relaxed);
      });
    });
    if (falls.load()) return false;
    distinct_ = count_ == 0 ? 0 : 1;
    for (Runs& runs : runs_) {
      runs.before = distinct_;
      distinct_ += runs.count;
    }
    return true;
  }

  std::int64_t count() const override { return distinct_; }
  bool of_ascending_keys() const override { return true; }

  void write(const FactorizationOutput& out) override {
    if (count_ == 0) return;
    parallel_for(ranges_.parts, [&](int range) { with_words([&] { write_range(range, out); }); });
  }

 private:
  using Word = typename Blocks::Word;
  /// Most batches show that they are not sorted in as many keys.
  static constexpr std::int64_t kFirstLook = 32;

  /// The runs that begin in a range, but for that of the first key.
  struct Runs {
    std::int64_t count;
    std::int64_t before;  // runs that begin before them
    std::int64_t first;   // where the first of them begins, if there is one
  };

  /// Runs a loop over words with what the processor has; pairs of them gain nothing by it.
  template <class Loop>
  static void with_words(const Loop& loop) {
    if constexpr (sizeof(Word) == 8)
      with_simd([&](auto) { loop(); });
    else
      loop();
  }

  static bool less(std::uint64_t a, std::uint64_t b) { return a < b; }
  static bool less(const Uint128& a, const Uint128& b) { return a.high != b.high ? a.high < b.high : a.low < b.low; }
  static bool differ(const Word& a, const Word& b) { return !(a == b); }

  std::uint64_t order(std::uint64_t word) const { return order_word(to_uint128(word), blocks_.format()).low; }
  Uint128 order(const Uint128& word) const { return order_word(word, blocks_.format()); }

  /// The order words of `words`: `words` themselves where they are.
  const Word* orders(const Word* words, std::int64_t count, Word* buffer) const {
    const NumberFormat& format = blocks_.format();
    if constexpr (sizeof(Word) == 8) {
      if (format.elements == 1) {
        if (!format.is_signed && !format.is_float) return words;
        for (std::int64_t j = 0; j < count; ++j) buffer[j] = gpuhash::detail::ordered(words[j], format);
        return buffer;
      }
    }
    for (std::int64_t j = 0; j < count; ++j) buffer[j] = order(words[j]);
    return buffer;
  }

  /// Counts the keys of [begin, end), begin > 0, that differ from the one before. False: one is less than that.
  bool count_runs(std::int64_t begin, std::int64_t end, Runs& runs) const {
    bool falls = false;
    Word read[kWordBlock + 1];
    Word ordered[kWordBlock + 1];
    for_each_word_block(begin, end, [&](std::int64_t base, std::int64_t count) {
      if (falls) return;
      const Word* const words = orders(blocks_.read(base - 1, count + 1, read), count + 1, ordered);
      std::int64_t descents = 0;
      std::int64_t begun = 0;
      for (std::int64_t j = 0; j < count; ++j) {
        descents += less(words[j + 1], words[j]) ? 1 : 0;
        begun += differ(words[j + 1], words[j]) ? 1 : 0;
      }
      if (runs.count == 0 && begun != 0) {
        std::int64_t j = 0;
        while (!differ(words[j + 1], words[j])) ++j;
        runs.first = base + j;
      }
      runs.count += begun;
      falls = descents != 0;
    });
    return !falls;
  }

  bool ascends(std::int64_t begin, std::int64_t end) const {
    Runs runs{};
    return count_runs(begin, end, runs);
  }

  /// Where the first run after those of the range begins, or the batch ends.
  std::int64_t end_of_last(int range) const {
    for (auto runs = runs_.begin() + range + 1; runs != runs_.end(); ++runs)
      if (runs->count != 0) return runs->first;
    return count_;
  }

  /// Results have room for the runs that the first reading has counted: where somebody has changed the keys since,
  /// those beyond are left out, and those that are missing are of the range's first key, and nobody's.
  void write_range(int range, const FactorizationOutput& out) const {
    const Runs& counted = runs_[static_cast<std::size_t>(range)];
    const std::int64_t end_of_ids = counted.before + counted.count;
    std::int64_t id = range == 0 ? 0 : counted.before;  // of the next run
    std::int64_t last = -1;                             // where the last one began, if here
    Word buffer[kWordBlock + 1];
    std::uint16_t at[kWordBlock];
    const auto begin_runs = [&](const Word* words, std::int64_t base, std::int64_t found) {
      const std::int64_t count = std::min(found, end_of_ids - id);
      if (count == 0) return;
      const auto position_at = [&](std::int64_t k) { return base + at[k]; };
      if (out.uniques != nullptr)
        blocks_.give_back(count, [&](std::int64_t k) { return words[at[k]]; }, position_at, out.uniques, id);
      if (out.firsts != nullptr)
        for (std::int64_t k = 0; k < count; ++k) out.firsts[id + k] = position_at(k);
      if (out.counts != nullptr) {
        if (last >= 0) out.counts[id - 1] = position_at(0) - last;
        for (std::int64_t k = 0; k + 1 < count; ++k) out.counts[id + k] = at[k + 1] - at[k];
      }
      last = position_at(count - 1);
      id += count;
    };
    if (range == 0) {
      at[0] = 0;
      begin_runs(blocks_.read(0, 1, buffer), 0, 1);
      if (out.codes != nullptr) out.codes[0] = 0;
    }
    const std::int64_t begin = std::max<std::int64_t>(ranges_.begin(range), 1);
    in_pieces(begin, ranges_.end(range), kKeysPerPiece, [&](std::int64_t piece_begin, std::int64_t piece_end) {
      for_each_word_block(piece_begin, piece_end, [&](std::int64_t base, std::int64_t count) {
        const Word* const before = blocks_.read(base - 1, count + 1, buffer);
        std::int64_t begun = 0;
        for (std::int64_t j = 0; j < count; ++j) {
          at[begun] = static_cast<std::uint16_t>(j);
          begun += differ(before[j + 1], before[j]) ? 1 : 0;
        }
        if (out.codes != nullptr) {
          std::int64_t code = id - 1;
          for (std::int64_t j = 0; j < count; ++j) {
            code += differ(before[j + 1], before[j]) ? 1 : 0;
            out.codes[base + j] = std::min(code, end_of_ids - 1);
          }
        }
        begin_runs(before + 1, base, begun);
      });
    });
    if (out.counts != nullptr && last >= 0) out.counts[id - 1] = end_of_last(range) - last;
    at[0] = 0;
    while (id < end_of_ids) {
      if (out.counts != nullptr) out.counts[id] = 0;
      last = -1;
      begin_runs(blocks_.read(ranges_.begin(range), 1, buffer), ranges_.begin(range), 1);
    }
  }

  Blocks blocks_;
  std::int64_t count_;
  Ranges ranges_;  // of both readings, whatever the number of threads is by then
  std::int64_t distinct_ = 0;
  std::vector<Runs> runs_;  // of each range
};

template <class Blocks>
std::unique_ptr<Factorization> make_if_sorted(const NumberKeys& keys) {
  auto made = std::make_unique<SortedFactorization<Blocks>>(keys);
  return made->read() ? std::move(made) : nullptr;
}

}  // namespace

std::unique_ptr<Factorization> make_sorted_factorization(const NumberKeys& keys) {
  return keys.bytes() <= 8 ? make_if_sorted<WordBlocks<std::uint64_t>>(keys) : make_if_sorted<RowBlocks>(keys);
}

}  // namespace gpuhash::host
