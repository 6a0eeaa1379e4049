#include <gpuhash/aggregation.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/aggregate/fold.cuh"
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/stream.hpp"
#include "table/aggregation_plan.hpp"

namespace gpuhash::cuda {
namespace {

constexpr unsigned kBlock = 256;
constexpr int kMostListed = 16;  // of a launch

__global__ void clear_words(std::int64_t groups, const __grid_constant__ FoldList list, std::uint64_t* words) {
  const std::int64_t group = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (group >= groups) return;
  std::uint64_t* const row = words + group * list.width + list.first;
  for (int f = 0; f < list.count; ++f) row[f * list.step] = first_word(list.folds[f].kind);
}

/// The words of the first pass that make the means of the second.
struct MeanList {
  int sum_words[kMostFolds];
  int count_words[kMostFolds];
  int count;
  int first;  // column
};

__global__ void write_means(std::int64_t groups, const __grid_constant__ MeanList list, const std::uint64_t* from,
                            int from_width, std::uint64_t* to, int to_width) {
  const std::int64_t group = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (group >= groups) return;
  const std::uint64_t* const row = from + group * from_width;
  for (int c = 0; c < list.count; ++c)
    to[group * to_width + 2 * (list.first + c)] =
        cast_bits<std::uint64_t>(mean_of(row[list.sum_words[c]], row[list.count_words[c]]));
}

struct ResultList {
  GroupResult results[kMostListed];
  int count;
};

__global__ void write_results(std::int64_t groups, const __grid_constant__ ResultList list, const std::uint64_t* words,
                              int width, const std::uint64_t* squares, int squares_width) {
  const std::int64_t group = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (group >= groups) return;
  for (int r = 0; r < list.count; ++r)
    write_result(list.results[r], group, words + group * width, squares + group * squares_width);
}

__global__ void write_pairs(const std::int64_t* codes, const std::int64_t* others, std::int64_t kinds,
                            const unsigned char* valid, std::int64_t count, std::int64_t* pairs) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < count) pairs[i] = pair_code(codes[i], others[i], kinds, valid == nullptr || valid[i] != 0);
}

__global__ void write_codes_of_pairs(const std::int64_t* pairs, std::int64_t kinds, std::int64_t count,
                                     std::int64_t* codes) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i < count) codes[i] = code_of_pair(pairs[i], kinds);
}

/// Calls body(begin, end) for runs of at most `most` of `count` items.
template <class Body>
void in_runs(std::size_t count, std::size_t most, const Body& body) {
  for (std::size_t begin = 0; begin < count; begin += most) body(begin, std::min(count, begin + most));
}

class CudaAggregator final : public Aggregator {
 public:
  void aggregate(DeviceContext& context, const GroupedRows& rows, Span<const AggregateRequest> requests,
                 Stream stream) const override {
    if (rows.groups == 0 || requests.empty()) return;
    const DeviceGuard guard(context.device().index);
    const AggregationPlan plan(requests);
    const int width = static_cast<int>(plan.folds.size());
    const int squares_width = 2 * static_cast<int>(plan.squares.size());
    const Allocation words = scratch<std::uint64_t>(context, rows.groups * width, stream);
    const Allocation squares = scratch<std::uint64_t>(context, rows.groups * squares_width, stream);
    fold_rows(rows, plan.folds, 0, 1, words.as<std::uint64_t>(), stream);
    if (!plan.squares.empty()) {
      in_runs(plan.squares.size(), kMostFolds, [&](std::size_t begin, std::size_t end) {
        MeanList list{};
        list.count = static_cast<int>(end - begin);
        list.first = static_cast<int>(begin);
        for (std::size_t c = begin; c < end; ++c) {
          list.sum_words[c - begin] = plan.squares[c].sum_word;
          list.count_words[c - begin] = plan.squares[c].count_word;
        }
        launch("taking the means of groups", write_means, rows.groups, kBlock, stream, rows.groups, list,
               words.as<const std::uint64_t>(), width, squares.as<std::uint64_t>(), squares_width);
      });
      std::vector<Fold> folds;
      for (const AggregationPlan::Squares& column : plan.squares) folds.push_back(column.fold);
      fold_rows(rows, folds, 1, 2, squares.as<std::uint64_t>(), stream);
    }
    in_runs(plan.results.size(), kMostListed, [&](std::size_t begin, std::size_t end) {
      ResultList list{};
      list.count = static_cast<int>(end - begin);
      std::copy(plan.results.begin() + static_cast<std::ptrdiff_t>(begin),
                plan.results.begin() + static_cast<std::ptrdiff_t>(end), list.results);
      launch("writing the aggregates of groups", write_results, rows.groups, kBlock, stream, rows.groups, list,
             words.as<const std::uint64_t>(), width, squares.as<const std::uint64_t>(), squares_width);
    });
  }

  void pair_codes(DeviceContext& context, const std::int64_t* codes, const std::int64_t* others, std::int64_t kinds,
                  const bool* valid, std::int64_t count, std::int64_t* pairs, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("pairing the codes of groups", write_pairs, count, kBlock, stream, codes, others, kinds,
           reinterpret_cast<const unsigned char*>(valid), count, pairs);
  }

  void split_pairs(DeviceContext& context, const std::int64_t* pairs, std::int64_t kinds, std::int64_t count,
                   std::int64_t* codes, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("splitting the codes of pairs", write_codes_of_pairs, count, kBlock, stream, pairs, kinds, count, codes);
  }

 private:
  /// Fold i into word first + i * step of each group. The other words are there already.
  static void fold_rows(const GroupedRows& rows, const std::vector<Fold>& folds, int first, int step,
                        std::uint64_t* words, Stream stream) {
    in_runs(folds.size(), kMostFolds, [&](std::size_t begin, std::size_t end) {
      FoldList list{};
      list.count = static_cast<int>(end - begin);
      list.first = first + static_cast<int>(begin) * step;
      list.step = step;
      list.width = static_cast<int>(folds.size()) * step;
      std::copy(folds.begin() + static_cast<std::ptrdiff_t>(begin), folds.begin() + static_cast<std::ptrdiff_t>(end),
                list.folds);
      launch("clearing the words of groups", clear_words, rows.groups, kBlock, stream, rows.groups, list, words);
      if (rows.count == 0) return;
      constexpr const char* kAction = "aggregating by group";
      const std::int64_t all = rows.groups * list.width;
      launch_may_fail(kAction);
      if (const unsigned blocks = blocks_in_shared(rows.count, all); blocks != 0)
        fold_kernel<true>
            <<<blocks, kFoldBlock, static_cast<std::size_t>(all) * sizeof(std::uint64_t), handle(stream)>>>(
                rows.codes, rows.count, rows.groups, list, words);
      else
        fold_kernel<false><<<blocks_of_rows(rows.count), kFoldBlock, 0, handle(stream)>>>(rows.codes, rows.count,
                                                                                          rows.groups, list, words);
      check_launch(kAction);
    });
  }
};

}  // namespace

const Aggregator& CudaAlgorithms::aggregator() {
  static const auto& aggregator = *new CudaAggregator;  // never destroyed: threads may work at exit
  return aggregator;
}

}  // namespace gpuhash::cuda
