#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <gpuhash/error.hpp>
#include "host/parallel.hpp"
#include "host/walk/batch_keys.hpp"
#include "host/walk/pipeline.hpp"
#include "host/walk/shares.hpp"
#include "shared/probe_sequence.hpp"

/// How the host executor shares a batch out among threads.
///
/// Readers take a contiguous part of the batch each. Writers own *regions*, taking turns ("owner computes"): the batch
/// is first dealt out to their owners, in order, and then every thread acts on the keys of its regions. So no two
/// threads write to the same bucket or filter byte, and a key's duplicates meet in batch order. The few keys whose walk
/// would leave their region are put aside and done by one thread afterwards, in batch order too: once a walk leaves its
/// region, every later walk of that key does (inserting makes no slot free, erasing makes no full bucket look empty),
/// so all duplicates of such a key are put aside together.
namespace gpuhash::host {

/// The first keys of a batch that several threads share, which one of them takes: see write_each().
inline constexpr std::int64_t kFirstPiece = std::int64_t{1} << 11;

/// What a thread has changed; added to Control at the end. Differences wrap.
struct Tally {
  std::uint64_t size = 0;
  std::uint64_t filter_bits = 0;
  std::uint64_t far_keys = 0;
  std::uint64_t erased = 0;
  std::uint64_t dropped = 0;

  void add(const Passed& passed) {
    filter_bits += passed.filter_bits;
    far_keys += passed.far_keys;
  }

  /// To Control or another tally.
  template <class Total>
  void add_to(Total& total) const {
    total.size += size;
    total.filter_bits += filter_bits;
    total.far_keys += far_keys;
    total.erased += erased;
    total.dropped += dropped;
  }
};

/// A flag for each key of a batch that tells whether it was new, or there; unless nobody asks.
class Flags {
 public:
  /// flags[i] is that of the key at i; or null.
  explicit Flags(bool* flags) : flags_(flags) {}
  /// Of a chunk: part[n] is that of the key at first + n, where `first` is even and the address of `part` odd. It is
  /// kept as the address that the batch's first one would have, which is never null: to subtract for each key took 0.6
  /// of 7.0 ns.
  Flags(bool* part, std::int64_t first)
      : flags_(reinterpret_cast<bool*>(reinterpret_cast<std::uintptr_t>(part) - static_cast<std::uintptr_t>(first))) {}

  void set(std::int64_t i, bool flag) const {
    if (flags_ != nullptr) flags_[i] = flag;
  }

 private:
  bool* flags_;
};

/// What a pipeline tells, passed on to the batch's operation together with the thread's tally.
template <class Operation>
struct Writer {
  static constexpr bool kHot = requires { requires Operation::kHot; };

  Operation operation;
  Flags flags;
  Tally tally{};
  Marks* put_aside = nullptr;
  std::int64_t base = 0;

  template <class Slot>
  void found(std::int64_t i, Slot* slot, bool any_empty)
    requires requires(Operation& of, Tally& to) { of.found(slot, any_empty, to); }
  {
    flags.set(i, true);
    operation.found(slot, any_empty, tally);
  }
  void absent(std::int64_t i) { flags.set(i, false); }
  [[gnu::always_inline]] void ask(std::int64_t i) const
    requires requires(const Operation& of) { of.ask(i); }
  {
    operation.ask(i);
  }
  template <class Key, class Slot>
  void write(std::int64_t i, const Key& stored, Slot* slot, bool is_new)
    requires requires(Operation& of) { of.write(i, stored, slot, is_new); }
  {
    flags.set(i, is_new);
    tally.size += is_new ? 1 : 0;
    tally.dropped += slot == nullptr ? 1 : 0;
    operation.write(i, stored, slot, is_new);
  }
  void left_region(std::int64_t i) { put_aside->set(i - base); }
  /// To be called when all keys have come.
  void finish() {
    if constexpr (requires { operation.finish(); }) operation.finish();
  }
};

/// Scratch memory of writers that share a batch.
template <class Key>
struct WriterMemory {
  Shares<Key> shares;
  Marks put_aside;
  std::vector<Tally> tallies;
  /// Of the second of two owners, whose keys lie among those of the first: a line that both wrote flags to would go
  /// back and forth between them. [1 + shares.chunk()], false between chunks; null where they are more, or nobody asks.
  std::unique_ptr<bool[]> second_flags;

  /// Nothing where there is none. flagged: are there flags?
  static std::optional<WriterMemory> make(std::int64_t count, bool flagged, int parts) {
    try {
      Shares<Key> shares(count, parts);
      Marks put_aside(shares.chunk());
      auto second_flags = flagged && parts == 2 ? uninitialised<bool>(1 + shares.chunk()) : nullptr;
      if (second_flags != nullptr) std::fill_n(second_flags.get(), 1 + shares.chunk(), false);
      return WriterMemory{std::move(shares), std::move(put_aside), scratch<Tally>(parts), std::move(second_flags)};
    } catch (const OutOfMemoryError&) {
      return std::nullopt;
    }
  }

  /// Those of an owner, for the chunk that begins at `base`.
  Flags flags_of(int owner, bool* flags, std::int64_t base) const {
    return owner == 1 && second_flags != nullptr ? Flags(second_flags.get() + 1, base) : Flags(flags);
  }

  /// Puts the second owner's flags of a chunk to the first one's.
  void join_flags(bool* flags, std::int64_t base, std::int64_t count) {
    if (second_flags == nullptr) return;
    for_each_part(count, 2, [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) flags[base + n] |= std::exchange(second_flags[1 + n], false);
    });
  }
};

/// False where there is no memory for so many keys.
inline bool make_room_for_left(Stop& stop, std::int64_t keys) {
  try {
    scratch_may_fail();
    stop.left.reserve(static_cast<std::size_t>(keys));
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

/// The keys that may still come far from home before they seem picked for it.
template <class View>
std::uint64_t most_far_keys(const View& view) {
  return kManyFarKeys - std::min(kManyFarKeys, view.control->far_keys);
}

/// The keys from `first` on; the sieves are Shares::deal()'s. flags [n] or null; false where a sieve sets a key aside.
/// stop: as write_each()'s. It gets the keys of a chunk that are left as well, for which it has room.
template <Purpose kPurpose, class View, class Operation, class SieveOf>
void write_shared(const View& view, const KeyBatch& keys, const Operation& operation, bool* flags,
                  WriterMemory<typename View::Key>& memory, const SieveOf& sieve_of, std::int64_t first = 0,
                  Stop* stop = nullptr) {
  const auto parts = static_cast<int>(memory.tallies.size());
  const auto begin_part = [&](int part, std::int64_t begin, std::int64_t end) {
    if (flags != nullptr) std::fill(flags + begin, flags + end, false);
    return sieve_of(part, begin, end);
  };
  for (std::int64_t base = first, end; base < keys.count; base = end) {
    interruption_point();
    end = std::min(keys.count, base + memory.shares.chunk());
    const KeyRun chunk = run_of(keys, base, end);
    memory.shares.deal(view.geometry, chunk, begin_part);
    parallel_for(parts, [&](int owner) {
      Writer<Operation> writer{operation, memory.flags_of(owner, flags, base), {}, &memory.put_aside, base};
      memory.shares.for_each_list(chunk, owner, [&](const KeyRun& list) {
        writer.tally.add(walk<kPurpose>(view, Reach::kRegion, list, writer));
      });
      writer.finish();
      memory.tallies[static_cast<std::size_t>(owner)] = writer.tally;
    });
    memory.join_flags(flags, base, end - base);
    for (const Tally& tally : memory.tallies) tally.add_to(*view.control);
    // No key comes far within its region: where keys are picked to meet, they have all been put aside.
    const std::uint64_t most_far = stop != nullptr ? most_far_keys(view) : kAnyFarKeys;
    Writer<Operation> last{operation, Flags(flags)};
    memory.shares.for_each_list_of(memory.put_aside, chunk, [&](const KeyRun& list) {
      const std::uint64_t most = most_far - std::min(most_far, last.tally.far_keys);
      const Passed passed = walk<kPurpose>(view, Reach::kTable, list, last, most);
      last.tally.add(passed);
      for (std::int64_t n = passed.keys; n < list.count; ++n) stop->left.push_back(base + list.offsets[n]);
    });
    last.finish();
    last.tally.add_to(*view.control);
    if (stop != nullptr && most_far_keys(view) == 0) {
      stop->done = end;
      return;
    }
  }
}

/// Keys [begin, end) of a batch, by one thread. Returns the end of those that are done: may_stop, see write_each().
template <Purpose kPurpose, class View, class Operation>
std::int64_t write_range(const View& view, const KeyBatch& keys, const Operation& operation, bool* flags,
                         std::int64_t begin, std::int64_t end, bool may_stop = false) {
  Writer<Operation> writer{operation, Flags(flags)};
  const std::uint64_t most_far = may_stop ? most_far_keys(view) : kAnyFarKeys;
  const Passed passed = walk<kPurpose>(view, Reach::kTable, run_of(keys, begin, end), writer, most_far);
  writer.tally.add(passed);
  writer.finish();
  writer.tally.add_to(*view.control);
  return begin + passed.keys;
}

/// Performs an operation on every key of the batch: on keys that are equal in batch order, on others in any order and
/// on several threads. Adds to the table's control, also where it is interrupted: then it has been performed on a first
/// part of the batch. Without scratch memory one thread does it all. flags [n] or null: was the key new (kInsertion),
/// or there (kLookup)? The operation has
///
///   found(slot, any_empty, tally)     kLookup, for each key that is there
///   write(i, stored, slot, is_new)    kInsertion; slot null: there was none
///   finish()                          if it has this, when all keys of a thread's part have come
///   ask(i)                            if it has this, as pipelines want it
///   kHot                              if it has this, as pipelines want it
///
/// stop: null, or it stops once keys seem picked to meet, and says which it has not come to. Where several threads
/// share the batch, one begins alone: picked keys are mostly seen there.
template <Purpose kPurpose, class View, class Operation>
void write_each(const View& view, const KeyBatch& keys, const Operation& operation, bool* flags, Stop* stop = nullptr) {
  const int parts = writer_parts(keys.count, view);
  std::optional<WriterMemory<typename View::Key>> memory;
  if (parts > 1) memory = WriterMemory<typename View::Key>::make(keys.count, flags != nullptr, parts);
  if (memory && stop != nullptr && !make_room_for_left(*stop, memory->shares.chunk())) stop = nullptr;
  for (std::int64_t begin = 0, end; begin < keys.count; begin = end) {
    if (memory && (stop == nullptr || begin != 0)) {
      const auto no_sieve = [](int, std::int64_t, std::int64_t) { return NoSieve(); };
      return write_shared<kPurpose>(view, keys, operation, flags, *memory, no_sieve, begin, stop);
    }
    interruption_point();
    end = std::min(keys.count, begin + (memory ? kFirstPiece : kKeysPerPiece));
    const std::int64_t done = write_range<kPurpose>(view, keys, operation, flags, begin, end, stop != nullptr);
    if (stop == nullptr || (done == end && most_far_keys(view) != 0)) continue;
    stop->done = done;
    return;
  }
}

}  // namespace gpuhash::host
