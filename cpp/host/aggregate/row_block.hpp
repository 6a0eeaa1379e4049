#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "shared/group_state.hpp"

/// Rows of a batch that are folded together: where each one's group has its words is found once for all folds, and
/// asked for ahead.
namespace gpuhash::host {

inline constexpr std::int64_t kBlockRows = 1024;

/// The words of groups: `width` each, and of each group `copies`, which the rows take in turns. Neighbours of one group
/// need not wait for each other's sums then. The group -1 has words, too, which nobody reads.
struct GroupWords {
  std::uint64_t* words;  // those of group 0
  std::int64_t width;
  std::int64_t copies;

  std::int64_t stride() const { return width * copies; }
};

/// A block of rows, and those of them that count.
struct RowBlock {
  std::int64_t begin = 0;  // position of the first row
  std::int64_t count = 0;
  std::int64_t listed = 0;
  bool whole = true;                 // all rows do, and there is no list
  std::int64_t offsets[kBlockRows];  // of each row's words
  std::uint16_t list[kBlockRows];    // rows
  static_assert(kBlockRows <= 1 << 16);

  /// Of rows [begin, begin + count), those whose group is in [first_group, last_group). Without a `list`, of groups
  /// from -1 on, all of them.
  void set_all(const std::int64_t* codes, std::int64_t from, std::int64_t rows, const GroupWords& groups) {
    begin = from;
    count = listed = rows;
    whole = true;
    const std::int64_t stride = groups.stride();
    if (groups.copies == 1) {
      for (std::int64_t i = 0; i < rows; ++i) offsets[i] = codes[from + i] * stride;
      return;
    }
    const std::int64_t mask = groups.copies - 1;
    for (std::int64_t i = 0; i < rows; ++i) offsets[i] = codes[from + i] * stride + (i & mask) * groups.width;
  }

  /// All of `rows`, whose codes are in `offsets`.
  void set_codes(std::int64_t from, std::int64_t rows, const GroupWords& groups) {
    set_all(offsets - from, from, rows, groups);
  }

  void set_of_groups(const std::int64_t* codes, std::int64_t from, std::int64_t rows, std::int64_t first_group,
                     std::int64_t last_group, const GroupWords& groups) {
    set_all(codes, from, rows, groups);
    const auto span = static_cast<std::uint64_t>(last_group - first_group);
    listed = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      list[listed] = static_cast<std::uint16_t>(i);
      listed += static_cast<std::uint64_t>(codes[from + i] - first_group) < span ? 1 : 0;
    }
    whole = listed == rows;
  }

  void prefetch(const GroupWords& groups) const {
    const auto ask = [&](std::int64_t i) { __builtin_prefetch(groups.words + offsets[i], 1); };
    if (whole)
      for (std::int64_t i = 0; i < count; ++i) ask(i);
    else
      for (std::int64_t j = 0; j < listed; ++j) ask(list[j]);
  }
};

/// Calls visit(i) for the rows of a block that count and whose value is valid.
///
/// `values`: of the block's first row; those of the next block are asked for meanwhile, a line at a time. Processors
/// themselves look ahead by a page of 4 KiB at the most, and blocks of several columns take turns.
template <class T, class Visit>
void for_each_valid(const RowBlock& block, const bool* valid, const T* values, const Visit& visit) {
  if (valid == nullptr) {
    constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
    std::int64_t i = 0;
    if (block.whole && values != nullptr)
      for (; i + kLine <= block.count; i += kLine) {
        __builtin_prefetch(values + i + kBlockRows);
        for (std::int64_t j = i; j < i + kLine; ++j) visit(j);
      }
    if (block.whole)
      for (; i < block.count; ++i) visit(i);
    else
      for (std::int64_t j = 0; j < block.listed; ++j) visit(std::int64_t{block.list[j]});
    return;
  }
  std::uint16_t list[kBlockRows];
  std::int64_t listed = 0;
  unsigned char bytes[kBlockRows];  // callers' booleans may be any byte
  std::memcpy(bytes, valid + block.begin, static_cast<std::size_t>(block.count));
  const auto note = [&](std::int64_t i) {
    list[listed] = static_cast<std::uint16_t>(i);
    listed += bytes[i] != 0 ? 1 : 0;
  };
  if (block.whole)
    for (std::int64_t i = 0; i < block.count; ++i) note(i);
  else
    for (std::int64_t j = 0; j < block.listed; ++j) note(block.list[j]);
  for (std::int64_t j = 0; j < listed; ++j) visit(std::int64_t{list[j]});
}

/// Folds the rows of a block into word `word` of their groups.
template <FoldKind kKind, class T>
void fold_block(const Fold& fold, const RowBlock& block, std::uint64_t* words, std::int64_t word) {
  using namespace group_state;
  std::uint64_t* const at = words + word;
  const std::int64_t* const offsets = block.offsets;
  const auto* const values =
      static_cast<const T*>(fold.values) + (fold.values == nullptr ? 0 : block.begin * fold.step);
  for_each_valid(block, fold.valid, values, [&](std::int64_t i) {
    std::uint64_t& state = at[offsets[i]];
    const auto add = [&](double number) { state = cast_bits<std::uint64_t>(cast_bits<double>(state) + number); };
    if constexpr (kKind == FoldKind::kCount) {
      ++state;
    } else if constexpr (kKind == FoldKind::kAddIntegers) {
      state += integer_of(values[i]);
    } else if constexpr (kKind == FoldKind::kAddFloats) {
      add(float_of(values[i * fold.step]));
    } else if constexpr (kKind == FoldKind::kMin) {
      const std::uint64_t order = order_word(values[i], false);
      if (order < state) state = order;
    } else if constexpr (kKind == FoldKind::kMax) {
      const std::uint64_t order = order_word(values[i], true);
      if (order > state) state = order;
    } else if constexpr (kKind == FoldKind::kFirst) {
      const auto position = static_cast<std::uint64_t>(block.begin + i);
      if (position < state) state = position;
    } else if constexpr (kKind == FoldKind::kLast) {
      state = static_cast<std::uint64_t>(block.begin + i) + 1;
    } else if constexpr (kKind == FoldKind::kAnyTrue) {
      if (truth_of(values[i])) state = 1;
    } else if constexpr (kKind == FoldKind::kAnyFalse) {
      if (!truth_of(values[i])) state = 1;
    } else if constexpr (kKind == FoldKind::kSquares) {
      const double distance = float_of(values[i]) - cast_bits<double>((&state)[-1]);
      add(distance * distance);
    } else {
      const std::int64_t row = block.begin + i;
      const double squares = fold.part_squares == nullptr ? 0 : fold.part_squares[row];
      add(squares_of_part(float_of(values[i]), fold.part_counts[row], squares, cast_bits<double>((&state)[-1])));
    }
  });
}

using FoldBlock = void (*)(const Fold&, const RowBlock&, std::uint64_t* words, std::int64_t word);

/// The loop for a fold.
inline FoldBlock loop_of(const Fold& fold) {
  return dispatch_dtype(fold.dtype, [&]<class T>(T) -> FoldBlock {
    constexpr bool kIsFloat = group_state::kIsShortFloat<T> || std::is_floating_point_v<T>;
    switch (fold.kind) {
      case FoldKind::kAddIntegers:
        if constexpr (!kIsFloat && !group_state::kIsComplex<T>) return fold_block<FoldKind::kAddIntegers, T>;
        break;
      case FoldKind::kAddFloats:
        if constexpr (!group_state::kIsComplex<T>) return fold_block<FoldKind::kAddFloats, T>;
        break;
      case FoldKind::kMin:
        if constexpr (!group_state::kIsComplex<T>) return fold_block<FoldKind::kMin, T>;
        break;
      case FoldKind::kMax:
        if constexpr (!group_state::kIsComplex<T>) return fold_block<FoldKind::kMax, T>;
        break;
      case FoldKind::kSquares:
        if constexpr (!group_state::kIsComplex<T>) return fold_block<FoldKind::kSquares, T>;
        break;
      case FoldKind::kAnyTrue:
        return fold_block<FoldKind::kAnyTrue, T>;
      case FoldKind::kAnyFalse:
        return fold_block<FoldKind::kAnyFalse, T>;
      case FoldKind::kPartSquares:
        return fold_block<FoldKind::kPartSquares, double>;
      case FoldKind::kFirst:
        return fold_block<FoldKind::kFirst, std::uint8_t>;
      case FoldKind::kLast:
        return fold_block<FoldKind::kLast, std::uint8_t>;
      case FoldKind::kCount:
        break;
    }
    return fold_block<FoldKind::kCount, std::uint8_t>;
  });
}

}  // namespace gpuhash::host
