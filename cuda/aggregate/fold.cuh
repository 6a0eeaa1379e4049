#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "shared/group_state.hpp"

/// Rows into the words of their groups.
namespace gpuhash::cuda {

inline constexpr unsigned kFoldBlock = 512;
inline constexpr int kMostFolds = 32;  // of a launch, whose parameters have 4 KiB

/// Fold i has word first + i * step of a group's row of `width`.
struct FoldList {
  Fold folds[kMostFolds];
  int count;
  int first;
  int step;
  int width;
};

/// Rows of a thread, a block's width apart, whose loads are on their way at once.
inline constexpr int kFoldRows = 4;

namespace detail {

struct IntegerWord {
  template <class T>
  GPUHASH_HD std::uint64_t operator()(T value) const {
    return group_state::integer_of(value);
  }
};

struct FloatWord {
  template <class T>
  GPUHASH_HD std::uint64_t operator()(T value) const {
    return cast_bits<std::uint64_t>(group_state::float_of(value));
  }
};

struct OrderWord {
  bool for_max;
  template <class T>
  GPUHASH_HD std::uint64_t operator()(T value) const {
    return group_state::order_word(value, for_max);
  }
};

struct TruthWord {
  bool wanted;
  template <class T>
  GPUHASH_HD std::uint64_t operator()(T value) const {
    return group_state::truth_of(value) == wanted ? 1 : 0;
  }
};

/// Visits a dtype: the words of values.
template <class Word>
struct ReadWords {
  const Fold& fold;
  const std::int64_t (&rows)[kFoldRows];
  std::uint64_t (&words)[kFoldRows];
  Word word;

  template <class T>
  __device__ void operator()(T) const {
    T values[kFoldRows];
#pragma unroll
    for (int r = 0; r < kFoldRows; ++r)
      if (rows[r] >= 0) values[r] = static_cast<const T*>(fold.values)[rows[r] * fold.step];
#pragma unroll
    for (int r = 0; r < kFoldRows; ++r)
      if (rows[r] >= 0) words[r] = word(values[r]);
  }
};

template <class Word>
static __device__ void read_words(const Fold& fold, const std::int64_t (&rows)[kFoldRows],
                                  std::uint64_t (&words)[kFoldRows], Word word) {
  visit_dtype(fold.dtype, ReadWords<Word>{fold, rows, words, word});
}

}  // namespace detail

/// The word of each row alone; those of rows that are -1 stay as they are. means: of their groups, for squares.
static __device__ void row_words(const Fold& fold, const std::int64_t (&rows)[kFoldRows],
                                 const double (&means)[kFoldRows], std::uint64_t (&words)[kFoldRows]) {
  switch (fold.kind) {
    case FoldKind::kAddIntegers:
      return detail::read_words(fold, rows, words, detail::IntegerWord{});
    case FoldKind::kAddFloats:
      return detail::read_words(fold, rows, words, detail::FloatWord{});
    case FoldKind::kMin:
    case FoldKind::kMax:
      return detail::read_words(fold, rows, words, detail::OrderWord{fold.kind == FoldKind::kMax});
    case FoldKind::kAnyTrue:
    case FoldKind::kAnyFalse:
      return detail::read_words(fold, rows, words, detail::TruthWord{fold.kind == FoldKind::kAnyTrue});
    case FoldKind::kSquares:
      detail::read_words(fold, rows, words, detail::FloatWord{});
      break;
    default:
      break;
  }
#pragma unroll
  for (int r = 0; r < kFoldRows; ++r) {
    if (rows[r] < 0) continue;
    switch (fold.kind) {
      case FoldKind::kCount:
        words[r] = 1;
        break;
      case FoldKind::kFirst:
        words[r] = static_cast<std::uint64_t>(rows[r]);
        break;
      case FoldKind::kLast:
        words[r] = static_cast<std::uint64_t>(rows[r]) + 1;
        break;
      case FoldKind::kSquares: {
        const double distance = cast_bits<double>(words[r]) - means[r];
        words[r] = cast_bits<std::uint64_t>(distance * distance);
        break;
      }
      default: {
        const double squares = fold.part_squares == nullptr ? 0 : fold.part_squares[rows[r]];
        words[r] = cast_bits<std::uint64_t>(squares_of_part(static_cast<const double*>(fold.values)[rows[r]],
                                                            fold.part_counts[rows[r]], squares, means[r]));
      }
    }
  }
}

/// Merges a word into one that other threads change as well. What it reads first may be old, and then a minimum is no
/// less, and a maximum no greater, than it is by now.
static __device__ void merge_shared(FoldKind kind, std::uint64_t* at, std::uint64_t word) {
  auto* const place = reinterpret_cast<unsigned long long*>(at);
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
      if (word < *at) atomicMin(place, word);
      return;
    case FoldKind::kMax:
    case FoldKind::kLast:
      if (word > *at) atomicMax(place, word);
      return;
    default:
      if (word > *at) atomicOr(place, word);
  }
}

/// Lanes of a warp whose rows are of one group: the lowest of them gets the word of all.
class Peers {
 public:
  /// Every lane is alone.
  __device__ Peers() : lane_(threadIdx.x % 32), lanes_(1u << lane_), alone_(true) {}
  __device__ explicit Peers(std::int64_t code) : lane_(threadIdx.x % 32) {
    lanes_ = __match_any_sync(kWarp, static_cast<unsigned long long>(code));
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
  static constexpr unsigned kWarp = 0xffffffffu;

  unsigned lane_;
  unsigned lanes_;
  bool alone_;
};

enum class FoldPlace : std::uint8_t {
  kGlobal,  // where the words of all are
  kShared,  // each block has words of its own, in shared memory, and merges them into those of all in the end
  kCopies,  // each lane of a block's warps has: few lanes meet, and nobody looks who they are
};

/// Folds all rows.
template <FoldPlace kPlace>
static __global__ void __launch_bounds__(kFoldBlock)
    fold_kernel(const std::int64_t* codes, std::int64_t count, std::int64_t groups,
                const __grid_constant__ FoldList list, std::uint64_t* words) {
  constexpr bool kInShared = kPlace != FoldPlace::kGlobal;
  constexpr std::int64_t kCopies = kPlace == FoldPlace::kCopies ? 32 : 1;
  extern __shared__ std::uint64_t own[];
  std::uint64_t* const target = kInShared ? own + threadIdx.x % kCopies : words;
  const std::int64_t all = groups * list.width;
  if constexpr (kInShared) {
    for (std::int64_t w = threadIdx.x; w < all * kCopies; w += kFoldBlock) own[w] = words[w / kCopies];
    __syncthreads();
    for (std::int64_t g = threadIdx.x; g < groups * kCopies; g += kFoldBlock)
      for (int f = 0; f < list.count; ++f)
        own[(g / kCopies * list.width + list.first + f * list.step) * kCopies + g % kCopies] =
            first_word(list.folds[f].kind);
    __syncthreads();
  }
  constexpr std::int64_t kTile = std::int64_t{kFoldBlock} * kFoldRows;
  const std::int64_t lane = threadIdx.x % 32;
  // By warps: all lanes have to be there for each other.
  for (std::int64_t from = blockIdx.x * kTile + threadIdx.x - lane; from < count; from += gridDim.x * kTile) {
    std::int64_t group_of[kFoldRows];
#pragma unroll
    for (int r = 0; r < kFoldRows; ++r) {
      const std::int64_t i = from + lane + r * std::int64_t{kFoldBlock};
      group_of[r] = i < count ? __ldcs(reinterpret_cast<const long long*>(codes) + i) : -1;
    }
    Peers peers[kFoldRows];
    if constexpr (kPlace != FoldPlace::kCopies) {
#pragma unroll
      for (int r = 0; r < kFoldRows; ++r) peers[r] = Peers(group_of[r]);
    }
    for (int f = 0; f < list.count; ++f) {
      const Fold& fold = list.folds[f];
      const bool has_mean = fold.kind == FoldKind::kSquares || fold.kind == FoldKind::kPartSquares;
      std::uint64_t* at[kFoldRows];
      std::int64_t rows[kFoldRows];
      double means[kFoldRows];
      std::uint64_t found[kFoldRows];
#pragma unroll
      for (int r = 0; r < kFoldRows; ++r) {
        const std::int64_t i = from + lane + r * std::int64_t{kFoldBlock};
        const bool is_some =
            group_of[r] >= 0 && (fold.valid == nullptr || reinterpret_cast<const unsigned char*>(fold.valid)[i] != 0);
        at[r] = target + (max(group_of[r], std::int64_t{0}) * list.width + list.first + f * list.step) * kCopies;
        rows[r] = is_some ? i : -1;
        means[r] = is_some && has_mean ? cast_bits<double>(at[r][-kCopies]) : 0;
        found[r] = first_word(fold.kind);
      }
      row_words(fold, rows, means, found);
#pragma unroll
      for (int r = 0; r < kFoldRows; ++r) {
        const std::uint64_t word = peers[r].merge(fold.kind, found[r]);
        if (group_of[r] >= 0 && peers[r].leads()) merge_shared(fold.kind, at[r], word);
      }
    }
  }
  if constexpr (kInShared) {
    __syncthreads();
    for (std::int64_t g = threadIdx.x; g < groups; g += kFoldBlock) {
      for (int f = 0; f < list.count; ++f) {
        const FoldKind kind = list.folds[f].kind;
        const std::int64_t w = g * list.width + list.first + f * list.step;
        std::uint64_t word = own[w * kCopies];
        for (std::int64_t copy = 1; copy < kCopies; ++copy) word = merge_words(kind, word, own[w * kCopies + copy]);
        if (word != first_word(kind)) merge_shared(kind, words + w, word);
      }
    }
  }
}

inline constexpr std::int64_t kMostWords = (48 << 10) / sizeof(std::uint64_t);  // what any kernel may have

/// Of so many rows: the blocks that fold them in shared memory; 0 where they had better be folded where all words lie:
/// there are more than a block has room for, or so few rows of each that to merge the blocks' words would not be less
/// work.
inline unsigned blocks_in_shared(std::int64_t rows, std::int64_t words) {
  constexpr std::int64_t kRowsPerWord = 8;
  constexpr std::int64_t kLeast = 66;  // half of the multiprocessors of an H100 or H200
  constexpr std::int64_t kMost = 8 * kLeast;
  if (words > kMostWords) return 0;
  const std::int64_t blocks = rows / (kRowsPerWord * words + kFoldBlock);
  return blocks < kLeast ? 0 : static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

/// Enough for all multiprocessors.
inline unsigned blocks_of_rows(std::int64_t rows) {
  constexpr std::int64_t kMost = 8 * 132;
  constexpr std::int64_t kTile = std::int64_t{kFoldBlock} * kFoldRows;
  const std::int64_t blocks = (rows + kTile - 1) / kTile;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

}  // namespace gpuhash::cuda
