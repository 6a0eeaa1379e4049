#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "cuda/batch.cuh"
#include "cuda/launch.cuh"
#include "cuda/probe.cuh"
#include "table/executor.hpp"

/// Row storage: whole rows in and out.
namespace gpuhash::cuda {

inline constexpr unsigned kRowBlock = 256;
inline constexpr int kRowsInFlight = 4;

/// Tables whose values may be row numbers.
template <class View>
inline constexpr bool kMayHaveRows = sizeof(typename View::Value) == sizeof(std::uint64_t);

/// How a row is copied: `lanes` neighbouring threads (a power of two) move it in words as wide as its alignment allows.
struct RowShape {
  std::int64_t words;
  int lanes;
};

/// One word of a row that no one writes while the kernel runs.
template <class Word>
__device__ __forceinline__ Word load_row_word(const Word* from) {
  if constexpr (sizeof(Word) == sizeof(Words)) {
    const Words words = load_unchanging(from);
    Word word;
    memcpy(&word, &words, sizeof word);
    return word;
  } else {
    return __ldg(from);
  }
}

/// A warp copies up to 32 rows: row k from source(k) to target(k), zeros where source(k) is null, not at all where
/// target(k) is null. As many rows side by side as the warp has lanes for, and each lane loads kRowsInFlight words
/// before it stores the first.
template <class Word, class Source, class Target>
__device__ __forceinline__ void copy_warp_rows(RowShape shape, Source source, Target target) {
  const int lane = threadIdx.x % 32;
  const int side_by_side = 32 / shape.lanes;
  for (std::int64_t w = lane % shape.lanes; w < shape.words; w += shape.lanes) {
    for (int k = lane / shape.lanes; k < 32; k += side_by_side * kRowsInFlight) {
      Word words[kRowsInFlight];
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int row = k + r * side_by_side;
        const Word* const from = row < 32 && target(row) != nullptr ? source(row) : nullptr;
        words[r] = from != nullptr ? load_row_word(from + w) : Word{};
      }
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int row = k + r * side_by_side;
        Word* const to = row < 32 ? target(row) : nullptr;
        if (to != nullptr) __stcs(to + w, words[r]);
      }
    }
  }
}

/// out[i] = storage[rows[i]], or the fallback (null: zeros) where rows[i] < 0.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    gather_rows_kernel(Word* out, const Word* storage, const std::int64_t* rows, const Word* fallback,
                       std::int64_t count, RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = rows[i];
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes) {
    const Word* const from = row >= 0 ? storage + row * shape.words : fallback;
    __stcs(out + i * shape.words + w, from != nullptr ? load_row_word(from + w) : Word{});
  }
}

/// storage[rows[i]] = values[i] for the writers, which are the i with rows[i] >= 0.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    scatter_rows_kernel(Word* storage, const std::int64_t* rows, const Word* values, bool broadcast, std::int64_t count,
                        RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = rows[i];
  if (row < 0) return;
  const Word* from = broadcast ? values : values + i * shape.words;
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes)
    __stcs(storage + row * shape.words + w, load_row_word(from + w));
}

/// storage[rows[i]] = `element` over and over, for rows[i] >= 0.
template <class Word>
__global__ void __launch_bounds__(kRowBlock)
    fill_rows_kernel(Word* storage, const std::int64_t* rows, Word element, std::int64_t count, RowShape shape) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  const std::int64_t i = t / shape.lanes;
  if (i >= count) return;
  const std::int64_t row = rows[i];
  if (row < 0) return;
  for (std::int64_t w = t % shape.lanes; w < shape.words; w += shape.lanes) storage[row * shape.words + w] = element;
}

/// In a slot, instead of a row's number: there was no row left for the key.
inline constexpr std::int64_t kNoRow = -1;

/// A new row for each lane that wants one: those on the free stack first; kNoRow where none is left, which only a
/// replayed CUDA graph can bring about. The whole warp calls it. settle_rows_kernel takes the rows from the stack after
/// the insertion.
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
/// next insertion has another epoch. One block.
template <class View>
__global__ void __launch_bounds__(kRowBlock) settle_rows_kernel(View view) {
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
  control.row_epoch = epochs_are_spent ? 0 : control.row_epoch + 1;
}

/// rows[i] = the row number in slot locations[i], in place; negative where there is none or `only` says false.
template <class View>
__global__ void __launch_bounds__(kRowBlock)
    rows_of_locations_kernel(View view, std::int64_t* locations, const bool* only, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRowBlock + threadIdx.x;
  if (i >= count) return;
  const bool wanted = locations[i] >= 0 && (only == nullptr || only[i]);
  locations[i] = wanted ? static_cast<std::int64_t>(view.slots[locations[i]].value) : -1;
}

/// The widest word that divides every row and its address.
template <class Run>
void with_row_words(std::int64_t row_bytes, std::initializer_list<const void*> arrays, Run run) {
  std::uint64_t bits = static_cast<std::uint64_t>(row_bytes);
  for (const void* array : arrays) bits |= reinterpret_cast<std::uintptr_t>(array);
  const auto shape = [&](std::int64_t word) {
    RowShape rows{row_bytes / word, 1};
    while (rows.lanes < 32 && rows.lanes < rows.words) rows.lanes *= 2;
    return rows;
  };
  if (bits % 16 == 0) return run(uint4{}, shape(16));
  if (bits % 4 == 0) return run(std::uint32_t{}, shape(4));
  return run(std::uint8_t{}, shape(1));
}

inline void gather_rows(const RowView& rows, const std::int64_t* numbers, std::int64_t count, void* out,
                        const void* fallback, Stream stream) {
  with_row_words(rows.bytes, {rows.data, out, fallback}, [&](auto word, RowShape shape) {
    using Word = decltype(word);
    launch("gathering rows", gather_rows_kernel<Word>, count * shape.lanes, kRowBlock, stream, static_cast<Word*>(out),
           reinterpret_cast<const Word*>(rows.data), numbers, static_cast<const Word*>(fallback), count, shape);
  });
}

inline void scatter_rows(const RowView& rows, const std::int64_t* numbers, std::int64_t count, const ValueBatch& values,
                         Stream stream) {
  with_row_words(rows.bytes, {rows.data, values.data}, [&](auto word, RowShape shape) {
    using Word = decltype(word);
    launch("scattering rows", scatter_rows_kernel<Word>, count * shape.lanes, kRowBlock, stream,
           reinterpret_cast<Word*>(rows.data), numbers, static_cast<const Word*>(values.data), values.broadcast, count,
           shape);
  });
}

template <class View>
void fill_rows(const View& view, const std::int64_t* rows, std::int64_t count, const Uint128& element,
               const ApplyOrder& batch, Stream stream) {
  const auto fill = [&](auto word) {
    using Word = decltype(word);
    RowShape shape{view.rows.bytes / static_cast<std::int64_t>(sizeof(Word)), 1};
    while (shape.lanes < 32 && shape.lanes < shape.words) shape.lanes *= 2;
    memcpy(&word, &element, sizeof word);
    launch("filling rows", fill_rows_kernel<Word>, count * shape.lanes, kRowBlock, stream,
           reinterpret_cast<Word*>(view.rows.data), rows, word, count, shape);
  };
  switch (itemsize(batch.dtype)) {
    case 1:
      return fill(std::uint8_t{});
    case 2:
      return fill(std::uint16_t{});
    case 4:
      return fill(std::uint32_t{});
    case 8:
      return fill(std::uint64_t{});
    default:
      return fill(Uint128{});
  }
}

template <class View>
void settle_rows(const View& view, Stream stream) {
  launch("settling rows", settle_rows_kernel<View>, kRowBlock, kRowBlock, stream, view);
}

}  // namespace gpuhash::cuda
