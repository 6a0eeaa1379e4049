#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "host/near_lookup.hpp"
#include "host/pipeline.hpp"
#include "host/rows.hpp"
#include "host/rows_ahead.hpp"

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

/// For keys that are words, values as wide as the slot's. Writes at every look, without a branch: a walk that has to go
/// on is so far absent.
template <class View, bool kMask>
struct FindWords {
  static constexpr bool kWords = true;
  static constexpr bool kEveryLook = true;
  using Value = typename View::Value;

  Value* values;  // [n]
  bool* mask;     // [n]
  Value fallback;
  std::uint64_t present = 0;

  template <class Match>
  void looked(std::int64_t i, typename View::SlotType* bucket, const Match& match) {
    const Value stored = match.first(bucket)->value;
    const Value value = match.any() ? stored : fallback;
    std::memcpy(values + i, &value, sizeof value);  // callers' arrays may have any alignment
    if constexpr (kMask) mask[i] = match.any();
    present += match.any() ? 1 : 0;
  }
  Value* values_from(std::int64_t i) const { return values + i; }
  void value(std::int64_t i, const Value& value) { std::memcpy(values + i, &value, sizeof value); }
  void found(std::int64_t first, const bool* found, std::size_t size) {
    if constexpr (kMask) std::memcpy(mask + first, found, size);
    present += count_true(found, size);
  }
  void left_region(std::int64_t) {}
};

/// Whether keys that are words are there.
template <class View>
struct FindMask {
  static constexpr bool kWords = true;
  static constexpr bool kEveryLook = true;

  bool* mask;  // [n]
  std::uint64_t present = 0;
  typename View::Value fallback{};  // nobody asks for values

  template <class Match>
  void looked(std::int64_t i, typename View::SlotType*, const Match& match) {
    mask[i] = match.any();
    present += match.any() ? 1 : 0;
  }
  typename View::Value* values_from(std::int64_t) const { return nullptr; }
  void value(std::int64_t, const typename View::Value&) {}
  void found(std::int64_t first, const bool* found, std::size_t size) {
    std::memcpy(mask + first, found, size);
    present += count_true(found, size);
  }
  void left_region(std::int64_t) {}
};

/// Everything else. Rows are asked for when the key is found and copied some keys later.
template <class View>
class FindAny {
 public:
  static constexpr bool kWords = false;

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
  void left_region(std::int64_t) {}
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
std::uint64_t find_range(const View& view, const KeyBatch& keys, std::int64_t begin, std::int64_t end,
                         const FindOrder& out) {
  const auto run = [&]<class Visitor>(Visitor& visitor) {
    if constexpr (Visitor::kWords)
      if (is_near(view)) return look_up_near(view, keys, begin, end, visitor);
    walk_each<Purpose::kLookup>(view, keys, begin, end, visitor);
  };
  const bool words = are_words<View>(keys);
  if constexpr (View::kHasValue) {
    using Value = typename View::Value;
    if (words && out.values != nullptr && out.rows == nullptr && view.rows.bytes == 0 && out.bytes == sizeof(Value) &&
        !out.fallback_per_key) {
      Value fallback{};
      if (out.fallback != nullptr) std::memcpy(&fallback, out.fallback, sizeof fallback);
      const auto run_words = [&]<bool kMask>(FindWords<View, kMask> visitor) {
        run(visitor);
        return visitor.present;
      };
      auto* const values = static_cast<Value*>(out.values);
      if (out.found != nullptr) return run_words(FindWords<View, true>{values, out.found, fallback});
      return run_words(FindWords<View, false>{values, nullptr, fallback});
    }
  }
  if (words && out.found != nullptr && out.values == nullptr && out.rows == nullptr) {
    FindMask<View> mask{out.found};
    run(mask);
    return mask.present;
  }
  FindAny<View> any(view, out);
  run(any);
  return any.finish();
}

}  // namespace gpuhash::host
