#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "host/rows/rows.hpp"
#include "host/walk/block_looks.hpp"
#include "host/walk/pipeline.hpp"
#include "host/walk/rows_ahead.hpp"

/// Lookups: what a pipeline finds, written to the caller's arrays.
namespace gpuhash::host {

/// Eight at a time.
inline std::uint64_t count_true(const bool* flags, std::size_t size) {
  static_assert(sizeof(bool) == 1);
  std::uint64_t count = 0;
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8)
    count += static_cast<std::uint64_t>(std::popcount(detail::load_whole<std::uint64_t>(flags + i)));
  for (; i < size; ++i) count += flags[i] ? 1 : 0;
  return count;
}

/// For values as wide as the slot's, or none. Writes at every look, without a branch: a walk that has to go on is so
/// far absent.
template <class View>
struct PlainFind {
  static constexpr bool kHot = true;
  static constexpr bool kFindsBlocks = true;
  using Value = typename View::Value;

  Value* values;  // [n] or null, of any alignment
  bool* mask;     // [n] or null
  Value fallback;
  std::uint64_t present = 0;

  template <class Simd, class Ask>
  std::uint64_t find_block(Simd, const View& of_view, const Homes<typename View::Key>& homes, std::int64_t first,
                           std::size_t size, const Ask& ask) {
    const View view = of_view;  // copies, in registers
    Value* const to = values == nullptr ? nullptr : values + first;
    const Value absent = fallback;
    alignas(64) bool found[kHomes];
    const std::uint64_t undecided = look_at_homes<Simd>(view, homes, size, absent, to, found, ask);
    if (mask != nullptr) std::memcpy(mask + first, found, size);
    present += count_true(found, size);
    return undecided;
  }
  template <class Match>
  void looked(std::int64_t i, [[maybe_unused]] typename View::SlotType* bucket, const Match& match) {
    if constexpr (View::kHasValue)
      if (values != nullptr)
        std::memcpy(values + i, match.any() ? &match.first(bucket)->value : &fallback, sizeof(Value));
    if (mask != nullptr) mask[i] = match.any();
    present += match.any() ? 1 : 0;
  }
  void left_region(std::int64_t) {}
};

/// Everything else. Rows are asked for when the key is found and copied some keys later.
template <class View>
class FindAny {
 public:
  FindAny(const View& view, const FindOrder& out) : view_(&view), out_(&out) {}

  void found(std::int64_t i, typename View::SlotType* slot, [[maybe_unused]] bool any_empty) {
    ++present_;
    if (out_->found != nullptr) out_->found[i] = true;
    if constexpr (View::kHasValue) {
      if (out_->rows != nullptr) out_->rows[i] = static_cast<std::int64_t>(slot->value);
      if (out_->values == nullptr) return;
      if (view_->rows.bytes == 0) return store_word(out_->values, i, out_->bytes, slot->value);
      rows_.push(row_data(*view_, slot->value), 0, out_->bytes, i, copy_row());
    }
  }
  void absent(std::int64_t i) {
    if (out_->found != nullptr) out_->found[i] = false;
    if constexpr (View::kHasValue) {
      if (out_->rows != nullptr) out_->rows[i] = -1;
      if (out_->values == nullptr) return;
      const auto* const fallback = static_cast<const std::byte*>(out_->fallback);
      if (fallback != nullptr)
        copy_bytes(value_at(i), fallback + (out_->fallback_per_key ? i * out_->bytes : 0), out_->bytes);
      else
        std::memset(value_at(i), 0, static_cast<std::size_t>(out_->bytes));
    }
  }
  /// The rows that are still under way; the number of keys found.
  std::uint64_t finish() {
    rows_.finish(copy_row());
    return present_;
  }

 private:
  std::byte* value_at(std::int64_t i) const { return static_cast<std::byte*>(out_->values) + i * out_->bytes; }
  auto copy_row() const {
    return [this](const std::byte* row, std::int64_t i) { copy_bytes(value_at(i), row, out_->bytes); };
  }

  const View* view_;
  const FindOrder* out_;
  RowsAhead<false> rows_;
  std::uint64_t present_ = 0;
};

/// Looks up keys [begin, end) of the batch. Returns how many of them there are.
template <class View>
std::uint64_t find_range(const View& view, const KeyBatch& batch, std::int64_t begin, std::int64_t end,
                         const FindOrder& out) {
  using Value = typename View::Value;
  const KeyRun keys = run_of(batch, begin, end);
  bool is_plain = out.values == nullptr;
  if constexpr (View::kHasValue)
    is_plain |= view.rows.bytes == 0 && out.bytes == sizeof(Value) && !out.fallback_per_key;
  if (is_plain && out.rows == nullptr) {
    PlainFind<View> find{static_cast<Value*>(out.values), out.found, {}};
    if constexpr (View::kHasValue)
      if (out.fallback != nullptr) std::memcpy(&find.fallback, out.fallback, sizeof(Value));
    walk<Purpose::kLookup>(view, Reach::kTable, keys, find);
    return find.present;
  }
  FindAny<View> any(view, out);
  walk<Purpose::kLookup>(view, Reach::kTable, keys, any);
  return any.finish();
}

}  // namespace gpuhash::host
