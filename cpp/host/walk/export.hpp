#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "host/rows/rows.hpp"
#include "host/short_bytes.hpp"
#include "host/walk/walk.hpp"

namespace gpuhash::host {

/// is_live() as a number, without a branch also where keys are two words.
template <class Key>
std::size_t live_bit(const Key& stored) {
  const auto is_empty = static_cast<std::size_t>(stored == empty_key<Key>());
  return 1 ^ (is_empty | static_cast<std::size_t>(stored == erased_key<Key>()));
}

/// Writes the items of a table in the order of its slots. Live ones are first put side by side, some buckets at a time
/// and without a branch: whether a slot is live cannot be predicted, and cost more than all else.
template <class View>
class ItemWriter {
 public:
  /// Each pointer may be null.
  struct Output {
    void* keys;  // [n, key_bytes]
    std::int64_t key_bytes;
    void* values;  // [n, value_bytes]
    std::int64_t value_bytes;
    std::int64_t* rows;  // [n]
  };

  ItemWriter(const View& view, const Output& out, std::int64_t at) : view_(view), out_(out), at_(at) {}

  /// Those of buckets [begin, end).
  void write(std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t stray = view_.geometry.bucket_count;
    for (std::uint64_t bucket = begin; bucket < std::min(end, stray); bucket += kBuckets)
      write_items(gather(bucket_at(view_, bucket), std::min({kBuckets, end - bucket, stray - bucket}) * View::kSlots));
    if (end <= stray) return;
    std::size_t count = 0;
    for_each_live(view_, stray, end, [&](const typename View::SlotType* slot, bool) {
      keys_[count] = key_of_slot(slot->key, true);
      if constexpr (View::kHasValue) values_[count] = slot->value;
      ++count;
    });
    write_items(count);
  }

 private:
  using Key = typename View::Key;
  using Value = typename View::Value;

  static constexpr std::uint64_t kBuckets = 64;
  static constexpr std::size_t kRoom = kBuckets * View::kSlots;
  static constexpr std::size_t kRowsAhead = 16;

  std::size_t gather(const typename View::SlotType* slots, std::size_t size) {
    std::size_t count = 0;
    for (std::size_t s = 0; s < size; ++s) {
      keys_[count] = slots[s].key;
      if constexpr (View::kHasValue) values_[count] = slots[s].value;
      count += live_bit(slots[s].key);
    }
    return count;
  }

  void write_items(std::size_t count) {
    if (out_.keys != nullptr) write_words(out_.keys, out_.key_bytes, keys_, count);
    if constexpr (View::kHasValue) {
      if (out_.rows != nullptr)
        for (std::size_t n = 0; n < count; ++n)
          out_.rows[at_ + static_cast<std::int64_t>(n)] = static_cast<std::int64_t>(values_[n]);
      if (out_.values != nullptr) {
        if (view_.rows.bytes != 0)
          write_rows(count);
        else
          write_words(out_.values, out_.value_bytes, values_, count);
      }
    }
    at_ += static_cast<std::int64_t>(count);
  }

  template <class Word>
  void write_words(void* to, std::int64_t bytes, const Word* words, std::size_t count) const {
    auto* const first = static_cast<std::byte*>(to) + at_ * bytes;
    if (bytes == sizeof(Word)) {
      std::memcpy(first, words, count * sizeof(Word));
    } else {
      // Which moves it takes is found out once, and not for each word.
      detail::with_low_bytes_store<Word>(bytes, [=](const auto& store) {
        for (std::size_t n = 0; n < count; ++n) store(first + static_cast<std::int64_t>(n) * bytes, words[n]);
      });
    }
  }

  void write_rows(std::size_t count) const {
    const std::int64_t bytes = out_.value_bytes;
    auto* to = static_cast<std::byte*>(out_.values) + at_ * bytes;
    const auto ask_for = [&](std::size_t n) {
      const std::byte* const row = row_data(view_, values_[n]);
      for (std::int64_t byte = 0; byte < std::min<std::int64_t>(bytes, 512); byte += 64) __builtin_prefetch(row + byte);
    };
    for (std::size_t n = 0; n < std::min(kRowsAhead, count); ++n) ask_for(n);
    for (std::size_t n = 0; n < count; ++n, to += bytes) {
      if (n + kRowsAhead < count) ask_for(n + kRowsAhead);
      copy_bytes(to, row_data(view_, values_[n]), bytes);
    }
  }

  const View& view_;
  const Output out_;
  std::int64_t at_;
  Key keys_[kRoom];
  [[no_unique_address]] std::conditional_t<View::kHasValue, Value[kRoom], NoValue> values_;
};

/// How many of the slots of buckets [begin, end) are live.
template <class View>
std::int64_t count_live(const View& view, std::uint64_t begin, std::uint64_t end) {
  const auto* const slots = bucket_at(view, begin);
  std::int64_t count = 0;
  for (std::size_t s = 0; s < (end - begin) * View::kSlots; ++s)
    count += static_cast<std::int64_t>(live_bit(slots[s].key));
  return count;
}

}  // namespace gpuhash::host
