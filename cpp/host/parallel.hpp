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
#include "host/homes.hpp"
#include "host/owners.hpp"
#include "host/pipeline.hpp"
#include "host/simd.hpp"

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

/// Deals the keys of a chunk of a batch out to the threads that own their regions. Every thread deals a part of the
/// chunk; what an owner gets is then one list from every part, in the order of the parts.
class Shares {
 public:
  /// Positions in a chunk, at least: enough of them for each thread that starting it does not show, few enough that the
  /// lists stay in cache until they are read.
  static constexpr std::int64_t kChunk = std::int64_t{1} << 18;

  Shares(std::int64_t count, int parts)
      : chunk_(std::min(count, std::max(kChunk, parts * 2 * kKeysPerWriter))),
        parts_(parts),
        // A list may get all of its part. What it does not get is never touched, so no memory is needed for it.
        room_(chunk_ / parts + 1),
        offsets_(uninitialised<std::uint32_t>(room_ * parts * parts)),
        sizes_(scratch<std::int64_t>(parts * parts)) {}

  std::int64_t chunk() const { return chunk_; }

  template <class View>
  void deal(const View& view, const KeyBatch& keys, std::int64_t base, std::int64_t count) {
    for_each_part(count, parts_, [&](int part, std::int64_t begin, std::int64_t end) {
      with_keys<View>(keys, [&](const auto& keys_of) {
        std::fill_n(sizes_of(part), parts_, 0);
        deal_offsets(view, keys_of, base, part, FromPosition{begin}, end - begin);
      });
    });
  }

  /// As deal(), but for keys that sieves take. sieve_of(part, base + begin, base + end) gives one for these positions;
  /// its pass(keys, base, begin, end, to) lists the offsets that it leaves, and returns how many they are.
  template <class View, class SieveOf>
  void deal_sieved(const View& view, const KeyBatch& keys, std::int64_t base, std::int64_t count,
                   const SieveOf& sieve_of) {
    for_each_part(count, parts_, [&](int part, std::int64_t begin, std::int64_t end) {
      auto sieve = sieve_of(part, base + begin, base + end);
      with_keys<View>(keys, [&](const auto& keys_of) {
        std::fill_n(sizes_of(part), parts_, 0);
        if (parts_ == 1) {
          sizes_[0] = sieve.pass(keys_of, base, begin, end, offsets_.get());
          return;
        }
        std::uint32_t left[kSieved];
        for (; begin < end; begin += kSieved) {
          const std::int64_t left_count = sieve.pass(keys_of, base, begin, std::min(begin + kSieved, end), left);
          deal_offsets(view, keys_of, base, part, ListedPositions{left, 0}, left_count);
        }
      });
    });
  }

  /// What the owner has got of one part of the chunk: offsets in the chunk, ascending.
  const std::uint32_t* list(int part, int owner) const { return offsets_.get() + (part * parts_ + owner) * room_; }
  /// Memory for as many offsets as a chunk has keys: that of the lists, when they have been read.
  std::uint32_t* take_lists() { return offsets_.get(); }
  std::int64_t size(int part, int owner) const { return sizes_[static_cast<std::size_t>(part * parts_ + owner)]; }

 private:
  static constexpr std::int64_t kSieved = 1024;

  template <class View, class Body>
  static void with_keys(const KeyBatch& keys, const Body& body) {
    using Key = typename View::Key;
    if (keys.bytes == sizeof(Key)) return body(WholeKeys<Key>{static_cast<const Key*>(keys.data)});
    if constexpr (sizeof(Key) == 2 * HalfKeys<Key>::kBytes)
      if (keys.bytes == HalfKeys<Key>::kBytes) return body(HalfKeys<Key>{keys.data});
    body(AnyKeys<Key>{keys.data, keys.bytes});
  }

  std::int64_t* sizes_of(int part) { return sizes_.data() + part * parts_; }

  /// Appends offsets in the chunk to the lists of their owners.
  template <class View, class Keys, class Offsets>
  void deal_offsets(const View& view, const Keys& keys, std::int64_t base, int part, const Offsets& offsets,
                    std::int64_t count) {
    std::uint32_t* const lists = offsets_.get() + part * parts_ * room_;
    std::int64_t* const sizes = sizes_of(part);
    const Geometry geometry = view.geometry;
    if (parts_ == 2) {  // the sizes stay in registers
      std::uint32_t* const to_first = lists + sizes[0];
      std::uint32_t* const to_second = lists + room_ + sizes[1];
      std::int64_t second = 0;
      with_simd([&](auto simd) {
        std::int64_t seconds = 0;
        for_each_region(simd, geometry, keys, base, offsets, count,
                        [&](std::int64_t j, std::int64_t n, std::uint32_t region) {
                          to_first[j - seconds] = static_cast<std::uint32_t>(n);
                          to_second[seconds] = static_cast<std::uint32_t>(n);
                          seconds += region % 2;
                        });
        second = seconds;
      });
      sizes[0] += count - second;
      sizes[1] += second;
      return;
    }
    const Owners owners(static_cast<std::uint32_t>(parts_));
    std::int64_t own_sizes[kMostWriters];  // on the stack: in sizes_ they would share a line with other threads'
    std::copy_n(sizes, parts_, own_sizes);
    with_simd([&](auto simd) {
      for_each_region(simd, geometry, keys, base, offsets, count,
                      [&](std::int64_t, std::int64_t n, std::uint32_t region) {
                        const auto owner = static_cast<std::int64_t>(owners.of(region));
                        lists[owner * room_ + own_sizes[owner]++] = static_cast<std::uint32_t>(n);
                      });
    });
    std::copy_n(own_sizes, parts_, sizes);
  }

  /// Calls body(j, offsets[j], the region of that key) for each of `count` offsets.
  template <class Simd, class Keys, class Offsets, class Body>
  static void for_each_region(const Simd& simd, const Geometry& geometry, const Keys& keys, std::int64_t base,
                              const Offsets& offsets, std::int64_t count, const Body& body) {
    using Key = std::remove_cvref_t<decltype(keys[0])>;
    if constexpr (Homes<Key>::template kByEight<Simd>) {
      constexpr auto kBlock = static_cast<std::int64_t>(kHomes);
      constexpr bool kInRow = std::is_same_v<Keys, WholeKeys<Key>> && std::is_same_v<Offsets, FromPosition>;
      Homes<Key> homes;
      std::uint32_t regions[kHomes];
      Key copied[kHomes];  // a block before they are hashed, unless they stand in a row: as in the pipeline
      const auto copy = [&](std::int64_t begin) {
        for (std::int64_t j = begin; j < std::min(begin + kBlock, count); ++j)
          copied[j - begin] = keys[base + offsets[j]];
      };
      if constexpr (!kInRow) copy(0);
      for (std::int64_t begin = 0; begin < count; begin += kBlock) {
        const auto size = static_cast<std::size_t>(std::min(kBlock, count - begin));
        if constexpr (kInRow) {
          homes.fill(simd, keys.data + base + offsets[begin], size, geometry);
        } else {
          homes.fill(simd, copied, size, geometry);
          copy(begin + kBlock);
        }
        for (std::size_t b = 0; b < size; ++b) regions[b] = homes.region(b, geometry);
        for (std::size_t b = 0; b < size; ++b) {
          const std::int64_t j = begin + static_cast<std::int64_t>(b);
          body(j, offsets[j], regions[b]);
        }
      }
    } else {
      for (std::int64_t j = 0; j < count; ++j) {
        const std::int64_t n = offsets[j];
        body(j, n, Probe<Key>(keys[base + n], geometry).region(geometry));
      }
    }
  }

  std::int64_t chunk_;
  int parts_;
  std::int64_t room_;                         // of each list
  std::unique_ptr<std::uint32_t[]> offsets_;  // [part, owner, room]
  std::vector<std::int64_t> sizes_;           // [part, owner]
};

/// What a pipeline tells, passed on to the batch's operation together with the thread's tally.
template <class Operation>
struct Writer {
  static constexpr std::int64_t kKeyBytes = Operation::kKeyBytes;

  Operation operation;
  Tally tally{};
  Marks* put_aside = nullptr;
  std::int64_t base = 0;

  template <class Slot>
  void found(std::int64_t i, Slot* slot, bool any_empty) {
    operation.found(i, slot, any_empty, tally);
  }
  void absent(std::int64_t i) { operation.absent(i); }
  void ask(std::int64_t i) const
    requires requires(const Operation& of) { of.ask(i); }
  {
    operation.ask(i);
  }
  template <class Key, class Slot>
  void write(std::int64_t i, const Key& stored, Slot* slot, bool is_new) {
    tally.size += is_new ? 1 : 0;
    tally.dropped += slot == nullptr ? 1 : 0;
    operation.write(i, stored, slot, is_new);
  }
  void left_region(std::int64_t i) { put_aside->set(i - base); }
};

/// Scratch memory of writers that share a batch.
struct WriterMemory {
  Shares shares;
  Marks put_aside;
  std::vector<Tally> tallies;

  /// Nothing where there is none.
  static std::optional<WriterMemory> make(std::int64_t count, int parts) {
    try {
      Shares shares(count, parts);
      Marks put_aside(shares.chunk());
      return WriterMemory{std::move(shares), std::move(put_aside), scratch<Tally>(parts)};
    } catch (const OutOfMemoryError&) {
      return std::nullopt;
    }
  }
};

/// deal(base, count): deals these positions of the batch out.
template <Purpose kPurpose, class View, class Operation, class Deal>
void write_shared(const View& view, const KeyBatch& keys, const Operation& operation, WriterMemory& memory,
                  const Deal& deal) {
  const auto parts = static_cast<int>(memory.tallies.size());
  in_pieces(0, keys.count, memory.shares.chunk(), [&](std::int64_t base, std::int64_t end) {
    deal(base, end - base);
    parallel_for(parts, [&](int owner) {
      Writer<Operation> writer{operation, {}, &memory.put_aside, base};
      for (int part = 0; part < parts; ++part)
        writer.tally.add(walk_each<kPurpose>(view, Reach::kRegion, keys,
                                             ListedPositions{memory.shares.list(part, owner), base},
                                             memory.shares.size(part, owner), writer));
      memory.tallies[static_cast<std::size_t>(owner)] = writer.tally;
    });
    for (const Tally& tally : memory.tallies) tally.add_to(*view.control);
    std::uint32_t* const left = memory.shares.take_lists();
    std::int64_t left_count = 0;
    memory.put_aside.take_each([&](std::int64_t offset) { left[left_count++] = static_cast<std::uint32_t>(offset); });
    if (left_count == 0) return;
    Writer<Operation> last{operation};
    last.tally.add(walk_each<kPurpose>(view, Reach::kTable, keys, ListedPositions{left, base}, left_count, last));
    last.tally.add_to(*view.control);
  });
}

/// Keys [begin, end) of a batch, by one thread.
template <Purpose kPurpose, class View, class Operation>
void write_range(const View& view, const KeyBatch& keys, const Operation& operation, std::int64_t begin,
                 std::int64_t end) {
  Writer<Operation> writer{operation};
  writer.tally.add(walk_each<kPurpose>(view, Reach::kTable, keys, FromPosition{begin}, end - begin, writer));
  writer.tally.add_to(*view.control);
}

/// Performs an operation on every key of the batch: on keys that are equal in batch order, on others in any order and
/// on several threads. Adds to the table's control, also where it is interrupted: then it has been performed on a first
/// part of the batch. Without scratch memory one thread does it all. The operation has
///
///   found(i, slot, any_empty, tally), absent(i)   kLookup, one of them for each key
///   write(i, stored, slot, is_new)                kInsertion; slot null: there was none
///   ask(i)                                        if it has this, as walk_each() wants it
///   kKeyBytes                                     as walk_each() wants it
template <Purpose kPurpose, class View, class Operation>
void write_each(const View& view, const KeyBatch& keys, const Operation& operation) {
  const int parts = writer_parts(keys.count, view);
  if (parts > 1) {
    std::optional<WriterMemory> memory = WriterMemory::make(keys.count, parts);
    if (memory) {
      const auto deal = [&](std::int64_t base, std::int64_t count) { memory->shares.deal(view, keys, base, count); };
      return write_shared<kPurpose>(view, keys, operation, *memory, deal);
    }
  }
  in_pieces(0, keys.count, kKeysPerPiece,
            [&](std::int64_t begin, std::int64_t end) { write_range<kPurpose>(view, keys, operation, begin, end); });
}

}  // namespace gpuhash::host
