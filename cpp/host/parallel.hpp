#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gpuhash/error.hpp>
#include "core/fault_injection.hpp"
#include "core/interruption.hpp"
#include "core/thread_pool.hpp"
#include "host/simd/simd.hpp"
#include "host/walk/batch_keys.hpp"
#include "host/walk/homes.hpp"
#include "host/walk/owners.hpp"
#include "host/walk/pipeline.hpp"
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

/// Fewer keys than these per thread are not worth waking it for. Writers wake it twice, and where a cache holds the
/// table a thread alone is fast.
inline constexpr std::int64_t kKeysPerReader = 1 << 14;
inline constexpr std::int64_t kKeysPerWriter = 1 << 15;
inline constexpr std::int64_t kKeysPerWriterInCache = 1 << 16;
inline constexpr std::int64_t kCacheBytes = std::int64_t{1} << 26;

inline int reader_parts(std::int64_t count) {
  if (count < 2 * kKeysPerReader) return 1;
  return static_cast<int>(std::min<std::int64_t>(thread_count(), count / kKeysPerReader));
}

/// A list of keys for every owner from every part, so not too many.
inline constexpr std::int64_t kMostWriters = 64;

template <class View>
int writer_parts(std::int64_t count, const View& view) {
  const auto bytes = static_cast<std::int64_t>(View::slot_bytes(view.geometry.bucket_count));
  const std::int64_t least = bytes > kCacheBytes ? kKeysPerWriter : kKeysPerWriterInCache;
  if (count < 2 * least) return 1;
  return static_cast<int>(
      std::min<std::int64_t>({thread_count(), count / least, view.geometry.region_count, kMostWriters}));
}

/// Where part p of `parts` begins.
inline std::int64_t part_begin(std::int64_t count, int part, int parts) {
  return static_cast<std::int64_t>(static_cast<__int128>(count) * part / parts);
}

/// Before scratch memory is asked for: there may be none, if a test wants it so.
inline void scratch_may_fail() {
  if (fails_here(Fault::kScratch)) throw std::bad_alloc();
}

/// allocate(n), which gives memory for n items of T.
template <class T, class Allocate>
auto scratch_by(Allocate allocate, std::int64_t count) {
  try {
    scratch_may_fail();
    return allocate(static_cast<std::size_t>(count));
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError("could not allocate " + std::to_string(count * static_cast<std::int64_t>(sizeof(T))) +
                           " bytes of scratch memory");
  }
}

/// Zeroed scratch memory.
template <class T>
std::vector<T> scratch(std::int64_t count) {
  return scratch_by<T>([](std::size_t n) { return std::vector<T>(n); }, count);
}

template <class T>
std::unique_ptr<T[]> uninitialised(std::int64_t count) {
  return scratch_by<T>([](std::size_t n) { return std::make_unique_for_overwrite<T[]>(n); }, count);
}

/// Calls body(part, begin, end) for every part of [0, count).
template <class Body>
void for_each_part(std::int64_t count, int parts, Body body) {
  if (parts == 1) return body(0, std::int64_t{0}, count);
  parallel_for(parts,
               [&](int part) { body(part, part_begin(count, part, parts), part_begin(count, part + 1, parts)); });
}

/// Calls body(begin, end) for pieces of [begin, end), in order; between them the operation may be interrupted.
template <class Body>
void in_pieces(std::int64_t begin, std::int64_t end, std::int64_t piece, Body body) {
  for (; begin < end; begin += piece) {
    interruption_point();
    body(begin, std::min(end, begin + piece));
  }
}

/// Keys between two points at which an operation may be interrupted: some milliseconds.
inline constexpr std::int64_t kKeysPerPiece = std::int64_t{1} << 18;
/// Buckets likewise.
inline constexpr std::int64_t kBucketsPerPiece = std::int64_t{1} << 17;
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
