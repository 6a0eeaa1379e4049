#include <gpuhash/aggregation.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/thread_pool.hpp"
#include "host/aggregate/folded_groups.hpp"
#include "host/aggregate/row_block.hpp"
#include "host/executor.hpp"
#include "host/parallel.hpp"
#include "table/aggregation_plan.hpp"

namespace gpuhash {

using namespace host;

namespace {

/// Where groups are few, each thread has words of its own for all of them, and takes a part of the rows. Where they are
/// many, each thread has a range of the groups, and looks at all rows for them.
struct Shares {
  /// A thread looks at a row of others in a tenth of the time that it takes to fold it.
  static constexpr std::int64_t kMostRanges = 16;
  /// Groups of up to so many rows are as fast merged as looked for.
  static constexpr std::int64_t kRowsPerGroup = 8;
  static constexpr std::int64_t kMostOwnBytes = std::int64_t{64} << 20;
  /// Of so few words several copies stay in the first cache.
  static constexpr std::int64_t kCopies = 4;
  static constexpr std::int64_t kMostCopiedWords = 1 << 10;

  Shares(std::int64_t rows, std::int64_t groups, std::int64_t width) : parts(reader_parts(rows)) {
    if (groups * width <= kMostCopiedWords && rows > kCopies * groups) copies = kCopies;
    const std::int64_t bytes = groups * width * static_cast<std::int64_t>(sizeof(std::uint64_t));
    by_rows = parts == 1 || (parts * groups <= rows / kRowsPerGroup && parts * bytes <= kMostOwnBytes);
    if (!by_rows) parts = static_cast<int>(std::min<std::int64_t>({parts, kMostRanges, groups}));
  }

  int parts;
  std::int64_t copies = 1;
  bool by_rows;
};

/// One pass over the rows, and the words that it leaves.
class Pass {
 public:
  /// More words than these do not stay in the second cache, and are asked for ahead.
  static constexpr std::int64_t kNearWords = std::int64_t{1} << 16;

  /// set_up(group, words) makes a group's words those of no rows; `folds` into words first_word, first_word + step, ...
  template <class SetUp>
  Pass(DeviceContext& context, const GroupedRows& rows, const std::vector<Fold>& folds, std::int64_t first_word,
       std::int64_t step, const SetUp& set_up)
      : rows_(rows),
        folds_(folds),
        first_(first_word),
        step_(step),
        width_(static_cast<std::int64_t>(folds.size()) * step),
        shares_(rows.count, rows.groups, width_) {
    const std::int64_t stride = width_ * shares_.copies;
    const std::int64_t one = (rows.groups + 1) * stride;  // that of -1 comes first
    scratch_may_fail();
    memory_ = Allocation(context,
                         static_cast<std::size_t>(one * (shares_.by_rows ? shares_.parts : 1)) * sizeof(std::uint64_t),
                         nullptr);
    for (const Fold& fold : folds) loops_.push_back(loop_of(fold));
    const auto words_of = [&](int part) {
      return GroupWords{memory_.as<std::uint64_t>() + (shares_.by_rows ? part * one : 0) + stride, width_,
                        shares_.copies};
    };
    const auto clear = [&](const GroupWords& groups, std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = begin; group < end; ++group)
        for (std::int64_t copy = 0; copy < groups.copies; ++copy)
          set_up(group, groups.words + group * stride + copy * width_);
    };
    all_ = words_of(0);
    if (!shares_.by_rows) {
      for_each_part(rows.groups, shares_.parts, [&](int, std::int64_t begin, std::int64_t end) {
        clear(all_, begin, end);
        fold_rows<false>(0, rows_.count, begin, end, all_);
      });
      return;
    }
    for_each_part(rows.count, shares_.parts, [&](int part, std::int64_t begin, std::int64_t end) {
      const GroupWords own = words_of(part);
      std::fill_n(own.words - stride, stride, std::uint64_t{0});
      clear(own, 0, rows_.groups);
      fold_rows<true>(begin, end, 0, rows_.groups, own);
    });
    if (shares_.parts == 1 && shares_.copies == 1) return;
    for_each_part(rows.groups, reader_parts(rows.groups), [&](int, std::int64_t begin, std::int64_t end) {
      for (int part = 0; part < shares_.parts; ++part)
        for (std::int64_t copy = part == 0 ? 1 : 0; copy < shares_.copies; ++copy)
          merge(words_of(part).words + copy * width_, begin, end);
    });
  }

  const std::uint64_t* words_of(std::int64_t group) const { return all_.words + group * all_.stride(); }

 private:
  /// Rows [begin, end), those of groups [first_group, last_group); kAll: these are all groups.
  template <bool kAll>
  void fold_rows(std::int64_t begin, std::int64_t end, std::int64_t first_group, std::int64_t last_group,
                 const GroupWords& groups) const {
    const bool far = (last_group - first_group) * groups.stride() > kNearWords;
    RowBlock block;
    in_pieces(begin, end, kKeysPerPiece, [&](std::int64_t piece_begin, std::int64_t piece_end) {
      for (std::int64_t from = piece_begin; from < piece_end; from += kBlockRows) {
        const std::int64_t count = std::min(kBlockRows, piece_end - from);
        if constexpr (kAll)
          block.set_all(rows_.codes, from, count, groups);
        else
          block.set_of_groups(rows_.codes, from, count, first_group, last_group, groups);
        if (block.listed == 0) continue;
        if (far) block.prefetch(groups);
        for (std::size_t i = 0; i < loops_.size(); ++i)
          loops_[i](folds_[i], block, groups.words, first_ + static_cast<std::int64_t>(i) * step_);
      }
    });
  }

  void merge(const std::uint64_t* from, std::int64_t begin, std::int64_t end) const {
    const std::int64_t stride = all_.stride();
    for (std::int64_t group = begin; group < end; ++group) {
      for (std::size_t i = 0; i < folds_.size(); ++i) {
        const std::int64_t word = group * stride + first_ + static_cast<std::int64_t>(i) * step_;
        all_.words[word] = merge_words(folds_[i].kind, all_.words[word], from[word]);
      }
    }
  }

  const GroupedRows& rows_;
  const std::vector<Fold>& folds_;
  std::int64_t first_;
  std::int64_t step_;
  std::int64_t width_;
  Shares shares_;
  Allocation memory_;
  std::vector<FoldBlock> loops_;
  GroupWords all_{};
};

class HostAggregator final : public Aggregator {
 public:
  void aggregate(DeviceContext& context, const GroupedRows& rows, Span<const AggregateRequest> requests,
                 Stream) const override {
    if (rows.groups == 0 || requests.empty()) return;
    const AggregationPlan plan(requests);
    const Pass first(context, rows, plan.folds, 0, 1, [&](std::int64_t, std::uint64_t* words) {
      for (const Fold& fold : plan.folds) *words++ = first_word(fold.kind);
    });
    if (plan.squares.empty()) return write(rows, plan, first, first);
    std::vector<Fold> folds;
    for (const AggregationPlan::Squares& column : plan.squares) folds.push_back(column.fold);
    const Pass second(context, rows, folds, 1, 2, [&](std::int64_t group, std::uint64_t* words) {
      const std::uint64_t* const row = first.words_of(group);
      for (const AggregationPlan::Squares& column : plan.squares) {
        *words++ = cast_bits<std::uint64_t>(mean_of(row[column.sum_word], row[column.count_word]));
        *words++ = 0;
      }
    });
    write(rows, plan, first, second);
  }

  std::unique_ptr<FoldedGroups> fold(DeviceContext& context, const NumberKeys& keys,
                                     Span<const AggregateRequest> requests, Stream) const override {
    return fold_groups(context, keys, requests);
  }

  void pair_codes(DeviceContext&, const std::int64_t* codes, const std::int64_t* others, std::int64_t kinds,
                  const bool* valid, std::int64_t count, std::int64_t* pairs, Stream) const override {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(valid);  // callers' booleans may be any byte
    for_each_row(count, [&](std::int64_t i) {
      pairs[i] = pair_code(codes[i], others[i], kinds, bytes == nullptr || bytes[i] != 0);
    });
  }

  void split_pairs(DeviceContext&, const std::int64_t* pairs, std::int64_t kinds, std::int64_t count,
                   std::int64_t* codes, Stream) const override {
    for_each_row(count, [&](std::int64_t i) { codes[i] = code_of_pair(pairs[i], kinds); });
  }

 private:
  template <class Visit>
  static void for_each_row(std::int64_t count, const Visit& visit) {
    for_each_part(count, reader_parts(count), [&](int, std::int64_t begin, std::int64_t end) {
      in_pieces(begin, end, kKeysPerPiece, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t i = from; i < to; ++i) visit(i);
      });
    });
  }

  static void write(const GroupedRows& rows, const AggregationPlan& plan, const Pass& first, const Pass& second) {
    for_each_part(rows.groups, reader_parts(rows.groups), [&](int, std::int64_t begin, std::int64_t end) {
      for (const GroupResult& result : plan.results)
        for (std::int64_t group = begin; group < end; ++group)
          write_result(result, group, first.words_of(group), second.words_of(group));
    });
  }
};

}  // namespace

const Aggregator& host::HostAlgorithms::aggregator() {
  static const auto& aggregator = *new HostAggregator;  // never destroyed: threads may work at exit
  return aggregator;
}

}  // namespace gpuhash
