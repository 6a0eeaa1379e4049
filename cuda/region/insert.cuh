#pragma once

#include <cstdint>

#include "cuda/region/chunk.cuh"
#include "cuda/region/displace.cuh"
#include "cuda/region/shared_region.cuh"
#include "shared/layout.hpp"
#include "shared/probe_sequence.hpp"

namespace gpuhash::cuda {

enum class Outcome : std::uint8_t {
  kFound,
  kNew,
  kFull,  // not in this bucket, which has no free slot
  kLeft,  // its walk leaves the region
};

/// What became of an item, and, of one that is in the table, where its slot is.
struct InsertResult {
  Outcome outcome;
  std::uint32_t at;
};

/// As find_or_insert() in cuda/walk/insert.cuh, by one thread and in one region. Puts the key there, and leaves the
/// value to the caller.
template <class View>
__device__ __forceinline__ InsertResult find_or_insert_in_region(SharedRegion<View>& region, std::uint32_t first_bucket,
                                                                 Probe<typename View::Key> probe,
                                                                 const Geometry& geometry, int& filter_bits) {
  using Key = typename View::Key;
  using Region = SharedRegion<View>;
  bool remembered = false;
  bool returned = false;
  std::uint32_t remembered_bucket = 0;
  std::uint32_t remembered_hop = 0;
  while (true) {
    const std::uint32_t bucket = probe.bucket() - first_bucket;
    const SharedSeen seen = look_in_region(region, bucket, probe.stored());
    if (seen.hit != 0) return {Outcome::kFound, seen.hit - 1};
    std::uint32_t free = seen.empty | seen.erased;
    if (free != 0 && !remembered) {
      remembered = true;
      remembered_bucket = probe.bucket();
      remembered_hop = probe.hop();
    }
    const auto filter_has_key = [&] { return region.filter_has(bucket, probe.filter_bit()); };
    if (!returned && !search_ends(seen.empty != 0, filter_has_key)) {
      if (probe.at_last_hop_in_region()) return {Outcome::kLeft, 0};
      probe.next(geometry);
    } else if (remembered && remembered_bucket == probe.bucket() && remembered_hop == probe.hop()) {
      for (; free != 0; free &= free - 1) {
        const std::uint32_t slot = __ffs(free) - 1;
        const std::uint32_t at = Region::index_of(bucket, slot);
        const Key mark = seen.empty >> slot & 1 ? empty_key<Key>() : erased_key<Key>();
        const Key was = region.swap_key(at, mark, probe.stored());
        if (was == mark) return {Outcome::kNew, at};
        if (was == probe.stored()) return {Outcome::kFound, at};
      }
      remembered = false;
      returned = false;
    } else if (remembered) {
      probe.move_to(remembered_bucket, remembered_hop);
      returned = true;
    } else {
      filter_bits += region.set_filter(bucket, probe.filter_bit());
      if (probe.at_last_hop_in_region()) return {Outcome::kLeft, 0};
      probe.next(geometry);
    }
  }
}

/// The first part of a round: looks into the bucket, and takes an empty slot there if the key is not in it. kFull: it
/// is not, and has none.
///
/// kMayWalk: where the bucket has erased slots, the key walks to its end at once. Otherwise that counts as full.
template <bool kMayWalk, class View>
__device__ __forceinline__ InsertResult look_into_bucket(SharedRegion<View>& region, std::uint32_t first_bucket,
                                                         const Geometry& geometry,
                                                         const Probe<typename View::Key>& probe, int& filter_bits) {
  using Key = typename View::Key;
  if (probe.bucket() == geometry.bucket_count) return {Outcome::kLeft, 0};
  const std::uint32_t bucket = probe.bucket() - first_bucket;
  const SharedSeen seen = look_in_region(region, bucket, probe.stored());
  if (seen.hit != 0) return {Outcome::kFound, seen.hit - 1};
  if (seen.erased != 0) {
    if constexpr (!kMayWalk) return {Outcome::kFull, 0};
    return find_or_insert_in_region(region, first_bucket, Probe<Key>(probe.stored(), geometry), geometry, filter_bits);
  }
  for (std::uint32_t free = seen.empty; free != 0; free &= free - 1) {
    const std::uint32_t at = SharedRegion<View>::index_of(bucket, __ffs(free) - 1);
    const Key was = region.swap_key(at, empty_key<Key>(), probe.stored());
    if (was == empty_key<Key>()) return {Outcome::kNew, at};
    if (was == probe.stored()) return {Outcome::kFound, at};
  }
  return {Outcome::kFull, 0};
}

/// The second part: passes full buckets, where the key may lie behind them, or the next one has room, or no key can
/// move. True if the probe has come to a bucket with room, which the next round looks into. close(result) hears of a
/// key that is found on the way, or leaves the region, and makes `open` false.
template <class View, class Close>
__device__ __forceinline__ bool pass_full_buckets(SharedRegion<View>& region, const Backlog& backlog,
                                                  std::uint32_t first_bucket, const Geometry& geometry,
                                                  Probe<typename View::Key>& probe, const bool& open, int& filter_bits,
                                                  Close close) {
  bool stays = false;
  while (open && !stays) {
    const std::uint32_t bucket = probe.bucket() - first_bucket;
    const bool must_pass = region.filter_has(bucket, probe.filter_bit()) || backlog.is_stuck(bucket);
    const bool last = probe.at_last_hop_in_region();
    Probe<typename View::Key> next = probe;
    if (!last) next.next(geometry);
    const SharedSeen seen = look_in_region(region, next.bucket() - first_bucket, probe.stored());
    if (!must_pass && seen.empty == 0) break;
    filter_bits += region.set_filter(bucket, probe.filter_bit());
    probe = next;
    stays = seen.empty != 0 || seen.erased != 0;
    if (last) close({Outcome::kLeft, 0});
    if (seen.hit != 0) close({Outcome::kFound, seen.hit - 1});
  }
  return stays;
}

/// The third part: the key takes the place of another in its full bucket, unless a duplicate has passed, or another
/// item displaces there in this round; close(result) hears of it. The bucket is stuck where no key can move.
template <class View, class Close>
__device__ __forceinline__ void displace_a_key(SharedRegion<View>& region, Backlog& backlog, std::uint32_t first_bucket,
                                               const Geometry& geometry, const Probe<typename View::Key>& probe,
                                               bool wanted, int& filter_bits, Close close) {
  const std::uint32_t bucket = probe.bucket() - first_bucket;
  if (wanted && !region.filter_has(bucket, probe.filter_bit()) && backlog.take(bucket)) {
    const std::uint32_t freed = displace_in_region(region, first_bucket, bucket, probe.stored(), geometry, filter_bits);
    if (freed != 0)
      close({Outcome::kNew, freed - 1});
    else
      backlog.set_stuck(bucket);
  }
}

/// Inserts the keys of items [0, count) of a chunk; all threads of the block call it. load(i, item) gets item i and is
/// false where there is none; done(i, item, outcome, at) hears what became of it and writes the value, and is not
/// called for leavers, which the backlog then knows, and of which there are as many as the result says.
///
/// Nearly all items find their key or an empty slot in their home bucket. The others are packed together and go on in
/// rounds, so that lanes do not wait for the longest walk among them. Placed where they first find an empty slot, they
/// would walk far at high load, and with them all searches for their keys: so a key that finds neither its bucket nor
/// the next one free takes the place of one that can move on (R. P. Brent, "Reducing the retrieval time of scatter
/// storage techniques", CACM 16, 1973). Each round has three parts:
///
///   1. look_into_bucket(): the key may be there, or an empty slot.
///   2. pass_full_buckets(), where the key may lie behind them, or the next one has room, or no key can move.
///   3. Else displace_a_key(); one item per bucket and round does, and the others look again.
///
/// Two duplicates never both insert their key. In 1, keys only take empty slots, and the first one that two duplicates
/// both try decides. In 2 nothing changes but filter bits, and whoever passes a bucket sets the key's bit there; in 3
/// the bit keeps all duplicates from displacing, and those that wait find it, or the key, afterwards. What is full or
/// stuck stays so: where one has passed, the others will.
///
/// kDistinct: all keys are new, and none comes twice, so that nobody needs to look for one in its home bucket.
template <class View, bool kDistinct = false, class Load, class Done>
__device__ __forceinline__ std::uint32_t insert_in_rounds(SharedRegion<View>& region, Backlog& backlog,
                                                          std::uint32_t first_bucket, const Geometry& geometry,
                                                          std::uint32_t count, int& filter_bits, Load load, Done done) {
  using Key = typename View::Key;
  using Item = typename View::SlotType;

  backlog.reset();
  __syncthreads();  // the region is there, too
  for_each_ahead<Item>(count, load, [&](std::uint32_t i, const Item& item) {
    const Probe<Key> probe(item.key, geometry);
    InsertResult result{Outcome::kFull, 0};
    if constexpr (kDistinct) {
      const std::uint32_t claimed = claim_in_region(region, probe.bucket() - first_bucket, item.key);
      if (claimed != 0) result = {Outcome::kNew, claimed - 1};
    } else {
      result = look_into_bucket<false>(region, first_bucket, geometry, probe, filter_bits);
    }
    if (result.outcome == Outcome::kFound || result.outcome == Outcome::kNew)
      done(i, item, result.outcome, result.at);
    else
      backlog.push(i);
  });
  __syncthreads();
  const std::uint32_t pending = backlog.pending;
  if (pending == 0) return 0;

  bool open = false;
  std::uint32_t at = threadIdx.x;  // in the backlog
  std::uint32_t i = 0;
  Item item{};
  Probe<Key> probe;
  const auto close = [&](const InsertResult& result) {
    if (result.outcome == Outcome::kFull || !open) return;
    open = false;
    if (result.outcome == Outcome::kLeft)
      backlog.push_leaver(i);
    else
      done(i, item, result.outcome, result.at);
  };
  do {
    if (!open && at < pending) {
      i = backlog.items[at];
      load(i, item);
      probe = Probe<Key>(item.key, geometry);
      open = true;
      at += kRegionBlock;
    }
    if (open) close(look_into_bucket<!kDistinct>(region, first_bucket, geometry, probe, filter_bits));
    __syncthreads();
    const bool stays = pass_full_buckets(region, backlog, first_bucket, geometry, probe, open, filter_bits, close);
    __syncthreads();
    displace_a_key(region, backlog, first_bucket, geometry, probe, open && !stays, filter_bits, close);
    if (!__syncthreads_or(open || at < pending)) return backlog.leavers;
    backlog.end_round();
  } while (true);
}

}  // namespace gpuhash::cuda
