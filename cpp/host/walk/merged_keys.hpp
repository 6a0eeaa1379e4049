#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include <gpuhash/error.hpp>
#include "host/parallel.hpp"
#include "host/rows/combine.hpp"
#include "host/walk/hot_places.hpp"
#include "host/walk/operations.hpp"
#include "host/walk/write_each.hpp"
#include "table/repeated_values.hpp"

/// insert_or_apply() of a batch in which some keys come very often. Each thread combines the values of such a key in
/// memory of its own, and at the end of the batch the key is applied once. Walks to a slot that was written a moment
/// ago are slow, as the processor waits for the store, and one owner would have most of them.
namespace gpuhash::host {

/// Smaller batches are not looked at.
inline constexpr std::int64_t kLeastMerged = std::int64_t{1} << 16;
/// Nor those in which a key could come more often than 32 bits can count.
inline constexpr std::int64_t kMostMerged = std::numeric_limits<std::uint32_t>::max();

template <class View>
class MergedKeys {
 public:
  using Key = typename View::Key;

  /// May, and could, the values of keys be combined with each other first?
  static bool allows(const View& view, const ApplyOrder& batch) {
    const std::int64_t count = batch.keys.distinct ? 0 : batch.keys.count;
    return combine_in_any_order(batch.dtype) && !has_rows(view) && count >= kLeastMerged && count <= kMostMerged;
  }

  /// Null where few keys come often, or there is no memory.
  static std::unique_ptr<MergedKeys> make(const View& view, const ApplyOrder& batch) {
    try {
      auto merged = scratch_by<MergedKeys>([&](std::size_t) { return std::make_unique<MergedKeys>(view, batch); }, 1);
      if (merged->hot_.choose(batch.keys) && merged->allocate()) return merged;
    } catch (const OutOfMemoryError&) {
    }
    return nullptr;
  }

  MergedKeys(const View& view, const ApplyOrder& batch)
      : view_(view), batch_(batch), combine_(combine_function(batch.dtype, batch.op)), hot_(view.geometry.seeds.hash) {}

  /// operation_of(order): what is done to the slot of each key of an order.
  template <class OperationOf>
  void write(OperationOf operation_of) {
    try {
      write_others(operation_of(batch_));
    } catch (...) {  // interrupted: what was set aside is of the part that is done
      write_hot(operation_of);
      throw;
    }
    write_hot(operation_of);
  }

 private:
  static constexpr std::size_t kPlaces = HotPlaces<Key>::kPlaces;

  /// What one thread has set aside, by the places of the keys.
  struct Aside {
    std::uint32_t counts[kPlaces];
    std::int64_t firsts[kPlaces];   // positions
    std::uint64_t values[kPlaces];  // combined, each in the first bytes; of a batch with a value per key
  };
  /// The hot keys that have come, as a batch.
  struct HotBatch {
    Key keys[kPlaces];              // packed, like the batch's
    std::uint64_t values[kPlaces];  // likewise
    std::int64_t firsts[kPlaces];
    bool inserted[kPlaces];
  };

  /// Sets hot keys aside. One value for all keys is not combined, but counted.
  class Sieve {
   public:
    /// For the keys from `position` in the batch on.
    Sieve(const MergedKeys& merged, Aside& to, std::int64_t position) : merged_(merged), to_(to), position_(position) {}

    /// As Shares::deal() wants it.
    std::uint64_t pass(const Key* keys, std::int64_t count) {
      const bool per_key = !merged_.batch_.values.broadcast;
      const std::int64_t position = position_;  // copies, in registers
      std::size_t waiting = count_;
      std::uint64_t left = 0;
      for (std::int64_t b = 0; b < count; ++b) {  // without a branch, which would be taken at random
        const Key key = keys[b];
        const std::size_t place = merged_.hot_.place_of(key);
        const std::uint32_t is_hot = merged_.hot_[place] == key;
        left |= std::uint64_t{1 - is_hot} << b;
        if (per_key) {
          waiting_[waiting] = {position + b, place};
          waiting += is_hot;
        } else {
          const std::uint32_t before = to_.counts[place];
          to_.counts[place] = before + is_hot;
          if (is_hot > before) to_.firsts[place] = position + b;
        }
      }
      position_ = position + count;
      count_ = waiting;
      if (count_ >= kWaiting) combine_waiting();
      return left;
    }
    void finish() { combine_waiting(); }

   private:
    struct Waiting {
      std::int64_t i;
      std::size_t place;
    };
    static constexpr std::size_t kWaiting = 64;

    void combine_waiting() {
      for (std::size_t n = 0; n < count_; ++n) {
        const auto [i, place] = waiting_[n];
        const std::byte* const value = value_at(merged_.batch_.values, i);
        if (to_.counts[place]++ != 0) {
          merged_.combine_(to_.values + place, value, merged_.batch_.elements);
        } else {
          to_.firsts[place] = i;
          std::memcpy(to_.values + place, value, static_cast<std::size_t>(merged_.batch_.values.bytes));
        }
      }
      count_ = 0;
    }

    const MergedKeys& merged_;
    Aside& to_;
    std::int64_t position_;
    std::size_t count_ = 0;
    Waiting waiting_[kWaiting + Shares<Key>::kPass];
  };

  bool allocate() {
    const int parts = writer_parts(batch_.keys.count, view_);
    memory_ = WriterMemory<Key>::make(batch_.keys.count, batch_.inserted != nullptr, parts);
    aside_ = uninitialised<Aside>(parts);
    hot_batch_ = uninitialised<HotBatch>(1);
    for (int part = 0; part < parts; ++part) std::fill_n(aside_[part].counts, kPlaces, 0u);
    return memory_.has_value();
  }

  template <class Operation>
  void write_others(const Operation& operation) {
    const auto sieve_of = [&](int part, std::int64_t begin, std::int64_t) { return Sieve(*this, aside_[part], begin); };
    Stop* stop = batch_.stop;
    if (stop != nullptr && !make_room_for_left(*stop, memory_->shares.chunk())) stop = nullptr;
    write_shared<Purpose::kInsertion>(view_, batch_.keys, operation, batch_.inserted, *memory_, sieve_of, 0, stop);
  }

  template <class OperationOf>
  void write_hot(const OperationOf& operation_of) {
    HotBatch& to = hot_batch_[0];
    const std::int64_t count = list_hot();
    ApplyOrder order = batch_;
    order.keys = {to.keys, count, batch_.keys.bytes};
    order.values = {to.values, batch_.values.bytes, false};
    bool* const inserted = batch_.inserted == nullptr ? nullptr : to.inserted;
    write_range<Purpose::kInsertion>(view_, order.keys, operation_of(order), inserted, 0, count);
    if (batch_.inserted != nullptr)
      for (std::int64_t n = 0; n < count; ++n) batch_.inserted[to.firsts[n]] = to.inserted[n];
  }

  /// Returns how many there are.
  std::int64_t list_hot() {
    std::int64_t count = 0;
    for (std::size_t place = 0; place < kPlaces; ++place) count += list(place, count) ? 1 : 0;
    return count;
  }

  /// Lists a hot key as the n-th, if it has come.
  bool list(std::size_t place, std::int64_t n) {
    HotBatch& to = hot_batch_[0];
    std::byte* const value = reinterpret_cast<std::byte*>(to.values) + n * batch_.values.bytes;
    std::uint64_t sum = 0;
    for (std::size_t part = 0; part < memory_->tallies.size(); ++part) {
      const Aside& aside = aside_[part];
      if (aside.counts[place] == 0) continue;
      to.firsts[n] = sum == 0 ? aside.firsts[place] : std::min(to.firsts[n], aside.firsts[place]);
      if (!batch_.values.broadcast) {
        if (sum == 0)
          std::memcpy(value, aside.values + place, static_cast<std::size_t>(batch_.values.bytes));
        else
          combine_(value, aside.values + place, batch_.elements);
      }
      sum += aside.counts[place];
    }
    if (sum == 0) return false;
    store_word(to.keys, n, batch_.keys.bytes, hot_[place]);
    if (batch_.values.broadcast) {
      const auto times = static_cast<std::int64_t>(sum);
      repeat_values(batch_.dtype, batch_.op, batch_.values.data, batch_.elements, &times, 1, value);
    }
    return true;
  }

  const View view_;
  const ApplyOrder& batch_;
  const CombineFn combine_;
  HotPlaces<Key> hot_;
  std::optional<WriterMemory<Key>> memory_;
  std::unique_ptr<Aside[]> aside_;  // [parts]
  std::unique_ptr<HotBatch[]> hot_batch_;
};

}  // namespace gpuhash::host
