#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "shared/group_state.hpp"

/// Rows into the words of their groups.
namespace gpuhash::cuda {

inline constexpr unsigned kFoldBlock = 512;
inline constexpr int kMostFolds = 32;  // of a launch, whose parameters have 4 KiB

inline constexpr unsigned kWarp = 0xffffffffu;  // all lanes

/// Fold i has word first + i * step of a group's row of `width`.
struct FoldList {
  Fold folds[kMostFolds];
  int count;
  int first;
  int step;
  int width;
};

namespace detail {

struct IntegerAt {
  const void* values;
  std::int64_t at;
  template <class T>
  GPUHASH_HD std::uint64_t operator()(T) const {
    return group_state::integer_of(static_cast<const T*>(values)[at]);
  }
};

struct FloatAt {
  const void* values;
  std::int64_t at;
  template <class T>
  GPUHASH_HD double operator()(T) const {
    return group_state::float_of(static_cast<const T*>(values)[at]);
  }
};

struct OrderAt {
  const void* values;
  std::int64_t at;
  bool for_max;
  template <class T>
  GPUHASH_HD std::uint64_t operator()(T) const {
    return group_state::order_word(static_cast<const T*>(values)[at], for_max);
  }
};

struct TruthAt {
  const void* values;
  std::int64_t at;
  template <class T>
  GPUHASH_HD bool operator()(T) const {
    return group_state::truth_of(static_cast<const T*>(values)[at]);
  }
};

}  // namespace detail

/// The word of row i alone. `mean`: of its group, for squares.
static __device__ std::uint64_t row_word(const Fold& fold, std::int64_t i, double mean) {
  switch (fold.kind) {
    case FoldKind::kCount:
      return 1;
    case FoldKind::kAddIntegers:
      return visit_dtype(fold.dtype, detail::IntegerAt{fold.values, i});
    case FoldKind::kAddFloats:
      return cast_bits<std::uint64_t>(visit_dtype(fold.dtype, detail::FloatAt{fold.values, i * fold.step}));
    case FoldKind::kMin:
      return visit_dtype(fold.dtype, detail::OrderAt{fold.values, i, false});
    case FoldKind::kMax:
      return visit_dtype(fold.dtype, detail::OrderAt{fold.values, i, true});
    case FoldKind::kFirst:
      return static_cast<std::uint64_t>(i);
    case FoldKind::kLast:
      return static_cast<std::uint64_t>(i) + 1;
    case FoldKind::kAnyTrue:
      return visit_dtype(fold.dtype, detail::TruthAt{fold.values, i}) ? 1 : 0;
    case FoldKind::kAnyFalse:
      return visit_dtype(fold.dtype, detail::TruthAt{fold.values, i}) ? 0 : 1;
    case FoldKind::kSquares: {
      const double distance = visit_dtype(fold.dtype, detail::FloatAt{fold.values, i}) - mean;
      return cast_bits<std::uint64_t>(distance * distance);
    }
    default: {
      const double squares = fold.part_squares == nullptr ? 0 : fold.part_squares[i];
      return cast_bits<std::uint64_t>(
          squares_of_part(static_cast<const double*>(fold.values)[i], fold.part_counts[i], squares, mean));
    }
  }
}

/// Does a word change the one there? That may be old, and then a minimum is no less, and a maximum no greater, than it
/// is by now: so most words of such folds change nothing. Sums always change.
static __device__ bool changes(FoldKind kind, std::uint64_t word, const std::uint64_t* at) {
  switch (kind) {
    case FoldKind::kMin:
    case FoldKind::kFirst:
      return word < *at;
    case FoldKind::kMax:
    case FoldKind::kLast:
    case FoldKind::kAnyTrue:
    case FoldKind::kAnyFalse:
      return word > *at;
    default:
      return true;
  }
}

/// Merges a word into one that other threads change as well.
static __device__ void merge_shared(FoldKind kind, std::uint64_t* at, std::uint64_t word) {
  auto* const place = reinterpret_cast<unsigned long long*>(at);
  if (!changes(kind, word, at)) return;
  switch (kind) {
    case FoldKind::kCount:
    case FoldKind::kAddIntegers:
      atomicAdd(place, word);
      return;
    case FoldKind::kAddFloats:
    case FoldKind::kSquares:
    case FoldKind::kPartSquares:
      atomicAdd(reinterpret_cast<double*>(at), cast_bits<double>(word));
      return;
    case FoldKind::kMin:
    case FoldKind::kFirst:
      atomicMin(place, word);
      return;
    case FoldKind::kMax:
    case FoldKind::kLast:
      atomicMax(place, word);
      return;
    default:
      atomicOr(place, word);
  }
}

/// Lanes of a warp whose rows are of one group: the lowest of them gets the word of all.
class Peers {
 public:
  __device__ explicit Peers(std::int64_t code) : code_(code), lane_(threadIdx.x % 32) {}

  /// All lanes have to call it, before what follows.
  __device__ void find() {
    if (lanes_ != 0) return;
    lanes_ = __match_any_sync(kWarp, static_cast<unsigned long long>(code_));
    alone_ = __all_sync(kWarp, (lanes_ & (lanes_ - 1)) == 0) != 0;
  }

  __device__ bool leads() const { return (lanes_ & ((1u << lane_) - 1)) == 0; }

  /// In log2 of the most lanes of a group steps: in each of them every other lane that is left takes the word of the
  /// next one, which then is left no more.
  __device__ std::uint64_t merge(FoldKind kind, std::uint64_t word) const {
    if (alone_) return word;
    unsigned above = lanes_ & ~((2u << lane_) - 1);
    unsigned rank = __popc(lanes_ & ((1u << lane_) - 1));
    while (__any_sync(kWarp, above != 0)) {
      const int next = above == 0 ? static_cast<int>(lane_) : __ffs(static_cast<int>(above)) - 1;
      const std::uint64_t other = __shfl_sync(kWarp, word, next);
      if (above != 0) word = merge_words(kind, word, other);
      above &= ~__ballot_sync(kWarp, (rank & 1) != 0);
      rank >>= 1;
    }
    return word;
  }

 private:
  std::int64_t code_;
  unsigned lane_;
  unsigned lanes_ = 0;
  bool alone_ = false;
};

/// Folds all rows. kInShared: each block has words of its own for all groups, in shared memory, and merges them into
/// those of all in the end.
template <bool kInShared>
static __global__ void __launch_bounds__(kFoldBlock)
    fold_kernel(const std::int64_t* codes, std::int64_t count, std::int64_t groups,
                const __grid_constant__ FoldList list, std::uint64_t* words) {
  extern __shared__ std::uint64_t own[];
  std::uint64_t* const target = kInShared ? own : words;
  const std::int64_t all = groups * list.width;
  if constexpr (kInShared) {
    for (std::int64_t w = threadIdx.x; w < all; w += kFoldBlock) own[w] = words[w];
    __syncthreads();
    for (std::int64_t g = threadIdx.x; g < groups; g += kFoldBlock)
      for (int f = 0; f < list.count; ++f)
        own[g * list.width + list.first + f * list.step] = first_word(list.folds[f].kind);
    __syncthreads();
  }
  const std::int64_t step = std::int64_t{gridDim.x} * kFoldBlock;
  const std::int64_t lane = threadIdx.x % 32;
  // By warps: all lanes have to be there for each other.
  for (std::int64_t from = std::int64_t{blockIdx.x} * kFoldBlock + threadIdx.x - lane; from < count; from += step) {
    const std::int64_t i = from + lane;
    const std::int64_t code = i < count ? __ldcs(reinterpret_cast<const long long*>(codes) + i) : -1;
    Peers peers(code);
    for (int f = 0; f < list.count; ++f) {
      const Fold& fold = list.folds[f];
      const auto word_of_group = [&] {
        return target + (code < 0 ? 0 : code) * list.width + list.first + f * list.step;
      };
      const bool has_mean = fold.kind == FoldKind::kSquares || fold.kind == FoldKind::kPartSquares;
      const double mean = has_mean && code >= 0 ? cast_bits<double>(word_of_group()[-1]) : 0;
      std::uint64_t word = first_word(fold.kind);
      // The value is on its way before the code has come.
      if (i < count && (fold.valid == nullptr || reinterpret_cast<const unsigned char*>(fold.valid)[i] != 0))
        word = row_word(fold, i, mean);
      if (code < 0) word = first_word(fold.kind);
      std::uint64_t* const at = word_of_group();
      if (!__any_sync(kWarp, code >= 0 && changes(fold.kind, word, at))) continue;
      peers.find();
      word = peers.merge(fold.kind, word);
      if (code >= 0 && peers.leads()) merge_shared(fold.kind, at, word);
    }
  }
  if constexpr (kInShared) {
    __syncthreads();
    for (std::int64_t g = threadIdx.x; g < groups; g += kFoldBlock) {
      for (int f = 0; f < list.count; ++f) {
        const FoldKind kind = list.folds[f].kind;
        const std::int64_t w = g * list.width + list.first + f * list.step;
        if (own[w] != first_word(kind)) merge_shared(kind, words + w, own[w]);
      }
    }
  }
}

/// Of so many rows: the blocks that fold them in shared memory; 0 where they had better be folded where all words lie:
/// there are more than a block has room for, or so few rows of each that to merge the blocks' words would not be less
/// work.
inline unsigned blocks_in_shared(std::int64_t rows, std::int64_t words) {
  constexpr std::int64_t kMostWords = (48 << 10) / sizeof(std::uint64_t);  // what any kernel may have
  constexpr std::int64_t kRowsPerWord = 8;
  constexpr std::int64_t kLeast = 66;  // half of the multiprocessors of an H100 or H200
  constexpr std::int64_t kMost = 8 * kLeast;
  if (words > kMostWords) return 0;
  const std::int64_t blocks = rows / (kRowsPerWord * words + kFoldBlock);
  return blocks < kLeast ? 0 : static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

/// Enough for all multiprocessors.
inline unsigned blocks_of_rows(std::int64_t rows) {
  constexpr std::int64_t kMost = 16 * 132;
  const std::int64_t blocks = (rows + kFoldBlock - 1) / kFoldBlock;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

}  // namespace gpuhash::cuda
