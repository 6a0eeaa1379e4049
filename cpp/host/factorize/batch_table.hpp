#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>

#include <gpuhash/factorization.hpp>
#include "core/random_seed.hpp"
#include "host/factorize/key_reader.hpp"
#include "host/parallel.hpp"
#include "shared/first_occurrence.hpp"
#include "shared/key_numbers.hpp"

/// The batch table on the host: threads take chunks of the batch in order and insert together.
namespace gpuhash::host {

/// Keys whose slots are being fetched; those of one word of first bits.
inline constexpr std::int64_t kFetched = 32;

template <class Key>
class BatchTable {
 public:
  /// A position in a slot: as wide as the key, so that slots stay small.
  using FirstPosition = std::conditional_t<sizeof(Key) == 4, std::uint32_t, std::uint64_t>;
  static constexpr FirstPosition kEmpty = ~FirstPosition{0};
  static constexpr FirstPosition kClaimed = kEmpty - 1;  // a thread is writing the key

  struct Slot {
    Key key;
    FirstPosition first;
  };

  /// Probe sequences begin at every so many slots, which are a cache line.
  static constexpr std::int64_t kLine = 64 / sizeof(Slot);

  BatchTable(DeviceContext& context, std::int64_t slots)
      : memory_(context, static_cast<std::size_t>((slots + kLine - 1) / kLine * kLine) * sizeof(Slot), nullptr),
        slots_((slots + kLine - 1) / kLine * kLine) {
    for_each_chunk(slots_, [&](std::int64_t begin, std::int64_t end) {
      std::memset(static_cast<void*>(data() + begin), 0xff, static_cast<std::size_t>(end - begin) * sizeof(Slot));
    });
  }

  std::int64_t slots() const { return slots_; }
  std::int64_t home(const Key& key) const {
    return static_cast<std::int64_t>(multiply_high(hash_key(key, seed_), static_cast<std::uint64_t>(slots_ / kLine))) *
           kLine;
  }
  void prefetch(std::int64_t slot) const { __builtin_prefetch(data() + slot, 1); }

  struct Found {
    bool ok;                 // false: the probe sequence was too long
    bool first;              // no smaller position of the key has been met so far
    FirstPosition position;  // not first: a smaller one; first: the one that was displaced, or kEmpty
  };

  /// Puts position i of the key into the table. `slot` is the key's home.
  Found insert(const Key& key, std::int64_t slot, FirstPosition i, std::int64_t max_probes) {
    // Mostly the key is there, in its first line. All of it is compared without a branch: which of the slots it is
    // would often be predicted wrong.
    Slot* const line = data() + slot;
    std::uint32_t match = 0;
    std::uint32_t open = 1u << kLine;  // slots that hold no key, or none yet; and the one after the line
#pragma GCC unroll 8
    for (int s = 0; s < kLine; ++s) {
      const bool taken = load_first(line[s]) < kClaimed;
      match |= static_cast<std::uint32_t>(taken & equals(line[s], key)) << s;
      open |= static_cast<std::uint32_t>(!taken) << s;
    }
    if (match != 0) return meet(line[std::countr_zero(match)], i);

    slot += std::countr_zero(open);
    if (slot == slots_) slot = 0;
    for (std::int64_t probes = 0; probes < max_probes; ++probes) {
      Slot& here = data()[slot];
      std::atomic_ref first(here.first);
      FirstPosition seen = first.load(std::memory_order_acquire);
      while (seen >= kClaimed) {
        if (seen == kEmpty) {
          if (!first.compare_exchange_weak(seen, kClaimed, std::memory_order_acquire)) continue;
          put(here, key);
          first.store(i, std::memory_order_release);
          return {true, true, kEmpty};
        }
        std::this_thread::yield();  // for the few instructions that it takes to write a key
        seen = first.load(std::memory_order_acquire);
      }
      if (equals(here, key)) return meet(here, i);
      if (++slot == slots_) slot = 0;
    }
    return {false, false, kEmpty};
  }

  /// The key's first position, kEmpty where it is not there. No thread inserts meanwhile.
  FirstPosition find(const Key& key, std::int64_t slot) const {
    const Slot* const line = data() + slot;
    std::uint32_t match = 0;
#pragma GCC unroll 8
    for (int s = 0; s < kLine; ++s)
      match |= static_cast<std::uint32_t>((line[s].first != kEmpty) & (line[s].key == key)) << s;
    if (match != 0) return line[std::countr_zero(match)].first;
    for (std::int64_t probes = 0; probes < slots_; ++probes) {
      const Slot& here = data()[slot];
      if (here.first == kEmpty || here.key == key) return here.first;
      if (++slot == slots_) slot = 0;
    }
    return kEmpty;
  }

 private:
  Slot* data() const { return memory_.template as<Slot>(); }

  static FirstPosition load_first(Slot& slot) { return std::atomic_ref(slot.first).load(std::memory_order_acquire); }

  /// The slot holds the key of position i.
  static Found meet(Slot& slot, FirstPosition i) {
    std::atomic_ref first(slot.first);
    FirstPosition seen = first.load(std::memory_order_acquire);
    while (seen > i)
      if (first.compare_exchange_weak(seen, i, std::memory_order_acq_rel)) return {true, true, seen};
    return {true, false, seen};
  }

  /// By atomic words: the line is compared while other threads may be writing keys. What counts is only what stands
  /// beside a position, which is stored after the key.
  static bool equals(Slot& slot, const Key& key) {
    const auto load = [](auto& word) { return std::atomic_ref(word).load(std::memory_order_relaxed); };
    if constexpr (sizeof(Key) == 16)
      return ((load(slot.key.low) ^ key.low) | (load(slot.key.high) ^ key.high)) == 0;
    else
      return load(slot.key) == key;
  }
  static void put(Slot& slot, const Key& key) {
    const auto store = [](auto& word, auto value) { std::atomic_ref(word).store(value, std::memory_order_relaxed); };
    if constexpr (sizeof(Key) == 16) {
      store(slot.key.low, key.low);
      store(slot.key.high, key.high);
    } else {
      store(slot.key, key);
    }
  }

  Allocation memory_;
  std::int64_t slots_;
  std::uint64_t seed_ = random_seed();  // no answer depends on it, and nobody can pick keys that meet
};

/// Calls body(i, key, home slot) for i in [begin, end), in order, while the slots to come are being fetched, and
/// end_word(w, answers) after every 32 positions, with a bit for each that body answered true to. `begin` is a multiple
/// of 32.
template <class Key, class Reader, class Body, class EndWord>
void for_each_home(const BatchTable<Key>& table, const Reader& keys, std::int64_t begin, std::int64_t end, Body body,
                   EndWord end_word) {
  struct Pending {
    Key key;
    std::int64_t slot;
  };
  Pending ring[kFetched];
  const auto fetch = [&](std::int64_t i) {
    const Key key = keys[i];
    const std::int64_t slot = table.home(key);
    table.prefetch(slot);
    return Pending{key, slot};
  };
  for (std::int64_t i = begin; i < std::min(end, begin + kFetched); ++i) ring[i - begin] = fetch(i);
  for (std::int64_t base = begin; base < end; base += kFetched) {
    std::uint32_t answers = 0;
    const auto turn = [&](std::int64_t j, const Pending& pending) {
      answers |= static_cast<std::uint32_t>(body(base + j, pending.key, pending.slot)) << j;
    };
    if (base + 2 * kFetched <= end) {
      for (std::int64_t j = 0; j < kFetched; ++j) {
        const Pending pending = ring[j];
        ring[j] = fetch(base + kFetched + j);
        turn(j, pending);
      }
    } else {
      for (std::int64_t j = 0; j < std::min(kFetched, end - base); ++j) {
        const Pending pending = ring[j];
        if (base + kFetched + j < end) ring[j] = fetch(base + kFetched + j);
        turn(j, pending);
      }
    }
    end_word(base / 32, answers);
  }
}

}  // namespace gpuhash::host
