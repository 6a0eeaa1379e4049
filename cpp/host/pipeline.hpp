#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "host/batch_keys.hpp"
#include "host/block_looks.hpp"
#include "host/displace.hpp"
#include "host/homes.hpp"
#include "host/simd.hpp"
#include "host/walk.hpp"
#include "shared/probe_sequence.hpp"
#include "table/executor.hpp"

/// Walking along the probe sequences of many keys at once. A core can have twenty to forty lines under way from memory;
/// one walk after the other would have one.
namespace gpuhash::host {

/// Keys between asking for a line and looking at it. Rolling: groups would wait for their last line, and processors
/// have more lines under way while they come one by one.
inline constexpr std::int64_t kAhead = kHomes;
/// Keys between two looks at the queues, and walks that a queue keeps waiting for their line.
inline constexpr std::int64_t kBlock = 16;
inline constexpr std::uint64_t kQueued = 16;
/// The queues are gone through once per block, as where a short loop ends cannot be predicted, and once more only where
/// one of them has more walks than this.
inline constexpr std::uint64_t kMostQueued = 32;

/// At least what a block or a pass over the other queues adds to a queue, and a walk more.
inline constexpr std::uint64_t kQueueSize = 128;

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

/// Where in the batch the n-th key stands: after `first`, or as a list says.
struct FromPosition {
  std::int64_t first;
  std::int64_t operator[](std::int64_t n) const { return first + n; }
};
struct ListedPositions {
  const std::uint32_t* offsets;  // ascending
  std::int64_t base;
  std::int64_t operator[](std::int64_t n) const { return base + offsets[n]; }
};

/// Keys between asking for the lines of keys, and of what is read beside them, and reading these. Processors see that a
/// row is read, but come late among so many other lines.
inline constexpr std::int64_t kKeysAhead = 2 * kHomes;

/// Takes every key to its place; keys that are equal get there in their order.
///
/// Home buckets are asked for kAhead keys early. A walk that has to go on, because its bucket is full and lacks the
/// key, waits in a queue for the bucket's filter byte, and if that tells it to go on, in another queue for the next
/// bucket. Equal keys take the same steps, so they leave each queue in the order in which they came.
///
/// Insertions have nothing to look for in a full bucket that has no erased slot, so they pass a full home at once where
/// the table has none. An equal key that came before is further on, and the queues keep it there. Where the table may
/// have some, a look reads the bucket's filter byte, too: without the key's bit there, an absent key lies nowhere
/// further on, and a new one takes the erased slot at once. With it, the walk looks further from the queue of filters
/// (take_erased()), before others take their turn.
///
/// A new key that finds the next bucket full, too, goes back and takes the place of another (host/displace.hpp). That
/// it is new is known where the filter of the bucket before lacks its bit. So a key does not leave its bit when it
/// passes a bucket, but when it has found a place further on, or finds none in that bucket.
///
/// What comes of a walk is told to an object of this shape:
///
///   found(i, slot, any_empty), absent(i)
///                                    kLookup, one of them once for each key i; has the slot's bucket empty slots, too?
///   looked(i, bucket, match)         kLookup, instead of these where the visitor has kEveryLook: at every bucket of
///                                    the walk; `match` is the key's slot, if any; what the last bucket shows counts
///   write(i, stored, slot, is_new)   kInsertion, once for each key; slot null: the table is full
///   left_region(i)                   kRegion: instead, where the walk would leave the key's region
///   ask(i)                           if it has this: asks for the line of what is read beside the key at i
///   kDistinct                        if it has this, no two keys are equal
template <Purpose kPurpose, class Simd, class View, class Keys, class Positions, class Visitor>
class Pipeline {
 public:
  using Key = typename View::Key;

  Pipeline(const View& view, Reach reach, const Keys& keys, const Positions& positions, const Visitor& visitor,
           std::uint64_t most_far)
      : view_(view), reach_(reach), keys_(keys), positions_(positions), visitor_(visitor), most_far_(most_far) {}

  void run(std::int64_t count) {
    with_marks([&](auto marks) { ask_for_first(marks, count); });
    for (std::int64_t n = 0; n < count && passed_.far_keys < most_far_; n += kThisBlock) {
      passed_.keys = std::min(n + kThisBlock, count);
      with_marks([&](auto marks) { look_at_homes(marks, n, std::min(n + kThisBlock, count), count); });
      work_off(kQueued, kMostQueued);
    }
    work_off(0, 0);
  }

  /// As run() has left it.
  const Visitor& visitor() const { return visitor_; }
  const Passed& passed() const { return passed_; }

 private:
  struct Lookup {
    Probe<Key> probe;
    std::int64_t i;
  };
  struct Insertion {
    Probe<Key> probe;
    std::int64_t i;
    std::uint32_t home = 0;    // the first bucket
    std::uint32_t before = 0;  // the bucket before this one
  };
  using Walk = std::conditional_t<kPurpose == Purpose::kInsertion, Insertion, Lookup>;
  using SlotType = typename View::SlotType;
  static constexpr bool kListed = std::is_same_v<Positions, ListedPositions>;
  static constexpr bool kAsksForListed =
      kListed && requires(const Visitor& visitor, std::int64_t i) { visitor.ask(i); };
  static constexpr bool kEveryLook = requires { Visitor::kEveryLook; };
  static constexpr bool kLooksByBlocks = kPurpose == Purpose::kLookup && kEveryLook && kAreWords<Keys>;
  /// Are keys hashed where they stand? Otherwise they are copied a block ahead: so their lines come in time, and the
  /// copy, which is read as vectors, has been written by then, which took 0.6 of 4.8 ns a key where it had not.
  static constexpr bool kInRow = kLooksByBlocks;
  /// Whatever else is done to keys: their homes at least are found together where that is faster.
  static constexpr bool kHashesByBlocks = !kLooksByBlocks && Homes<Key>::template kByEight<Simd>;
  static constexpr bool kByBlocks = kLooksByBlocks || kHashesByBlocks;
  static constexpr std::int64_t kHomesOfBlock = kHomes;
  static constexpr std::int64_t kThisBlock = kByBlocks ? kHomesOfBlock : kBlock;
  struct None {};
  /// Is the visitor copied for each block? Not one that has a queue.
  static constexpr bool kInRegisters = sizeof(Visitor) <= 256;
  static constexpr std::uint32_t kTracked = kPurpose == Purpose::kInsertion ? 1024 : 1;

  /// Calls body(marks): marks() tells whether this is an insertion into a table that may have erased slots. A loop of
  /// its own, since looking for them is a tenth of an insertion in cache.
  template <class Body>
  void with_marks(const Body& body) {
    if constexpr (kPurpose == Purpose::kInsertion)
      if (view_.may_have_erased) return body(std::true_type{});
    body(std::false_type{});
  }

  template <class Marks>
  void ask_for_first(Marks marks, std::int64_t count) {
    if constexpr (kByBlocks) {
      if constexpr (!kInRow) copy_keys(0, count);
      fill_homes(0, count);
      for (std::int64_t n = 0; n < std::min(kHomesOfBlock, count); ++n)
        prefetch_home(marks, view_, homes_of_block(0).bucket(static_cast<std::size_t>(n)));
    } else {
      for (std::int64_t n = 0; n < std::min(kAhead, count); ++n) ask_for_home(marks, n);
    }
  }

  template <class Marks>
  void ask_for_home(Marks marks, std::int64_t n) {
    const Probe<Key> probe(keys_[n], view_.geometry);
    prefetch_home(marks, view_, probe.bucket());
    homes_[n % kAhead] = probe.bucket();
    if constexpr (marks()) filter_bits_[n % kAhead] = probe.filter_bit();
  }

  /// What the first look reads.
  template <class Marks>
  static void prefetch_home(Marks marks, const View& view, std::uint32_t home) {
    prefetch_bucket(view, home);
    if constexpr (marks()) __builtin_prefetch(view.filters + home);
  }

  Homes<Key>& homes_of_block(std::int64_t n) { return blocks_[n / kHomesOfBlock % 2]; }

  /// The keys of the block that begins with the n-th, a block before they are hashed.
  void copy_keys(std::int64_t n, std::int64_t count) {
    const Keys keys = keys_;  // a copy, in registers
    const std::int64_t size = std::min(kHomesOfBlock, count - n);
    if constexpr (kAreWords<Keys>) ask_for_keys(n + kKeysAhead, count);
    if constexpr (kAsksForListed) ask_for_listed(n + kKeysAhead, count);
    for (std::int64_t b = 0; b < size; ++b) copied_[b] = keys[n + b];
  }

  /// The lines of the block of keys that begins with the n-th, and of their positions.
  void ask_for_keys(std::int64_t n, std::int64_t count) const {
    if (n >= count) return;
    const auto ask = [](const auto* from) {
      const auto* const bytes = reinterpret_cast<const char*>(from);
      for (std::size_t byte = 0; byte < kHomes * sizeof(*from); byte += 64) __builtin_prefetch(bytes + byte);
    };
    ask(keys_.data + n);
    if constexpr (kListed) ask(positions_.offsets + n);
  }

  /// The lines of what is read beside the keys of a block of a list.
  void ask_for_listed(std::int64_t n, std::int64_t count) {
    asm volatile("");  // as in ask_for_displacement()
    if (n >= count) return;
    const Visitor& visitor = visitor_;
    const std::int64_t end = std::min(n + kHomesOfBlock, count);
    constexpr auto kOfLine = static_cast<std::int64_t>(64 / sizeof(Key));
    if (positions_[end - 1] - positions_[n] < kHomesOfBlock * kOfLine)  // each line once
      for (std::int64_t i = positions_[n]; i <= positions_[end - 1]; i += kOfLine) visitor.ask(i);
    else
      for (; n < end; ++n) visitor.ask(positions_[n]);
  }

  /// Those of the block that begins with the n-th key.
  void fill_homes(std::int64_t n, std::int64_t count) {
    Homes<Key>& homes = homes_of_block(n);
    const auto size = static_cast<std::size_t>(std::min(kHomesOfBlock, count - n));
    if constexpr (kInRow) {
      ask_for_keys(n + kKeysAhead, count);
      homes.fill(Simd{}, keys_.data + n, size, view_.geometry);
    } else {
      homes.fill(Simd{}, copied_, size, view_.geometry);
      copy_keys(n + kHomesOfBlock, count);
    }
    homes.pad(size);
  }

  /// Fills the homes of the block after this one, and returns their buckets, to be asked for. Behind the last block
  /// those of this one are asked for once more.
  const std::uint32_t* next_homes(std::int64_t n, std::int64_t count) {
    const std::int64_t next = n + kHomesOfBlock;
    if (next < count) fill_homes(next, count);
    return homes_of_block(next < count ? next : n).buckets();
  }

  /// Looks for `size` keys from the n-th on. As in NearLookup::run_block(), each step is taken by all of them together.
  void look_at_block(std::int64_t n, std::size_t size, std::int64_t count) {
    const View view = view_;  // copies, in registers
    Visitor visitor = visitor_;
    const Homes<Key>& homes = homes_of_block(n);
    const std::int64_t first = positions_[n];
    BlockLooks<Simd, View> looks;
    const std::uint32_t* const next = next_homes(n, count);
    const auto ask = [&](std::size_t b) { prefetch_home(std::false_type{}, view, next[b]); };
    std::uint64_t undecided = looks.look_at_homes(view, visitor, homes, first, size, ask);
    visitor.found(first, looks.found, size);
    visitor_ = visitor;
    for (; undecided != 0; undecided &= undecided - 1) {
      const auto b = static_cast<std::size_t>(std::countr_zero(undecided));
      wait_at_home(first + static_cast<std::int64_t>(b), homes.probe(b));
    }
  }

  template <class Marks>
  void look_at_homes(Marks marks, std::int64_t n, std::int64_t end, std::int64_t count) {
    if constexpr (kLooksByBlocks) {
      look_at_block(n, static_cast<std::size_t>(end - n), count);
    } else if constexpr (kHashesByBlocks) {
      look_at_each(marks, n, static_cast<std::size_t>(end - n), count);
    } else {
      // Which walks go on is noted without a branch, and their hash is computed again: writing all of every walk to
      // memory, or guessing wrongly, takes longer.
      std::int64_t late[kBlock];
      std::size_t late_count = 0;
      for (; n < end; ++n) {
        const std::int64_t i = positions_[n];
        const std::uint32_t home = homes_[n % kAhead];
        const std::uint8_t filter_bit = marks() ? filter_bits_[n % kAhead] : 0;
        if (n + kAhead < count) ask_for_home(marks, n + kAhead);
        Key stored = keys_[n];
        if (home == view_.geometry.bucket_count) stored = Probe<Key>(stored, view_.geometry).stored();
        late[late_count] = n;
        late_count += look(marks, view_, visitor_, i, stored, home, filter_bit) ? 0 : 1;
      }
      for (std::size_t l = 0; l < late_count; ++l)
        wait_at_home(positions_[late[l]], Probe<Key>(keys_[late[l]], view_.geometry));
    }
  }

  /// Likewise, but one after the other, as what is done at one look may change what the next one sees.
  template <class Marks>
  void look_at_each(Marks marks, std::int64_t n, std::size_t size, std::int64_t count) {
    const View view = view_;  // copies, in registers
    const Positions positions = positions_;
    std::conditional_t<kInRegisters, Visitor, Visitor&> visitor = visitor_;
    const Homes<Key>& homes = homes_of_block(n);
    const std::uint32_t* const next = next_homes(n, count);
    std::uint8_t late[kHomes];
    std::size_t late_count = 0;
    for (std::size_t b = 0; b < size; ++b) {
      prefetch_home(marks, view, next[b]);
      late[late_count] = static_cast<std::uint8_t>(b);
      const std::int64_t i = positions[n + static_cast<std::int64_t>(b)];
      late_count += look(marks, view, visitor, i, homes.stored(b), homes.bucket(b), homes.filter_bit(b)) ? 0 : 1;
    }
    if constexpr (kInRegisters) visitor_ = visitor;
    for (std::size_t l = 0; l < late_count; ++l)
      wait_at_home(positions[n + static_cast<std::int64_t>(late[l])], homes.probe(late[l]));
  }

  void wait_at_home(std::int64_t i, const Probe<Key>& probe) {
    Walk walk{probe, i};
    if constexpr (kPurpose == Purpose::kInsertion) {
      walk.home = probe.bucket();
      last_[walk.home % kTracked] = static_cast<std::uint32_t>(i);
      if (!view_.may_have_erased) {
        __builtin_prefetch(view_.filters + walk.home);
        return pass(walk);
      }
      ask_for_next_hop(probe);
    }
    wait_for_filter(walk, true);
  }

  /// May a walk for an equal key have come to wait after this one? Then this one must not put the key into a bucket
  /// that the other has passed: keys that come later would see it there, and overtake the other.
  bool is_followed(std::uint32_t home, std::int64_t i) const {
    if constexpr (requires { Visitor::kDistinct; }) return false;
    return last_[home % kTracked] != static_cast<std::uint32_t>(i);
  }

  /// Goes through the queues and leaves at most `rest` walks in each; up to `most`, if that needs another round.
  void work_off(std::uint64_t rest, std::uint64_t most) {
    do {
      for (std::uint64_t keep = rest; at_filter_.size() > keep;)
        if (go_on(at_filter_.pop()) == Followers::kAtOnce) keep = 0;
      while (at_bucket_.size() > rest) look_again(at_bucket_.pop());
    } while (at_filter_.size() > most || at_bucket_.size() > most);
  }

  void look_again(const Walk& walk) {
    const Probe<Key>& probe = walk.probe;
    bool done = false;
    with_marks([&](auto marks) {
      done = look(marks, view_, visitor_, walk.i, probe.stored(), probe.bucket(), probe.filter_bit());
    });
    if constexpr (kPurpose == Purpose::kInsertion) {
      // leave_bit() if the key has its place now, without a branch.
      std::uint8_t& filter = view_.filters[walk.before];
      const bool lacks_bit = (filter & probe.filter_bit()) == 0;
      passed_.filter_bits += done && lacks_bit ? 1 : 0;
      filter |= done ? probe.filter_bit() : 0;
      if (!done && lacks_bit) ask_for_displacement(view_, walk.before);
    }
    wait_for_filter(walk, !done);
  }

  void wait_for_filter(const Walk& walk, bool wanted) {
    if (wanted) __builtin_prefetch(view_.filters + walk.probe.bucket());
    at_filter_.push_if(wanted, walk);
  }

  /// The lines of the next bucket, for take_erased().
  void ask_for_next_hop(Probe<Key> probe) const {
    probe.next(view_.geometry);
    prefetch_bucket(view_, probe.bucket());
    __builtin_prefetch(view_.filters + probe.bucket());
  }

  /// False if the walk has to go on. Equal keys see the same until one of them is there, for no slot is erased
  /// meanwhile, and bits stay: so none that takes an erased slot has an equal key before it in a queue.
  template <class Marks>
  static bool look(Marks marks, const View& view, Visitor& visitor, std::int64_t i, const Key& stored,
                   std::uint32_t bucket_index, [[maybe_unused]] std::uint8_t filter_bit) {
    if constexpr (marks()) {
      SlotType* const bucket = bucket_at(view, bucket_index);
      const auto match = Simd::template slots_with<View>(bucket, stored);
      const auto empty = Simd::template slots_with<View>(bucket, empty_key<Key>());
      const auto erased = Simd::template slots_with<View>(bucket, erased_key<Key>());
      return write_at(visitor, i, stored, bucket, match,
                      empty.with(erased, !filter_has(view, bucket_index, filter_bit)));
    } else {
      return look(view, visitor, i, stored, bucket_index);
    }
  }

  /// Likewise, without a thought for erased slots.
  static bool look(const View& view, Visitor& visitor, std::int64_t i, const Key& stored, std::uint32_t bucket_index) {
    SlotType* const bucket = bucket_at(view, bucket_index);
    const auto match = Simd::template slots_with<View>(bucket, stored);
    const auto empty = Simd::template slots_with<View>(bucket, empty_key<Key>());
    const bool matches = match.any();
    const bool ends = empty.any();
    const bool done = matches | ends;  // one branch for both
    if constexpr (kEveryLook) {
      visitor.looked(i, bucket, match);
    } else if constexpr (kPurpose == Purpose::kLookup) {
      if (match.any())
        visitor.found(i, match.first(bucket), empty.any());
      else if (done)
        visitor.absent(i);
    } else {
      write_at(visitor, i, stored, bucket, match, empty);
    }
    return done;
  }

  /// False if the bucket has neither the key nor room for it. The branch is mostly predicted, as batches have mostly
  /// new keys or mostly others: without it, counting distinct keys took 7.4 ns instead of 5.9.
  template <class Slots>
  static bool write_at(Visitor& visitor, std::int64_t i, const Key& stored, SlotType* bucket, Slots match,
                       Slots vacant) {
    if (match.any()) {
      visitor.write(i, stored, match.first(bucket), false);
      return true;
    }
    if (vacant.any()) visitor.write(i, stored, vacant.first(bucket), true);
    return vacant.any();
  }

  /// When walks for the same key that wait for filters, too, are due. At once, if this one has put the key into the
  /// bucket that they have looked at: before others look there, and overtake them.
  enum class Followers { kInTurn, kAtOnce };

  /// Does the search end in this bucket, which has no empty slot?
  bool ends(const Probe<Key>& probe) const {
    return search_ends(false, [&] { return filter_has(view_, probe.bucket(), probe.filter_bit()); });
  }

  /// The bucket is full and had not the key.
  Followers go_on(Walk walk) {
    if constexpr (kPurpose == Purpose::kInsertion) {
      if (walk.probe.hop() != 0 && goes_back(walk)) return Followers::kInTurn;
      if (view_.may_have_erased) {
        SlotType* const bucket = bucket_at(view_, walk.probe.bucket());
        const auto erased = Simd::template slots_with<View>(bucket, erased_key<Key>());
        // An equal key may have got one of them by now.
        const auto match = Simd::template slots_with<View>(bucket, walk.probe.stored());
        if (match.any()) {
          visitor_.write(walk.i, walk.probe.stored(), match.first(bucket), false);
          return followers_of(walk);
        }
        if (erased.any()) return take_erased(walk, erased.first(bucket));
      }
      passed_.far_keys += walk.probe.hop() == kFarHops ? 1 : 0;
      // From outside of its region the key does not come back.
      if (walk.probe.at_last_hop_in_region()) leave_bit_of(walk, walk.probe.bucket());
    } else if (ends(walk.probe)) {
      if constexpr (!kEveryLook) visitor_.absent(walk.i);
      return Followers::kInTurn;
    }
    if (reach_ == Reach::kRegion && walk.probe.at_last_hop_in_region()) {
      visitor_.left_region(walk.i);
    } else if (!walk.probe.exhausted(view_.geometry)) {
      pass(walk);
    } else if constexpr (kPurpose == Purpose::kInsertion) {
      visitor_.write(walk.i, walk.probe.stored(), static_cast<SlotType*>(nullptr), false);
    } else if constexpr (!kEveryLook) {
      visitor_.absent(walk.i);
    }
    return Followers::kInTurn;
  }

  /// On to the next bucket.
  void pass(Walk& walk) {
    if constexpr (kPurpose == Purpose::kInsertion) walk.before = walk.probe.bucket();
    walk.probe.next(view_.geometry);
    prefetch_bucket(view_, walk.probe.bucket());
    at_bucket_.push_if(true, walk);
  }

  /// The bucket is full, like the one before. True if the key gets a place in the one before.
  bool goes_back(const Walk& walk) {
    if (filter_has(view_, walk.before, walk.probe.filter_bit())) return false;
    SlotType* slot = nullptr;
    if (!is_followed(walk.home, walk.i))
      with_marks([&](auto marks) { slot = displace<Simd>(marks, view_, walk.before, passed_.filter_bits); });
    if (slot != nullptr)
      visitor_.write(walk.i, walk.probe.stored(), slot, true);
    else
      leave_bit_of(walk, walk.before);
    return slot != nullptr;
  }

  void leave_bit_of(const Walk& walk, std::uint32_t bucket) {
    leave_bit(view_, bucket, walk.probe.filter_bit(), passed_.filter_bits);
  }

  /// Takes the key to an erased slot of the bucket that its walk has come to, or to the slot that it has further on.
  /// The buckets before have no room for it, and have its bit.
  Followers take_erased(const Walk& walk, SlotType* erased) {
    const View view = view_;  // the member's address would keep it out of registers
    Probe<Key> probe = walk.probe;
    SlotType* slot = erased;
    bool is_new = true;
    while (!ends(probe) && !probe.exhausted(view.geometry)) {
      if (reach_ == Reach::kRegion && probe.at_last_hop_in_region()) {
        visitor_.left_region(walk.i);
        return Followers::kInTurn;
      }
      probe.next(view.geometry);
      SlotType* const bucket = bucket_at(view, probe.bucket());
      const auto match = Simd::template slots_with<View>(bucket, probe.stored());
      const auto empty = Simd::template slots_with<View>(bucket, empty_key<Key>());
      if (match.any()) {
        slot = match.first(bucket);
        is_new = false;
      }
      const bool matches = match.any();
      const bool ends = empty.any();
      if (matches | ends) break;
    }
    visitor_.write(walk.i, probe.stored(), slot, is_new);
    return followers_of(walk);
  }

  Followers followers_of(const Walk& walk) const {
    return is_followed(walk.home, walk.i) ? Followers::kAtOnce : Followers::kInTurn;
  }

  const View view_;
  const Reach reach_;
  const Keys keys_;
  const Positions positions_;
  Visitor visitor_;  // a copy, in registers
  const std::uint64_t most_far_;
  Passed passed_;
  std::uint32_t homes_[kAhead];                                // buckets
  std::uint8_t filter_bits_[kAhead];                           // of the same keys
  std::conditional_t<kByBlocks, Homes<Key>[2], None> blocks_;  // the one looked at, and the next
  std::conditional_t<kByBlocks && !kInRow, Key[kHomes], None> copied_;
  std::uint32_t last_[kTracked];  // by home bucket: whose walk was the last to come and wait; low bits of i
  Queue<Walk, kQueueSize> at_filter_;
  Queue<Walk, kQueueSize> at_bucket_;
};

/// Runs a pipeline and returns what its walks have left behind. It stops soon after most_far keys have come far from
/// home, and has then taken the first keys alone.
template <Purpose kPurpose, class View, class Keys, class Positions, class Visitor>
Passed run_pipeline(const View& view, Reach reach, const Keys& keys, const Positions& positions, std::int64_t count,
                    Visitor& visitor, std::uint64_t most_far = kAnyFarKeys) {
  Passed passed;
  with_simd([&](auto simd) {
    Pipeline<kPurpose, decltype(simd), View, Keys, Positions, Visitor> pipeline(view, reach, keys, positions, visitor,
                                                                                most_far);
    pipeline.run(count);
    visitor = pipeline.visitor();
    passed = pipeline.passed();
  });
  return passed;
}

/// Likewise, for keys [begin, end) of a batch, each of which may walk through the whole table. The visitor's kWords
/// says that keys are words, as are_words() knows; each pipeline is compiled for every instruction set. Lookups of
/// words are for tables that are not near (host/near_lookup.hpp).
template <Purpose kPurpose, class View, class Visitor>
Passed walk_each(const View& view, const KeyBatch& batch, std::int64_t begin, std::int64_t end, Visitor& visitor,
                 std::uint64_t most_far = kAnyFarKeys) {
  Passed passed;
  const auto run = [&](const auto& keys) {
    passed = run_pipeline<kPurpose>(view, Reach::kTable, keys, FromPosition{begin}, end - begin, visitor, most_far);
  };
  if constexpr (Visitor::kWords)
    with_words<View>(batch, begin, run);
  else
    run(any_keys<View>(batch, begin));
  return passed;
}

/// Keys of a batch that stand in a list, as words, and where in the batch they stand.
template <class Word>
struct ListedKeys {
  const Word* keys;
  ListedPositions positions;
  std::int64_t count;
};

template <Purpose kPurpose, class View, class Word, class Visitor>
Passed walk_listed(const View& view, Reach reach, const ListedKeys<Word>& list, Visitor& visitor,
                   std::uint64_t most_far = kAnyFarKeys) {
  return run_pipeline<kPurpose>(view, reach, RowKeys<typename View::Key, Word>{list.keys}, list.positions, list.count,
                                visitor, most_far);
}

}  // namespace gpuhash::host
