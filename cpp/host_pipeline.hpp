#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "host_simd.hpp"
#include "host_walk.hpp"

/// Walking along the probe sequences of many keys at once. A core can have some twenty lines under way from memory; one
/// walk after the other would have one.
namespace gpuhash::host {

/// Keys between asking for a line and looking at it. Rolling: groups would wait for their last line.
inline constexpr std::int64_t kAhead = 32;
/// Keys between two looks at the queues; a power of two.
inline constexpr std::int64_t kBlock = 16;
/// Walks that a queue keeps waiting for their line.
inline constexpr std::uint64_t kQueued = 16;

/// A table of at most this many bytes lies in the cache next to the core, whose latency other keys' work hides.
inline constexpr std::uint64_t kNearBytes = std::uint64_t{1} << 20;

template <class View>
bool is_near(const View& view) {
  return View::slot_bytes(view.geometry.bucket_count) <= kNearBytes;
}

/// First in, first out, without a check of its bounds. Not initialised: a batch of one key pays for one.
template <class T, std::uint64_t kSize>
class Queue {
 public:
  std::uint64_t size() const { return last_ - first_; }
  /// Without a branch, which would be taken at random.
  void push_if(bool wanted, const T& item) {
    new (at(last_)) T(item);
    last_ += wanted ? 1 : 0;
  }
  T pop() { return *at(first_++); }

 private:
  T* at(std::uint64_t n) { return reinterpret_cast<T*>(bytes_ + n % kSize * sizeof(T)); }

  alignas(64) std::byte bytes_[kSize * sizeof(T)];
  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
};

/// The keys of a batch, read by position.
template <class Key>
struct WholeKeys {
  const Key* data;
  Key operator[](std::int64_t i) const { return detail::load_whole<Key>(data + i); }
};
template <class Key>
struct AnyKeys {
  const void* data;
  std::int64_t bytes;
  Key operator[](std::int64_t i) const { return load_word<Key>(data, i, bytes); }
};

/// Which positions of the batch: all from `first` on, or those of a list.
struct FromPosition {
  std::int64_t first;
  std::int64_t operator[](std::int64_t n) const { return first + n; }
};
struct ListedPositions {
  const std::uint32_t* offsets;
  std::int64_t base;
  std::int64_t operator[](std::int64_t n) const { return base + offsets[n]; }
};

/// Takes every key to its place; keys that are equal get there in their order.
///
/// Home buckets are asked for kAhead keys early. A walk that has to go on, because its bucket is full and lacks the
/// key, waits in a queue for the bucket's filter byte, and if that tells it to go on, in a second queue for the next
/// bucket. Equal keys take the same steps, so they leave each queue in the order in which they came.
///
/// What comes of a walk is told to an object of this shape:
///
///   found(i, slot), absent(i)        kLookup, one of them once for each key i
///   looked(i, bucket, match)         kLookup, instead of these where the visitor has kEveryLook: at every bucket of
///   the
///                                    walk; `match` is the key's slot, if any, and what the last bucket shows counts
///   place(i, stored, slot, is_new)   kInsertion, once for each key; slot null: the table is full
///   left_region(i)                   kRegion: instead, where the walk would leave the key's region
template <Purpose kPurpose, bool kNear, class Simd, class View, class Keys, class Positions, class Visitor>
class Pipeline {
 public:
  using Key = typename View::Key;

  Pipeline(const View& view, Reach reach, const Keys& keys, const Positions& positions, Visitor& visitor)
      : view_(view), reach_(reach), keys_(keys), positions_(positions), visitor_(visitor) {}

  void run(std::int64_t count) {
    Queue<Probe<Key>, kAhead> homes;
    if constexpr (!kNear)
      for (std::int64_t n = 0; n < std::min(kAhead, count); ++n) ask_for_home(homes, n);
    for (std::int64_t n = 0; n < count;) {
      for (const std::int64_t stop = std::min(n + kBlock, count); n < stop; ++n) {
        const std::int64_t i = positions_[n];
        if constexpr (kNear) {
          look({Probe<Key>(keys_[i], view_.geometry), i});
        } else {
          const Probe<Key> probe = homes.pop();
          if (n + kAhead < count) ask_for_home(homes, n + kAhead);
          look({probe, i});
        }
      }
      work_off(kQueued);
    }
    work_off(0);
  }

  std::uint64_t new_filter_bits() const { return new_filter_bits_; }

 private:
  struct Walk {
    Probe<Key> probe;
    std::int64_t i;
  };
  using SlotType = typename View::SlotType;
  static constexpr bool kEveryLook = requires { Visitor::kEveryLook; };

  void ask_for_home(Queue<Probe<Key>, kAhead>& homes, std::int64_t n) {
    const Probe<Key> probe(keys_[positions_[n]], view_.geometry);
    prefetch_bucket(view_, probe.bucket());
    homes.push_if(true, probe);
  }

  /// Neither queue gets longer than kQueued + kBlock.
  void work_off(std::uint64_t rest) {
    while (at_filter_.size() > rest || at_bucket_.size() > rest) {
      while (at_filter_.size() > rest) go_on(at_filter_.pop());
      while (at_bucket_.size() > rest) look(at_bucket_.pop());
    }
  }

  void look(const Walk& walk) {
    SlotType* const bucket = bucket_at(view_, walk.probe.bucket());
    const auto match = Simd::template slots_with<View>(bucket, walk.probe.stored());
    const auto empty = Simd::template slots_with<View>(bucket, empty_key<Key>());
    const bool settled = match.any() | empty.any();
    if constexpr (kEveryLook) {
      visitor_.looked(walk.i, bucket, match);
    } else if constexpr (kPurpose == Purpose::kLookup) {
      if (match.any())
        visitor_.found(walk.i, match.first(bucket));
      else if (settled)
        visitor_.absent(walk.i);
    } else if (settled) {
      const bool is_new = !match.any();
      visitor_.place(walk.i, walk.probe.stored(), (is_new ? empty : match).first(bucket), is_new);
    }
    if constexpr (!kNear) {
      const void* const filter = view_.filters + walk.probe.bucket();
      __builtin_prefetch(settled ? bucket : filter);  // the bucket has come already
    }
    at_filter_.push_if(!settled, walk);
  }

  /// The bucket is full and had not the key.
  void go_on(Walk walk) {
    std::uint8_t& filter = view_.filters[walk.probe.bucket()];
    bool goes_on = (filter & walk.probe.filter_bit()) != 0;
    if constexpr (kPurpose == Purpose::kInsertion) {
      // Where an erased slot is free, or was and has been given to an equal key, the walk is done from its beginning.
      SlotType* const bucket = bucket_at(view_, walk.probe.bucket());
      const auto erased = Simd::template slots_with<View>(bucket, erased_key<Key>());
      const auto match = Simd::template slots_with<View>(bucket, walk.probe.stored());
      if (erased.any() | match.any()) return walk_anew(walk.i);
      new_filter_bits_ += goes_on ? 0 : 1;
      filter |= walk.probe.filter_bit();
      goes_on = true;
    }
    if (goes_on) {
      if (reach_ == Reach::kRegion && walk.probe.at_last_hop_in_region()) return visitor_.left_region(walk.i);
      if (walk.probe.exhausted(view_.geometry)) {
        if constexpr (kPurpose == Purpose::kInsertion)
          visitor_.place(walk.i, walk.probe.stored(), static_cast<SlotType*>(nullptr), false);
        else if constexpr (!kEveryLook)
          visitor_.absent(walk.i);
        return;
      }
    } else if constexpr (kPurpose == Purpose::kLookup && !kEveryLook) {
      visitor_.absent(walk.i);
    }
    walk.probe.next(view_.geometry);
    if constexpr (!kNear)
      if (goes_on) prefetch_bucket(view_, walk.probe.bucket());
    at_bucket_.push_if(goes_on, walk);
  }

  void walk_anew(std::int64_t i) {
    const Probe<Key> probe(keys_[i], view_.geometry);
    const auto place = host::walk<kPurpose>(view_, reach_, probe);
    new_filter_bits_ += place.new_filter_bits;
    if (place.left_region) return visitor_.left_region(i);
    visitor_.place(i, probe.stored(), place.match != nullptr ? place.match : place.vacant,
                   place.match == nullptr && place.vacant != nullptr);
  }

  const View& view_;
  const Reach reach_;
  const Keys keys_;
  const Positions positions_;
  Visitor& visitor_;
  std::uint64_t new_filter_bits_ = 0;
  Queue<Walk, 2 * (kQueued + kBlock)> at_filter_;
  Queue<Walk, 2 * (kQueued + kBlock)> at_bucket_;
};

/// Runs a pipeline that fits the table's size and the keys' width. Returns the filter bits that it has set.
template <Purpose kPurpose, class View, class Positions, class Visitor>
std::uint64_t walk_each(const View& view, Reach reach, const KeyBatch& batch, const Positions& positions,
                        std::int64_t count, Visitor& visitor) {
  using Key = typename View::Key;
  std::uint64_t new_filter_bits = 0;
  with_simd([&](auto simd) {
    const auto run = [&]<bool kNear>(const auto& keys, std::bool_constant<kNear>) {
      Pipeline<kPurpose, kNear, decltype(simd), View, std::remove_cvref_t<decltype(keys)>, Positions, Visitor> pipeline(
          view, reach, keys, positions, visitor);
      pipeline.run(count);
      new_filter_bits = pipeline.new_filter_bits();
    };
    if (batch.bytes != sizeof(Key))
      run(AnyKeys<Key>{batch.data, batch.bytes}, std::false_type{});
    else if (is_near(view))
      run(WholeKeys<Key>{static_cast<const Key*>(batch.data)}, std::true_type{});
    else
      run(WholeKeys<Key>{static_cast<const Key*>(batch.data)}, std::false_type{});
  });
  return new_filter_bits;
}

}  // namespace gpuhash::host
