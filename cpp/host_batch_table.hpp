#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>

#include "first_occurrence.hpp"
#include "host_parallel.hpp"
#include "host_walk.hpp"
#include "key_numbers.hpp"
#include "set_routines.hpp"

/// The batch table on the host: threads take chunks of the batch in order and insert together.
namespace gpuhash::host {

/// A multiple of 32, so that no two chunks share a word of first bits.
inline constexpr std::int64_t kChunk = std::int64_t{1} << 14;
/// Keys whose slots are being fetched.
inline constexpr std::int64_t kFetched = 32;

/// Calls body(begin, end) for chunks of [0, count), roughly in order, on several threads.
template <class Body>
void for_each_chunk(std::int64_t count, Body body) {
  parallel_for(static_cast<int>((count + kChunk - 1) / kChunk), [&](int chunk) {
    const std::int64_t begin = chunk * kChunk;
    body(begin, std::min(count, begin + kChunk));
  });
}

/// Reads keys in their canonical form.
template <class Key>
class KeyReader {
 public:
  explicit KeyReader(const NumberKeys& keys)
      : data_(keys.data), bytes_(keys.bytes()), format_(number_format(keys.dtype, keys.elements)) {}

  Key operator[](std::int64_t i) const { return canonical(load_word<Key>(data_, i, bytes_), format_); }
  Key raw(std::int64_t i) const { return load_word<Key>(data_, i, bytes_); }
  std::int64_t bytes() const { return bytes_; }
  const NumberFormat& format() const { return format_; }

 private:
  const void* data_;
  std::int64_t bytes_;
  NumberFormat format_;
};

template <class Key>
class BatchTable {
 public:
  /// A position in a slot: as wide as the key, so that slots stay small.
  using Place = std::conditional_t<sizeof(Key) == 4, std::uint32_t, std::uint64_t>;
  static constexpr Place kEmpty = ~Place{0};
  static constexpr Place kClaimed = kEmpty - 1;  // a thread is writing the key

  struct Slot {
    Key key;
    Place first;
  };

  BatchTable(DeviceContext& context, std::int64_t slots)
      : memory_(context, static_cast<std::size_t>(slots) * sizeof(Slot), nullptr), slots_(slots) {
    for_each_chunk(slots, [&](std::int64_t begin, std::int64_t end) {
      std::memset(static_cast<void*>(data() + begin), 0xff, static_cast<std::size_t>(end - begin) * sizeof(Slot));
    });
  }

  std::int64_t slots() const { return slots_; }
  std::int64_t home(const Key& key) const {
    return static_cast<std::int64_t>(multiply_high(hash_key(key), static_cast<std::uint64_t>(slots_)));
  }
  void prefetch(std::int64_t slot) const { __builtin_prefetch(data() + slot, 1); }

  struct Found {
    bool ok;         // false: the probe sequence was too long
    bool first;      // no smaller position of the key has been met so far
    Place position;  // not first: a smaller one; first: the one that was displaced, or kEmpty
  };

  /// Puts position i of the key into the table.
  Found insert(const Key& key, std::int64_t slot, Place i, std::int64_t max_probes) {
    for (std::int64_t probes = 0; probes < max_probes; ++probes) {
      Slot& here = data()[slot];
      std::atomic_ref first(here.first);
      Place seen = first.load(std::memory_order_acquire);
      while (seen >= kClaimed) {
        if (seen == kEmpty) {
          if (!first.compare_exchange_weak(seen, kClaimed, std::memory_order_acquire)) continue;
          here.key = key;
          first.store(i, std::memory_order_release);
          return {true, true, kEmpty};
        }
        std::this_thread::yield();  // for the few instructions that it takes to write a key
        seen = first.load(std::memory_order_acquire);
      }
      if (here.key == key) {
        while (seen > i)
          if (first.compare_exchange_weak(seen, i, std::memory_order_acq_rel)) return {true, true, seen};
        return {true, false, seen};
      }
      if (++slot == slots_) slot = 0;
    }
    return {false, false, kEmpty};
  }

  /// No thread inserts meanwhile.
  bool contains(const Key& key, std::int64_t slot) const {
    for (std::int64_t probes = 0; probes < slots_; ++probes) {
      const Slot& here = data()[slot];
      if (here.first == kEmpty) return false;
      if (here.key == key) return true;
      if (++slot == slots_) slot = 0;
    }
    return false;
  }

 private:
  Slot* data() const { return memory_.template as<Slot>(); }

  Allocation memory_;
  std::int64_t slots_;
};

/// Calls body(i, key, home slot) for i in [begin, end), in order, while the slots to come are being fetched.
template <class Key, class Body>
void for_each_home(const BatchTable<Key>& table, const KeyReader<Key>& keys, std::int64_t begin, std::int64_t end,
                   Body body) {
  struct Pending {
    Key key;
    std::int64_t slot;
  };
  Pending ring[kFetched];
  const auto fetch = [&](std::int64_t i) {
    Pending& pending = ring[i % kFetched];
    pending.key = keys[i];
    pending.slot = table.home(pending.key);
    table.prefetch(pending.slot);
  };
  for (std::int64_t i = begin; i < std::min(end, begin + kFetched); ++i) fetch(i);
  for (std::int64_t i = begin; i < end; ++i) {
    const Pending pending = ring[i % kFetched];
    if (i + kFetched < end) fetch(i + kFetched);
    body(i, pending.key, pending.slot);
  }
}

}  // namespace gpuhash::host
