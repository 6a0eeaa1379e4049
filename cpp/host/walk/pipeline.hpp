#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "host/simd/simd.hpp"
#include "host/walk/batch_keys.hpp"
#include "host/walk/displace.hpp"
#include "host/walk/homes.hpp"
#include "host/walk/walk.hpp"
#include "shared/probe_sequence.hpp"
#include "table/executor.hpp"

/// Walking along the probe sequences of many keys at once. A core can have twenty to forty lines under way from memory;
/// one walk after the other would have one.
namespace gpuhash::host {

/// Walks that a queue keeps waiting for their line.
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

/// Keys between asking for the lines of keys, and of what is read beside them, and reading these. Processors see that a
/// row is read, but come late among so many other lines.
inline constexpr std::int64_t kKeysAhead = 2 * kHomes;

/// 0, 1, 2 ...: where the keys of a block stand that has no list.
inline constexpr auto kEachOfHomes = [] {
  std::array<std::uint32_t, kHomes> numbers{};
  for (std::size_t n = 0; n < kHomes; ++n) numbers[n] = static_cast<std::uint32_t>(n);
  return numbers;
}();

/// Takes every key to its place; keys that are equal get there in their order.
///
/// Keys come in blocks of kHomes. Those of the next block are hashed, and their home buckets asked for one by one,
/// while this block looks at its own. A walk that has to go on, because its bucket is full and lacks the key, waits in
/// a queue for the bucket's filter byte, and if that tells it to go on, in another queue for the next bucket. Equal
/// keys take the same steps, so they leave each queue in the order in which they came.
///
/// Looks at home are compiled for each instruction set where the visitor is hot. All else is compiled once.
///
/// Insertions have nothing to look for in a full bucket that has no erased slot, so they pass a full home at once where
/// the table has none. An equal key that came before is further on, and the queues keep it there. Where the table may
/// have some, a look reads the bucket's filter byte, too: without the key's bit there, an absent key lies nowhere
/// further on, and a new one takes the erased slot at once. With it, the walk looks further from the queue of filters
/// (take_erased()), before others take their turn.
///
/// A new key that finds the next bucket full, too, goes back and takes the place of another (host/walk/displace.hpp).
/// That it is new is known where the filter of the bucket before lacks its bit. So a key does not leave its bit when it
/// passes a bucket, but when it has found a place further on, or finds none in that bucket.
///
/// What comes of a walk is told to an object of this shape:
///
///   found(i, slot, any_empty), absent(i)
///                                    kLookup, one of them once for each key i; has the slot's bucket empty slots, too?
///   find_block(simd, view, homes, n, size, ask)
///                                    kLookup, if it has kFindsBlocks: looks at the homes of the keys from position n
///                                    on, and returns a bit for each that is undecided. Of these,
///   looked(i, bucket, match)         instead of found() and absent(): at every further bucket of the walk; `match` is
///                                    the key's slot, if any; what the last bucket shows counts
///   write(i, stored, slot, is_new)   kInsertion, once for each key; slot null: the table is full
///   left_region(i)                   kRegion: instead, where the walk would leave the key's region
///   ask(i)                           if it has this: asks for the line of what is read beside the key at i
///   kHot                             is it worth code for each instruction set?
template <Purpose kPurpose, class View, class Visitor>
class Pipeline {
 public:
  using Key = typename View::Key;

  Pipeline(const View& view, Reach reach, const KeyRun& keys, const Visitor& visitor, std::uint64_t most_far)
      : view_(view), reach_(reach), keys_(keys), visitor_(visitor), most_far_(most_far) {}

  void run() {
    const std::int64_t count = keys_.count;
    copy_block(0);
    homes_of_block(0).fill(copied_, size_of_block(0), view_.geometry);
    for (std::size_t b = 0; b < size_of_block(0); ++b) prefetch_home(view_, homes_of_block(0).bucket(b), has_marks());
    copy_block(kBlock);
    for (std::int64_t n = 0; n < count && passed_.far_keys < most_far_; n += kBlock) {
      passed_.keys = std::min(n + kBlock, count);
      if constexpr (kFindsBlocks)
        find_block(n);
      else
        look_at_block(n);
      copy_block(n + 2 * kBlock);
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
  static constexpr bool kFindsBlocks = requires { Visitor::kFindsBlocks; };
  static constexpr bool kAsks = requires(const Visitor& visitor, std::int64_t i) { visitor.ask(i); };
  static constexpr std::int64_t kBlock = kHomes;
  static constexpr std::uint32_t kTracked = kPurpose == Purpose::kInsertion ? 1024 : 1;

  /// Is this an insertion into a table that may have erased slots?
  bool has_marks() const { return kPurpose == Purpose::kInsertion && view_.may_have_erased; }
  /// Calls body(marks): marks() is has_marks(). A loop of its own, since looking for erased slots is a tenth of an
  /// insertion in cache.
  template <class Body>
  void with_marks(const Body& body) {
    if constexpr (kPurpose == Purpose::kInsertion)
      if (view_.may_have_erased) return body(std::true_type{});
    body(std::false_type{});
  }

  /// What the first look reads.
  [[gnu::always_inline]] static void prefetch_home(const View& view, std::uint32_t home, bool marks) {
    prefetch_bucket(view, home);
    if (marks) __builtin_prefetch(view.filters + home);
  }

  Homes<Key>& homes_of_block(std::int64_t n) { return blocks_[n / kBlock % 2]; }
  std::size_t size_of_block(std::int64_t n) const {
    return static_cast<std::size_t>(std::min(kBlock, keys_.count - n));
  }

  /// The keys of the block that begins with the n-th, a block before they are hashed: so their lines come in time, and
  /// the copy, which is read as vectors, has been written by then, which took 0.6 of 4.8 ns a key where it had not.
  void copy_block(std::int64_t n) {
    if (n >= keys_.count) return;
    ask_for_keys(n + kKeysAhead);
    if constexpr (kAsks)
      if (keys_.offsets != nullptr) ask_for_listed(n + kKeysAhead);
    copy_keys(keys_, n, static_cast<std::int64_t>(size_of_block(n)), copied_);
  }

  /// The lines of the block of keys that begins with the n-th, and of their positions.
  void ask_for_keys(std::int64_t n) const {
    keep_calls();
    if (n >= keys_.count) return;
    const std::byte* const from = keys_.data + n * keys_.bytes;
    for (std::int64_t byte = 0; byte < kBlock * keys_.bytes; byte += 64) __builtin_prefetch(from + byte);
    if (keys_.offsets == nullptr) return;
    for (std::int64_t of_line = 0; of_line < kBlock; of_line += 16) __builtin_prefetch(keys_.offsets + n + of_line);
  }

  /// The lines of what is read beside the keys of a block of a list.
  void ask_for_listed(std::int64_t n) {
    keep_calls();
    if (n >= keys_.count) return;
    const Visitor& visitor = visitor_;
    const std::uint32_t* const offsets = keys_.offsets;
    const std::int64_t end = std::min(n + kBlock, keys_.count);
    constexpr auto kOfLine = static_cast<std::int64_t>(64 / sizeof(Key));
    if (offsets[end - 1] - offsets[n] < kBlock * kOfLine)  // each line once
      for (std::int64_t i = offsets[n]; i <= offsets[end - 1]; i += kOfLine) visitor.ask(keys_.base + i);
    else
      for (; n < end; ++n) visitor.ask(keys_.base + offsets[n]);
  }

  /// A block that is looked at, and the one after it.
  struct Block {
    const Homes<Key>& homes;
    Homes<Key>& next;              // to be filled; behind the last block, with its keys once more
    const Key* next_keys;          // [size]
    const std::uint32_t* offsets;  // [size]
    std::int64_t base;
    std::size_t size;
    std::int64_t position(std::size_t b) const { return base + offsets[b]; }
  };

  Block block_at(std::int64_t n) {
    const bool listed = keys_.offsets != nullptr;
    return {homes_of_block(n),
            homes_of_block(n + kBlock),
            copied_,
            listed ? keys_.offsets + n : kEachOfHomes.data(),
            listed ? keys_.base : keys_.base + n,
            size_of_block(n)};
  }

  /// Hashes the next block as this one is looked at: both overlap. Or before, eight at a time.
  template <class Simd, class Marks>
  static constexpr bool kHashesEach = Visitor::kHot && !Marks()() && !Simd::template kHashesByEight<Key>;

  /// Calls body(ask), to look at the block; ask(b) comes before the b-th look.
  template <class Simd, class Marks, class Body>
  void with_next(Marks, const Block& of_block, const Body& body) {
    const View view = view_;  // copies, in registers
    const Block block = of_block;
    if constexpr (!kHashesEach<Simd, Marks>) block.next.fill(block.next_keys, block.size, view.geometry);
    body([&](std::size_t b) {
      if constexpr (kHashesEach<Simd, Marks>) block.next.fill_one(b, block.next_keys[b], view.geometry);
      prefetch_home(view, block.next.bucket(b), Marks()());
      keep_calls();
    });
  }

  void find_block(std::int64_t n) {
    const Block block = block_at(n);
    std::uint64_t undecided = 0;
    with_best_simd([&]<class Simd>(Simd simd) {
      with_next<Simd>(std::false_type{}, block, [&](const auto& ask) {
        undecided = visitor_.find_block(simd, view_, block.homes, block.base, block.size, ask);
      });
    });
    for (; undecided != 0; undecided &= undecided - 1) {
      const auto b = static_cast<std::size_t>(std::countr_zero(undecided));
      wait_at_home(block.position(b), block.homes.probe(b));
    }
  }

  /// Likewise, but one after the other, as what is done at one look may change what the next one sees.
  void look_at_block(std::int64_t n) {
    const Block block = block_at(n);
    std::uint8_t late[kHomes];
    std::size_t late_count = 0;
    with_marks([&](auto marks) {
      const auto look = [&]<class Simd>(Simd) {
        with_next<Simd>(marks, block,
                        [&](const auto& ask) { late_count = look_at_each<Simd>(marks, block, ask, late); });
      };
      if constexpr (marks())
        look(Baseline{});
      else
        with_best_simd(look);
    });
    for (std::size_t l = 0; l < late_count; ++l) wait_at_home(block.position(late[l]), block.homes.probe(late[l]));
  }

  /// with_simd() where it is worth the code.
  template <class Loop>
  static void with_best_simd(const Loop& loop) {
    if constexpr (Visitor::kHot && sizeof(Key) <= 8)
      with_simd(loop);
    else
      loop(Baseline{});
  }

  /// Lists the keys that have to go on in `late`, and returns how many they are.
  template <class Simd, class Marks, class Ask>
  std::size_t look_at_each(Marks marks, const Block& of_block, const Ask& ask, std::uint8_t* late) {
    const View view = view_;  // copies, in registers
    const Block block = of_block;
    Visitor visitor = visitor_;
    std::size_t late_count = 0;
    for (std::size_t b = 0; b < block.size; ++b) {
      ask(b);
      late[late_count] = static_cast<std::uint8_t>(b);
      late_count += look<Simd>(marks, view, visitor, block.position(b), block.homes.stored(b), block.homes.bucket(b),
                               block.homes.filter_bit(b))
                        ? 0
                        : 1;
    }
    visitor_ = visitor;
    return late_count;
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
    return !keys_.distinct && last_[home % kTracked] != static_cast<std::uint32_t>(i);
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
      done = look<Baseline>(marks, view_, visitor_, walk.i, probe.stored(), probe.bucket(), probe.filter_bit());
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
    keep_calls();
    probe.next(view_.geometry);
    prefetch_bucket(view_, probe.bucket());
    __builtin_prefetch(view_.filters + probe.bucket());
  }

  /// False if the walk has to go on. Equal keys see the same until one of them is there, for no slot is erased
  /// meanwhile, and bits stay: so none that takes an erased slot has an equal key before it in a queue.
  template <class Simd, class Marks>
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
      return look<Simd>(view, visitor, i, stored, bucket_index);
    }
  }

  /// Likewise, without a thought for erased slots.
  template <class Simd>
  static bool look(const View& view, Visitor& visitor, std::int64_t i, const Key& stored, std::uint32_t bucket_index) {
    SlotType* const bucket = bucket_at(view, bucket_index);
    const auto match = Simd::template slots_with<View>(bucket, stored);
    const auto empty = Simd::template slots_with<View>(bucket, empty_key<Key>());
    const bool matches = match.any();
    const bool ends = empty.any();
    const bool done = matches | ends;  // one branch for both
    if constexpr (kFindsBlocks) {
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
        const auto erased = Baseline::template slots_with<View>(bucket, erased_key<Key>());
        // An equal key may have got one of them by now.
        const auto match = Baseline::template slots_with<View>(bucket, walk.probe.stored());
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
      if constexpr (!kFindsBlocks) visitor_.absent(walk.i);
      return Followers::kInTurn;
    }
    if (reach_ == Reach::kRegion && walk.probe.at_last_hop_in_region()) {
      visitor_.left_region(walk.i);
    } else if (!walk.probe.exhausted(view_.geometry)) {
      pass(walk);
    } else if constexpr (kPurpose == Purpose::kInsertion) {
      visitor_.write(walk.i, walk.probe.stored(), static_cast<SlotType*>(nullptr), false);
    } else if constexpr (!kFindsBlocks) {
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
      with_marks([&](auto marks) { slot = displace<Baseline>(marks, view_, walk.before, passed_.filter_bits); });
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
      const auto match = Baseline::template slots_with<View>(bucket, probe.stored());
      const auto empty = Baseline::template slots_with<View>(bucket, empty_key<Key>());
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
  const KeyRun keys_;
  Visitor visitor_;  // a copy
  const std::uint64_t most_far_;
  Passed passed_;
  Homes<Key> blocks_[2];          // the one looked at, and the next
  Key copied_[kHomes];            // the one after
  std::uint32_t last_[kTracked];  // by home bucket: whose walk was the last to come and wait; low bits of i
  Queue<Walk, kQueueSize> at_filter_;
  Queue<Walk, kQueueSize> at_bucket_;
};

/// What is told to a visitor for which there is no pipeline of its own. The functions are a pipeline's.
template <class View>
class AnyVisitor {
 public:
  using Key = typename View::Key;
  using SlotType = typename View::SlotType;
  virtual void found(std::int64_t i, SlotType* slot, bool any_empty) = 0;
  virtual void absent(std::int64_t i) = 0;
  virtual void write(std::int64_t i, const Key& stored, SlotType* slot, bool is_new) = 0;
  virtual void left_region(std::int64_t i) = 0;

 protected:
  ~AnyVisitor() = default;
};

namespace detail {

/// Passes on those functions that the visitor has.
template <class View, class Visitor>
class Forwarding final : public AnyVisitor<View> {
 public:
  using typename AnyVisitor<View>::Key;
  using typename AnyVisitor<View>::SlotType;
  explicit Forwarding(Visitor& to) : to_(to) {}

  void found([[maybe_unused]] std::int64_t i, [[maybe_unused]] SlotType* slot,
             [[maybe_unused]] bool any_empty) override {
    if constexpr (requires { to_.found(i, slot, any_empty); }) to_.found(i, slot, any_empty);
  }
  void absent([[maybe_unused]] std::int64_t i) override {
    if constexpr (requires { to_.absent(i); }) to_.absent(i);
  }
  void write([[maybe_unused]] std::int64_t i, [[maybe_unused]] const Key& stored, [[maybe_unused]] SlotType* slot,
             [[maybe_unused]] bool is_new) override {
    if constexpr (requires { to_.write(i, stored, slot, is_new); }) to_.write(i, stored, slot, is_new);
  }
  void left_region([[maybe_unused]] std::int64_t i) override {
    if constexpr (requires { to_.left_region(i); }) to_.left_region(i);
  }

 private:
  Visitor& to_;
};

/// The visitor of the pipelines that all such visitors share.
template <class View>
struct ToAny {
  static constexpr bool kHot = false;
  AnyVisitor<View>* to;

  void found(std::int64_t i, typename View::SlotType* slot, bool any_empty) { to->found(i, slot, any_empty); }
  void absent(std::int64_t i) { to->absent(i); }
  void write(std::int64_t i, const typename View::Key& stored, typename View::SlotType* slot, bool is_new) {
    to->write(i, stored, slot, is_new);
  }
  void left_region(std::int64_t i) { to->left_region(i); }
};

template <Purpose kPurpose, class View, class Visitor>
Passed run_pipeline(const View& view, Reach reach, const KeyRun& keys, Visitor& visitor, std::uint64_t most_far) {
  Pipeline<kPurpose, View, Visitor> pipeline(view, reach, keys, visitor, most_far);
  pipeline.run();
  visitor = pipeline.visitor();
  return pipeline.passed();
}

}  // namespace detail

/// Takes the keys to their places and returns what their walks have left behind. It stops soon after most_far keys have
/// come far from home, and has then taken the first keys alone. A visitor that is not hot shares its pipeline with all
/// others, by virtual calls.
template <Purpose kPurpose, class View, class Visitor>
Passed walk(const View& view, Reach reach, const KeyRun& keys, Visitor& visitor, std::uint64_t most_far = kAnyFarKeys) {
  if constexpr (requires { requires Visitor::kHot; }) {
    return detail::run_pipeline<kPurpose>(view, reach, keys, visitor, most_far);
  } else {
    detail::Forwarding<View, Visitor> forwarding(visitor);
    detail::ToAny<View> any{&forwarding};
    return detail::run_pipeline<kPurpose>(view, reach, keys, any, most_far);
  }
}

}  // namespace gpuhash::host
