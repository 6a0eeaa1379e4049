#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "error.hpp"
#include "host_walk.hpp"
#include "thread_pool.hpp"

/// How the host executor shares a batch out among threads.
///
/// Readers take a contiguous part of the batch each. Writers take a range of *regions* each ("owner computes"): every
/// thread scans the whole batch, in order, and acts on the keys of its regions only, so no two threads write to the
/// same bucket or filter byte, and a key's duplicates meet in batch order. The few keys whose walk would leave their
/// region are put aside and done by one thread afterwards, in batch order too: once a walk leaves its region, every
/// later walk of that key does (inserting makes no slot free, erasing makes no full bucket look empty), so all
/// duplicates of such a key are put aside together.
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

  void add_to(Control& control) const {
    control.size += size;
    control.filter_bits += filter_bits;
    control.erased += erased;
    control.dropped += dropped;
  }
};

/// The regions [begin, end) that a thread owns.
struct Owned {
  std::uint32_t begin;
  std::uint32_t end;

  Owned(const Geometry& geometry, int part, int parts)
      : begin(static_cast<std::uint32_t>(part_begin(geometry.region_count, part, parts))),
        end(static_cast<std::uint32_t>(part_begin(geometry.region_count, part + 1, parts))) {}
  bool has(std::uint32_t region) const { return begin <= region && region < end; }
};

/// One bit per key of a batch; threads set bits of the same word.
class Marks {
 public:
  explicit Marks(std::int64_t count) : words_(scratch<std::uint64_t>((count + 63) / 64)) {}

  void set(std::int64_t i) {
    std::atomic_ref(words_[static_cast<std::size_t>(i / 64)])
        .fetch_or(std::uint64_t{1} << (i % 64), std::memory_order_relaxed);
  }
  /// Calls body(i) for every mark, in order.
  template <class Body>
  void for_each(Body body) const {
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::uint64_t rest = words_[w]; rest != 0; rest &= rest - 1)
        body(static_cast<std::int64_t>(w * 64) + std::countr_zero(rest));
  }

 private:
  std::vector<std::uint64_t> words_;
};

/// Calls act(i, stored key, place, tally) for every key of the batch; keys that are equal in batch order, others in any
/// order and on several threads. Adds the tallies to the table's control.
template <Purpose kPurpose, class View, class Act>
void write_each(const View& view, const KeyBatch& keys, Act act) {
  const int parts = writer_parts(keys.count, view.geometry);
  const auto act_anywhere = [&](std::int64_t i, const auto& probe, Tally& tally) {
    const auto place = walk<kPurpose, Reach::kTable>(view, probe);
    tally.filter_bits += place.new_filter_bits;
    act(i, probe.stored(), place, tally);
  };
  if (parts == 1) {
    Tally tally;
    for_each_probe(view, keys, 0, keys.count,
                   [&](std::int64_t i, const auto& probe) { act_anywhere(i, probe, tally); });
    tally.add_to(*view.control);
    return;
  }

  Marks put_aside(keys.count);
  auto tallies = scratch<Tally>(parts);
  parallel_for(parts, [&](int part) {
    const Owned owned(view.geometry, part, parts);
    Tally tally;
    for_each_probe(
        view, keys, 0, keys.count, [&](const auto& probe) { return owned.has(probe.region(view.geometry)); },
        [&](std::int64_t i, const auto& probe) {
          const auto place = walk<kPurpose, Reach::kRegion>(view, probe);
          tally.filter_bits += place.new_filter_bits;
          if (place.left_region)
            put_aside.set(i);
          else
            act(i, probe.stored(), place, tally);
        });
    tallies[static_cast<std::size_t>(part)] = tally;
  });
  Tally last;
  put_aside.for_each([&](std::int64_t i) {
    using Key = typename View::Key;
    act_anywhere(i, Probe<Key>(load_word<Key>(keys.data, i, keys.bytes), view.geometry), last);
  });
  for (const Tally& tally : tallies) tally.add_to(*view.control);
  last.add_to(*view.control);
}

}  // namespace gpuhash::host
