#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "host/parallel.hpp"
#include "host/simd/simd.hpp"
#include "host/walk/batch_keys.hpp"
#include "host/walk/homes.hpp"
#include "host/walk/owners.hpp"
#include "shared/layout.hpp"

namespace gpuhash::host {

/// Fewer keys than these per thread are not worth waking it for. Writers wake it twice, and where a cache holds the
/// table a thread alone is fast.
inline constexpr std::int64_t kKeysPerWriter = 1 << 15;
inline constexpr std::int64_t kKeysPerWriterInCache = 1 << 16;
inline constexpr std::int64_t kCacheBytes = std::int64_t{1} << 26;

template <class View>
int writer_parts(std::int64_t count, const View& view) {
  const auto bytes = static_cast<std::int64_t>(View::slot_bytes(view.geometry.bucket_count));
  const std::int64_t least = bytes > kCacheBytes ? kKeysPerWriter : kKeysPerWriterInCache;
  if (count < 2 * least) return 1;
  return static_cast<int>(
      std::min<std::int64_t>({thread_count(), count / least, view.geometry.region_count, kMostWriters}));
}

/// One bit per key of a batch; threads set bits of the same word.
class Marks {
 public:
  explicit Marks(std::int64_t count) : words_(scratch<std::uint64_t>((count + 63) / 64)) {}

  void set(std::int64_t i) {
    std::atomic_ref(words_[static_cast<std::size_t>(i / 64)])
        .fetch_or(std::uint64_t{1} << (i % 64), std::memory_order_relaxed);
  }
  /// Calls body(i) for every mark, in order, and removes it.
  template <class Body>
  void take_each(Body body) {
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::uint64_t rest = std::exchange(words_[w], 0); rest != 0; rest &= rest - 1)
        body(static_cast<std::int64_t>(w * 64) + std::countr_zero(rest));
  }

 private:
  std::vector<std::uint64_t> words_;
};

/// Leaves all keys: what Shares::deal() takes where nothing is set aside.
struct NoSieve {
  template <class Key>
  std::uint64_t pass(const Key*, std::int64_t count) const {
    return ~std::uint64_t{0} >> (64 - count);
  }
  void finish() const {}
};

/// Deals the keys of a chunk of a batch out to the threads that own their regions. Every thread deals a part of the
/// chunk.
///
/// Of one or two owners each gets a bit for every key of the chunk, and picks its keys by these, some thousands at a
/// time: so little is written that other threads read. Of more, each gets a list from every part, as looking at all
/// bits would take it too long. Lists have keys and positions: to fetch every other key by its position took an owner 2
/// of 14 ns a key.
template <class Key>
class Shares {
 public:
  /// Keys in a chunk, at least: enough of them for each thread that starting it does not show, few enough that they and
  /// the lists stay in cache until they are read.
  static constexpr std::int64_t kChunk = std::int64_t{1} << 18;

  Shares(std::int64_t count, int parts)
      : chunk_(std::min(count, std::max(kChunk, parts * 2 * kKeysPerWriter))),
        parts_(parts),
        // A list may get all of its part, and one key more is written. What it does not get is never touched, so no
        // memory is needed for it.
        room_(picks() ? kPicked + kAtOnce : (mask_words() / parts + 1) * 64 + 1),
        masks_(scratch<std::uint64_t>(picks() ? parts * mask_words() : 0)),
        keys_(uninitialised<Key>(room_ * list_count())),
        offsets_(uninitialised<std::uint32_t>(room_ * list_count())),
        sizes_(scratch<std::int64_t>(picks() ? 0 : list_count())) {}

  std::int64_t chunk() const { return chunk_; }

  /// Keys that a sieve is asked about together, at most.
  static constexpr std::int64_t kPass = 64;

  /// sieve_of(part, begin, end) gives a sieve for positions [begin, end) of the batch. Its pass(keys, count) returns a
  /// bit for each of up to kPass keys, which come in order, set for those that it leaves; finish() ends it.
  template <class SieveOf>
  void deal(const Geometry& geometry, const KeyRun& chunk, const SieveOf& sieve_of) {
    for_each_part((chunk.count + 63) / 64, parts_, [&](int part, std::int64_t first, std::int64_t last) {
      const std::int64_t begin = first * 64;
      const std::int64_t end = std::min(last * 64, chunk.count);
      auto sieve = sieve_of(part, chunk.base + begin, chunk.base + end);
      Lists lists(*this, part);
      for (std::int64_t n = begin; n < end; n += kPiece) {
        const std::int64_t size = std::min(kPiece, end - n);
        Key keys[kPiece];
        copy_keys(chunk, n, size, keys);
        std::uint64_t left[kPiece / kPass];
        for (std::int64_t k = 0; k < size; k += kPass)
          left[k / kPass] = sieve.pass(keys + k, std::min(size - k, kPass));
        deal_piece(geometry, keys, left, n, size, lists);
      }
      sieve.finish();
      lists.finish();
    });
  }

  /// Calls body(keys) for lists of the owner's keys in the chunk, in order.
  template <class Body>
  void for_each_list(const KeyRun& chunk, int owner, const Body& body) {
    if (picks()) {
      for (std::int64_t n = 0; n < chunk.count; n += kPicked)
        body(list(owner, chunk.base, pick(chunk, owner, n, std::min(n + kPicked, chunk.count))));
    } else {
      for (int number = owner; number < list_count(); number += parts_)
        body(list(number, chunk.base, sizes_[static_cast<std::size_t>(number)]));
    }
  }

  /// Calls body(keys) for lists of the keys at these marks, in order. The owners' lists have been read.
  template <class Body>
  void for_each_list_of(Marks& marks, const KeyRun& chunk, const Body& body) {
    std::int64_t size = 0;
    marks.take_each([&](std::int64_t n) {
      copy_keys(chunk, n, 1, keys_.get() + size);
      offsets_[static_cast<std::size_t>(size)] = static_cast<std::uint32_t>(n);
      if (++size == room_) body(list(0, chunk.base, std::exchange(size, 0)));
    });
    if (size != 0) body(list(0, chunk.base, size));
  }

 private:
  static constexpr std::int64_t kPiece = 512;
  /// Keys that are looked at for a list, where owners pick them.
  static constexpr std::int64_t kPicked = std::int64_t{1} << 14;
  /// Items that are written together; those behind the last one of a list get anything.
  static constexpr std::int64_t kAtOnce = 8;

  bool picks() const { return parts_ <= 2; }
  int list_count() const { return picks() ? parts_ : parts_ * parts_; }
  /// Words with a bit for every key of the chunk.
  std::int64_t mask_words() const { return (chunk_ + 63) / 64; }
  std::uint64_t* masks_of(int owner) { return masks_.data() + owner * mask_words(); }

  KeyRun list(int number, std::int64_t base, std::int64_t size) const {
    return {reinterpret_cast<const std::byte*>(keys_.get() + number * room_), sizeof(Key), size, base,
            offsets_.get() + number * room_};
  }

  /// The ends of the lists of one part: on the stack, as in sizes_ they would share a line with other threads'.
  struct Lists {
    Lists(Shares& of, int part) : shares(of), first(of.picks() ? 0 : part * of.parts_), owners(of.owners()) {
      for (int owner = 0; owner < shares.parts_; ++owner) ends[owner] = (first + owner) * shares.room_;
    }
    void finish() {
      if (shares.picks()) return;
      for (int owner = 0; owner < shares.parts_; ++owner)
        shares.sizes_[static_cast<std::size_t>(first + owner)] = ends[owner] - (first + owner) * shares.room_;
    }

    Shares& shares;
    int first;
    Owners owners;
    std::int64_t ends[kMostWriters] = {};
  };
  Owners owners() const { return Owners(static_cast<std::uint32_t>(parts_)); }

  /// Deals `size` keys out, the first of which is the chunk's n-th: those whose bits in `left` are set.
  void deal_piece(const Geometry& geometry, const Key* keys, const std::uint64_t* left, std::int64_t n,
                  std::int64_t size, Lists& lists) {
    if (parts_ == 1) {
      std::copy_n(left, (size + 63) / 64, masks_of(0) + n / 64);
      return;
    }
    alignas(64) std::uint32_t regions[kPiece];
    with_simd([&]<class Simd>(Simd simd) {
      regions_of(simd, keys, size, geometry, regions);
      if (parts_ == 2) deal_to_two<Simd>(left, regions, n, size);
    });
    if (parts_ > 2) deal_to_all(keys, left, regions, n, size, lists);
  }

  template <class Simd>
  void deal_to_two(const std::uint64_t* left, const std::uint32_t* regions, std::int64_t n, std::int64_t size) {
    for (std::int64_t of_word = 0; of_word * 64 < size; ++of_word, regions += 64) {
      std::uint64_t odd = 0;
      for (int eight = 0; eight < 64; eight += 8) odd |= std::uint64_t{Simd::odd_of(regions + eight)} << eight;
      masks_of(0)[n / 64 + of_word] = left[of_word] & ~odd;
      masks_of(1)[n / 64 + of_word] = left[of_word] & odd;
    }
  }

  void deal_to_all(const Key* keys, const std::uint64_t* left, const std::uint32_t* regions, std::int64_t n,
                   std::int64_t size, Lists& lists) {
    for (std::int64_t j = 0; j < size; ++j) {
      std::int64_t& to = lists.ends[lists.owners.of(regions[j])];
      keys_[static_cast<std::size_t>(to)] = keys[j];
      offsets_[static_cast<std::size_t>(to)] = static_cast<std::uint32_t>(n + j);
      to += static_cast<std::int64_t>(left[j / 64] >> (j % 64) & 1);
    }
  }

  /// Lists those of keys [begin, end) of a chunk that are the owner's, and returns how many they are.
  std::int64_t pick(const KeyRun& chunk, int owner, std::int64_t begin, std::int64_t end) {
    const std::uint64_t* const masks = masks_of(owner);
    std::int64_t size = owner * room_;
    for (std::int64_t n = begin; n < end; n += 64) {
      Key keys[64];
      copy_keys(chunk, n, std::min<std::int64_t>(64, end - n), keys);
      with_simd([&]<class Simd>(Simd) {
        std::uint64_t mask = masks[n / 64];
        for (std::int64_t b = 0; b < 64; b += kAtOnce, mask >>= kAtOnce) {
          const auto bits = static_cast<std::uint32_t>(mask & 0xff);
          Simd::store_chosen(bits, keys + b, keys_.get() + size);
          Simd::store_numbers(bits, static_cast<std::uint32_t>(n + b), offsets_.get() + size);
          size += std::popcount(bits);
        }
      });
    }
    return size - owner * room_;
  }

  std::int64_t chunk_;
  int parts_;
  std::int64_t room_;                         // of each list
  std::vector<std::uint64_t> masks_;          // [owner, mask_words()], where owners pick their keys
  std::unique_ptr<Key[]> keys_;               // [owner, room], or [part, owner, room]
  std::unique_ptr<std::uint32_t[]> offsets_;  // likewise
  std::vector<std::int64_t> sizes_;           // [part, owner], where owners get lists
};

}  // namespace gpuhash::host
