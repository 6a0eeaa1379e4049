#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "cuda/batch.cuh"
#include "cuda/launch.cuh"
#include "cuda/walk/probe.cuh"
#include "table/executor.hpp"

/// Row storage: how a warp copies rows, and which rows new keys get. Rows by their numbers: cuda/rows/columns.hpp.
namespace gpuhash::cuda {

inline constexpr unsigned kRowBlock = 256;
inline constexpr int kRowsInFlight = 4;

/// How a row is copied: `lanes` neighbouring threads (a power of two) move it in words as wide as its alignment allows.
struct RowShape {
  std::int64_t words;
  int lanes;
  int word_bytes;
};

/// One word of a row that no one writes while the kernel runs.
template <class Word>
__device__ __forceinline__ Word load_row_word(const Word* from) {
  if constexpr (sizeof(Word) == sizeof(Words)) {
    const Words words = load_once(from);
    Word word;
    memcpy(&word, &words, sizeof word);
    return word;
  } else {
    return __ldg(from);
  }
}

template <class Word, class Source, class Target>
__device__ __forceinline__ void copy_warp_rows_by(RowShape shape, Source source, Target target) {
  const int lane = threadIdx.x % 32;
  const int side_by_side = 32 / shape.lanes;
  for (std::int64_t w = lane % shape.lanes; w < shape.words; w += shape.lanes) {
    for (int k = lane / shape.lanes; k < 32; k += side_by_side * kRowsInFlight) {
      Word words[kRowsInFlight];
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int row = k + r * side_by_side;
        const auto* const from = static_cast<const Word*>(row < 32 && target(row) != nullptr ? source(row) : nullptr);
        words[r] = from != nullptr ? load_row_word(from + w) : Word{};
      }
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int row = k + r * side_by_side;
        auto* const to = static_cast<Word*>(row < 32 ? target(row) : nullptr);
        if (to != nullptr) __stcs(to + w, words[r]);
      }
    }
  }
}

/// A warp copies up to 32 rows: row k from source(k) to target(k), zeros where source(k) is null, not at all where
/// target(k) is null. As many rows side by side as the warp has lanes for, and each lane loads kRowsInFlight words
/// before it stores the first.
template <class Source, class Target>
__device__ __forceinline__ void copy_warp_rows(RowShape shape, Source source, Target target) {
  if (shape.word_bytes == 16)
    copy_warp_rows_by<uint4>(shape, source, target);
  else if (shape.word_bytes == 4)
    copy_warp_rows_by<std::uint32_t>(shape, source, target);
  else
    copy_warp_rows_by<std::uint8_t>(shape, source, target);
}

/// In a slot, instead of a row's number: there was no row left for the key.
inline constexpr std::int64_t kNoRow = -1;

/// A new row for each lane that wants one: those on the free stack first; kNoRow where none is left, which only a
/// replayed CUDA graph can bring about. The whole warp calls it. count_off_row_tickets_kernel takes the rows from the
/// stack after the insertion.
template <class View>
__device__ __forceinline__ std::int64_t take_row(const View& view, bool wanted) {
  const std::uint64_t ticket = take_ticket(&view.control->row_tickets, wanted);
  if (!wanted) return kNoRow;
  const std::uint64_t free = view.control->free_rows;
  if (ticket < free) return view.rows.free[free - 1 - ticket];
  const auto row = static_cast<std::int64_t>(view.control->next_row + (ticket - free));
  return row < view.rows.capacity ? row : kNoRow;
}

/// What an insertion writes into the tags of its rows: another number than any that is in them before it. It is read
/// from device memory, so that each replay of a captured insertion has its own.
template <class View>
__device__ __forceinline__ std::uint32_t row_epoch(const View& view) {
  return static_cast<std::uint32_t>(view.control->row_epoch) + 1;
}

/// So many insertions share out the epochs, then the tags are cleared; small enough for a test to get there.
inline constexpr std::uint64_t kMaxRowEpoch = 1 << 16;

/// After an insertion: the rows that its tickets stand for are taken, keys that got none are taken out again, and the
/// next insertion has another epoch. A list of keys that were to be inserted is done with. One block.
template <class View>
__global__ void __launch_bounds__(kRowBlock) count_off_row_tickets_kernel(View view) {
  Control& control = *view.control;
  const bool epochs_are_spent = control.row_epoch + 1 >= kMaxRowEpoch;
  const std::uint64_t reused = min(control.row_tickets, control.free_rows);
  const std::uint64_t wanted = control.next_row + (control.row_tickets - reused);
  const auto capacity = static_cast<std::uint64_t>(view.rows.capacity);
  __syncthreads();
  if (epochs_are_spent)
    for (std::int64_t row = threadIdx.x; row < view.rows.capacity; row += kRowBlock) view.rows.tags[row] = 0;
  if constexpr (View::kHasValue) {
    using Key = typename View::Key;
    using Value = typename View::Value;
    if (wanted > capacity) {
      // Erased, not empty: keys may have passed the slot. Only here, where nobody walks any more.
      for (std::uint64_t i = threadIdx.x; i < view.slot_count(); i += kRowBlock) {
        typename View::SlotType& slot = view.slots[i];
        if (is_live(slot.key) && slot.value == static_cast<Value>(kNoRow))
          slot = {erased_key<Key>(), empty_value<Value>()};
      }
    }
  }
  if (threadIdx.x != 0) return;
  control.free_rows -= reused;
  control.next_row = min(wanted, capacity);
  control.row_tickets = 0;
  control.listed = 0;
  control.row_epoch = epochs_are_spent ? 0 : control.row_epoch + 1;
}

/// rows[i] = the row number in slot locations[i], in place; negative where there is none.
template <class View>
__global__ void __launch_bounds__(kRowBlock)
    rows_of_locations_kernel(View view, std::int64_t* locations, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count) return;
  locations[i] = locations[i] >= 0 ? static_cast<std::int64_t>(view.slots[locations[i]].value) : -1;
}

/// In place of a row's number, below all of them and kNoRow: the slot that will have it when the kernel is done.
__device__ __forceinline__ std::int64_t slot_in_place_of_row(std::int64_t slot) { return kNoRow - 1 - slot; }
/// The reverse.
__device__ __forceinline__ std::int64_t slot_of_row(std::int64_t row) { return kNoRow - 1 - row; }

/// Puts row numbers where those of slots are; kNoRow where a key got none and was taken out again.
template <class View>
__global__ void __launch_bounds__(kRowBlock)
    settle_row_numbers_kernel(View view, std::int64_t* rows, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count || rows[i] >= kNoRow) return;
  const auto row = static_cast<std::int64_t>(view.slots[slot_of_row(rows[i])].value);
  rows[i] = row >= 0 ? row : kNoRow;
}

/// With the widest word that divides every row and its address.
inline RowShape row_shape(std::int64_t row_bytes, std::initializer_list<const void*> arrays) {
  std::uint64_t bits = static_cast<std::uint64_t>(row_bytes);
  for (const void* array : arrays) bits |= reinterpret_cast<std::uintptr_t>(array);
  const int word_bytes = bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
  RowShape shape{row_bytes / word_bytes, 1, word_bytes};
  while (shape.lanes < 32 && shape.lanes < shape.words) shape.lanes *= 2;
  return shape;
}

/// Calls run(word, shape) with that word.
template <class Run>
void with_row_words(std::int64_t row_bytes, std::initializer_list<const void*> arrays, Run run) {
  const RowShape shape = row_shape(row_bytes, arrays);
  if (shape.word_bytes == 16) return run(uint4{}, shape);
  if (shape.word_bytes == 4) return run(std::uint32_t{}, shape);
  return run(std::uint8_t{}, shape);
}

template <class View>
void count_off_row_tickets(const View& view, Stream stream) {
  launch("counting off row tickets", count_off_row_tickets_kernel<View>, kRowBlock, kRowBlock, stream, view);
}

}  // namespace gpuhash::cuda
