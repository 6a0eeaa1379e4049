#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "host_pipeline.hpp"
#include "thread_pool.hpp"

/// How the host executor shares a batch out among threads.
///
/// Readers take a contiguous part of the batch each. Writers take a range of *regions* each ("owner computes"): the
/// batch is first sorted by owner, stably, and then every thread acts on the keys of its regions. So no two threads
/// write to the same bucket or filter byte, and a key's duplicates meet in batch order. The few keys whose walk would
/// leave their region are put aside and done by one thread afterwards, in batch order too: once a walk leaves its
/// region, every later walk of that key does (inserting makes no slot free, erasing makes no full bucket look empty),
/// so all duplicates of such a key are put aside together.
namespace gpuhash::host {

/// Fewer keys than this per thread are not worth waking it for.
inline constexpr std::int64_t kKeysPerThread = 8192;

inline int reader_parts(std::int64_t count) {
  if (count < 2 * kKeysPerThread) return 1;
  return static_cast<int>(std::min<std::int64_t>(thread_count(), count / kKeysPerThread));
}

inline int writer_parts(std::int64_t count, const Geometry& geometry) {
  if (count < 2 * kKeysPerThread) return 1;
  return static_cast<int>(std::min<std::int64_t>(reader_parts(count), geometry.region_count));
}

/// Where part p of `parts` begins.
inline std::int64_t part_begin(std::int64_t count, int part, int parts) {
  return static_cast<std::int64_t>(static_cast<__int128>(count) * part / parts);
}

/// Zeroed scratch memory.
template <class T>
std::vector<T> scratch(std::int64_t count) {
  try {
    return std::vector<T>(static_cast<std::size_t>(count));
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError("could not allocate " + std::to_string(count * static_cast<std::int64_t>(sizeof(T))) +
                           " bytes of scratch memory");
  }
}

/// Calls body(part, begin, end) for every part of [0, count).
template <class Body>
void for_each_part(std::int64_t count, int parts, Body body) {
  if (parts == 1) return body(0, std::int64_t{0}, count);
  parallel_for(parts,
               [&](int part) { body(part, part_begin(count, part, parts), part_begin(count, part + 1, parts)); });
}

/// What a thread has changed; added to Control at the end. Differences wrap.
struct Tally {
  std::uint64_t size = 0;
  std::uint64_t filter_bits = 0;
  std::uint64_t erased = 0;
  std::uint64_t dropped = 0;

  /// To Control or another tally.
  template <class Total>
  void add_to(Total& total) const {
    total.size += size;
    total.filter_bits += filter_bits;
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

/// Stably sorts the positions of a chunk of a batch by the thread that owns their key's region. Every thread sorts a
/// part of the chunk; what an owner gets is then one list of every part, in the order of the parts.
class Shares {
 public:
  /// Positions in a chunk: what is written about them stays in cache until it is read.
  static constexpr std::int64_t kChunk = std::int64_t{1} << 20;

  Shares(std::int64_t largest_chunk, int parts)
      : parts_(parts),
        offsets_(scratch<std::uint32_t>(largest_chunk)),
        owners_(scratch<std::uint16_t>(largest_chunk)),
        begins_(scratch<std::uint32_t>(parts * (parts + 1))) {}

  template <class View>
  void sort(const View& view, const KeyBatch& keys, std::int64_t base, std::int64_t count) {
    using Key = typename View::Key;
    for_each_part(count, parts_, [&](int part, std::int64_t begin, std::int64_t end) {
      if (keys.bytes == sizeof(Key))
        sort_part(view, WholeKeys<Key>{static_cast<const Key*>(keys.data)}, base, part, begin, end);
      else
        sort_part(view, AnyKeys<Key>{keys.data, keys.bytes}, base, part, begin, end);
    });
  }

  /// What the owner has of one part of the chunk: offsets in the chunk, ascending.
  const std::uint32_t* begin(int part, int owner) const { return offsets_.data() + begins_[index(part, owner)]; }
  std::int64_t size(int part, int owner) const { return begins_[index(part, owner + 1)] - begins_[index(part, owner)]; }

 private:
  std::size_t index(int part, int owner) const { return static_cast<std::size_t>(part * (parts_ + 1) + owner); }

  template <class View, class Keys>
  void sort_part(const View& view, const Keys& keys, std::int64_t base, int part, std::int64_t begin,
                 std::int64_t end) {
    // Regions are dealt out in ranges of nearly equal length: region * parts / region_count, without the division.
    const std::uint64_t owners_per_region = (static_cast<std::uint64_t>(parts_) << 32) / view.geometry.region_count;
    std::uint32_t* const begins = begins_.data() + index(part, 0);
    std::fill_n(begins, parts_ + 1, 0);
    for (std::int64_t n = begin; n < end; ++n) {
      const Probe<typename View::Key> probe(keys[base + n], view.geometry);
      const auto owner = static_cast<std::uint16_t>(probe.region(view.geometry) * owners_per_region >> 32);
      owners_[static_cast<std::size_t>(n)] = owner;
      ++begins[owner + 1];
    }
    begins[0] = static_cast<std::uint32_t>(begin);
    for (int owner = 0; owner < parts_; ++owner) begins[owner + 1] += begins[owner];
    // Lists are written from their end to their beginning: begins[owner + 1] ends up at the beginning of owner's.
    for (std::int64_t n = end; n-- > begin;)
      offsets_[--begins[owners_[static_cast<std::size_t>(n)] + 1]] = static_cast<std::uint32_t>(n);
    std::copy_n(begins + 1, parts_, begins);
    begins[parts_] = static_cast<std::uint32_t>(end);
  }

  int parts_;
  std::vector<std::uint32_t> offsets_;  // [chunk]
  std::vector<std::uint16_t> owners_;   // [chunk]
  std::vector<std::uint32_t> begins_;   // [parts, parts + 1]
};

/// What a pipeline tells, passed on to the batch's operation together with the thread's tally.
template <class Operation>
struct Writer {
  static constexpr bool kPlain = Operation::kPlain;

  Operation operation;
  Tally tally{};
  Marks* put_aside = nullptr;
  std::int64_t base = 0;

  template <class Slot>
  void found(std::int64_t i, Slot* slot) {
    operation.found(i, slot, tally);
  }
  void absent(std::int64_t i) { operation.absent(i); }
  template <class Key, class Slot>
  void place(std::int64_t i, const Key& stored, Slot* slot, bool is_new) {
    tally.size += is_new ? 1 : 0;
    tally.dropped += slot == nullptr ? 1 : 0;
    operation.place(i, stored, slot, is_new);
  }
  void left_region(std::int64_t i) { put_aside->set(i - base); }
};

/// Performs an operation on every key of the batch: on keys that are equal in batch order, on others in any order and
/// on several threads. Adds to the table's control. The operation has
///
///   found(i, slot, tally), absent(i)   kLookup, one of them for each key
///   place(i, stored, slot, is_new)     kInsertion; slot null: there was none
///   kPlain                             as walk_each() wants it
template <Purpose kPurpose, class View, class Operation>
void write_each(const View& view, const KeyBatch& keys, const Operation& operation) {
  const int parts = writer_parts(keys.count, view.geometry);
  if (parts == 1) {
    Writer<Operation> writer{operation};
    writer.tally.filter_bits += walk_each<kPurpose>(view, Reach::kTable, keys, FromPosition{0}, keys.count, writer);
    writer.tally.add_to(*view.control);
    return;
  }

  const std::int64_t largest_chunk = std::min(keys.count, Shares::kChunk);
  Shares shares(largest_chunk, parts);
  Marks put_aside(largest_chunk);
  auto tallies = scratch<Tally>(parts);
  for (std::int64_t base = 0; base < keys.count; base += Shares::kChunk) {
    const std::int64_t count = std::min(Shares::kChunk, keys.count - base);
    shares.sort(view, keys, base, count);
    parallel_for(parts, [&](int owner) {
      Writer<Operation> writer{operation, {}, &put_aside, base};
      for (int part = 0; part < parts; ++part)
        writer.tally.filter_bits +=
            walk_each<kPurpose>(view, Reach::kRegion, keys, ListedPositions{shares.begin(part, owner), base},
                                shares.size(part, owner), writer);
      writer.tally.add_to(tallies[static_cast<std::size_t>(owner)]);
    });
    Writer<Operation> last{operation};
    put_aside.take_each([&](std::int64_t offset) {
      last.tally.filter_bits += walk_each<kPurpose>(view, Reach::kTable, keys, FromPosition{base + offset}, 1, last);
    });
    last.tally.add_to(*view.control);
  }
  for (const Tally& tally : tallies) tally.add_to(*view.control);
}

}  // namespace gpuhash::host
