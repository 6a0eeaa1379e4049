#pragma once

#include <type_traits>

#include "cuda/batch.cuh"
#include "cuda/launch.cuh"
#include "cuda/rows/rows.cuh"
#include "cuda/walk/probe.cuh"
#include "shared/advance_chain.hpp"
#include "table/executor.hpp"

namespace gpuhash::cuda {

/// What insertions count, per thread.
struct Counts {
  int inserted = 0;
  int filter_bits = 0;
  int dropped = 0;

  template <class View>
  __device__ __forceinline__ void add_to(const View& view, Workspace& work) const {
    std::uint64_t* const counters[3] = {&view.control->size, &view.control->filter_bits, &view.control->dropped};
    add_to_control(work, counters, {inserted, filter_bits, dropped});
  }
};

/// Every key may claim a slot: there is room for all.
struct NoBudget {
  template <class View>
  __device__ __forceinline__ bool take(const View&) const {
    return true;
  }
};

/// A batch that may not fit: whoever is about to claim a slot takes it from the budget first, which is what the table's
/// size lacks to `most`. A block that inserts anything takes a slot for each of its threads at once, and gives back
/// what it has not used when it ends: an atomic for each warp would cost a third of the speed. Near the end of the
/// budget each warp takes what it needs.
struct Budget {
  struct Loan {  // of a block
    unsigned state;
    unsigned taken;
  };
  enum : unsigned { kNone, kAsked, kForBlock, kForWarps };
  /// What blocks may have taken and not used yet matters only where less than this is left.
  static constexpr std::uint64_t kPlenty = std::uint64_t{1} << 18;

  Loan* loan;  // in shared memory
  std::uint64_t most;

  /// All threads of the block call it.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) *loan = {kNone, 0};
    __syncthreads();
  }

  /// Lanes that want a slot call it, each at most once; false: there is none left.
  template <class View>
  __device__ __forceinline__ bool take(const View& view) const {
    const unsigned takers = __activemask();
    const int lane = threadIdx.x % 32;
    const int leader = __ffs(takers) - 1;
    unsigned granted = 0;
    if (lane == leader) {
      unsigned state = atomicCAS(&loan->state, kNone, kAsked);
      if (state == kNone) {
        const std::uint64_t size = *static_cast<const volatile std::uint64_t*>(&view.control->size);
        state = size + kPlenty <= most && borrow(view, kBlock) == kBlock ? kForBlock : kForWarps;
        atomicExch(&loan->state, state);
      }
      while (state == kAsked) state = *static_cast<volatile unsigned*>(&loan->state);
      granted = state == kForBlock ? 32 : borrow(view, static_cast<unsigned>(__popc(takers)));
    }
    granted = __shfl_sync(takers, granted, leader);
    return static_cast<unsigned>(__popc(takers & ((1u << lane) - 1))) < granted;
  }

  /// As Counts::add_to(); keys for which there was no slot are in counts.dropped.
  template <class View>
  __device__ __forceinline__ void settle(const View& view, const Counts& counts, Workspace& work) const {
    std::uint64_t* const counters[3] = {&view.control->size, &view.control->filter_bits, &view.control->left};
    __syncthreads();  // nobody borrows any more
    const int taken = threadIdx.x == 0 ? static_cast<int>(loan->taken) : 0;
    add_to_control(work, counters, {counts.inserted - taken, counts.filter_bits, counts.dropped});
  }

 private:
  /// Takes up to `slots` from the budget; returns how many.
  template <class View>
  __device__ __forceinline__ unsigned borrow(const View& view, unsigned slots) const {
    auto* const size = reinterpret_cast<unsigned long long*>(&view.control->size);
    const std::uint64_t before = atomicAdd(size, static_cast<unsigned long long>(slots));
    const std::uint64_t room = before < most ? most - before : 0;
    const unsigned granted = room < slots ? static_cast<unsigned>(room) : slots;
    if (granted != slots) atomicAdd(size, static_cast<unsigned long long>(granted) - slots);
    if (granted != 0) atomicAdd(&loan->taken, granted);
    return granted;
  }
};

/// Not beyond what is_flooded() asks for: keys that were picked to meet would stand in line at the counter, too.
template <class View>
__device__ __forceinline__ void count_far_key(const View& view) {
  if (*static_cast<const volatile std::uint64_t*>(&view.control->far_keys) < kManyFarKeys)
    atomicAdd(reinterpret_cast<unsigned long long*>(&view.control->far_keys), 1ull);
}

/// Sets the bits of each lane's key in the first `hops` buckets of its sequence, which it has passed; returns how many
/// were not set before, not counting others' in the same moment. All lanes share the work: few keys pass many. The
/// whole warp calls it.
///
/// It looks first: an atomic that finds its line beyond L2 costs more than a load and an atomic.
template <class View>
__device__ __forceinline__ int mark_passed(const View& view, const typename View::Key& stored, std::uint32_t hops) {
  using Key = typename View::Key;
  if (__ballot_sync(kAllLanes, hops != 0) == 0) return 0;
  int bits = 0;
  const auto mark = [&](const Probe<Key>& probe) {
    if (filter_has(view.filters, probe.bucket(), probe.filter_bit())) return;
    add_filter_bit(view.filters, probe.bucket(), probe.filter_bit());
    ++bits;
  };
  if (hops > kFarHops) {
    for (Probe<Key> probe(stored, view.geometry); probe.hop() != hops; probe.next(view.geometry)) mark(probe);
    hops = 0;
  }
  const unsigned lane = threadIdx.x % 32;
  std::uint32_t end = hops;  // of the lane's share of all passes
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::uint32_t before = __shfl_up_sync(kAllLanes, end, step);
    if (lane >= step) end += before;
  }
  const std::uint32_t total = __shfl_sync(kAllLanes, end, 31);
  for (std::uint32_t base = 0; base < total; base += 32) {
    const std::uint32_t pass = base + lane;
    unsigned of = 0;  // the lane whose key it is
#pragma unroll
    for (unsigned step = 16; step != 0; step /= 2)
      if (__shfl_sync(kAllLanes, end, of + step - 1) <= pass) of += step;
    const Key key = shuffle(stored, of);
    const std::uint32_t left = __shfl_sync(kAllLanes, end, of) - pass;
    const std::uint32_t hop = __shfl_sync(kAllLanes, hops, of) - left;
    if (pass >= total) continue;
    Probe<Key> probe(key, view.geometry);
    probe.go_to(hop, view.geometry);
    mark(probe);
  }
  return bits;
}

struct Ignore {
  template <class... Arguments>
  __device__ __forceinline__ void operator()(const Arguments&...) const {}
};

/// Where the table may have erased slots: a lane remembers the first bucket with a free one, and looks whether the key
/// lies behind it before it comes back. See find_or_insert().
template <class View, class OnHit, class OnNew, class OnSeen, class Slots>
__device__ __forceinline__ void find_or_insert_among_erased(const View& view, std::uint8_t* owners,
                                                            const typename View::Key& key,
                                                            const typename View::Value& value, bool open,
                                                            Counts& counts, OnHit on_hit, OnNew on_new, OnSeen on_seen,
                                                            Slots slots) {
  using Key = typename View::Key;
  Probe<Key> probe(key, view.geometry);
  bool remembered = false;
  bool returned = false;  // the key lies nowhere behind, and this is the remembered bucket
  std::uint32_t remembered_bucket = 0;
  std::uint32_t remembered_hop = 0;

  bool first = true;
  bool may_claim = false;
  unsigned active = __ballot_sync(kAllLanes, open);
  while (active != 0) {
    const Seen seen = first ? look<View, Reads::kContended, true, true>(view, kAllLanes, probe.stored(), probe.bucket(),
                                                                        owners, on_seen)
                            : look<View, Reads::kContended, true, false>(view, active, probe.stored(), probe.bucket(),
                                                                         owners, on_seen);
    first = false;
    if (open) {
      typename View::SlotType* const bucket = view.slots + std::uint64_t{probe.bucket()} * View::kSlots;
      if (seen.hit != 0) {
        on_hit(bucket + slot_of_bit<View>(__ffs(seen.hit) - 1));
        open = false;
      } else {
        if ((seen.empty | seen.erased) != 0 && !remembered) {
          remembered = true;
          remembered_bucket = probe.bucket();
          remembered_hop = probe.hop();
        }
        const auto filter_has_key = [&] { return filter_has(view.filters, probe.bucket(), probe.filter_bit()); };
        if (!returned && !search_ends(seen.empty != 0, filter_has_key) && !probe.exhausted(view.geometry)) {
          probe.next(view.geometry);
        } else if (remembered && remembered_bucket == probe.bucket() && remembered_hop == probe.hop()) {
          if (!may_claim) may_claim = slots.take(view);
          if (!may_claim) {
            ++counts.dropped;
            open = false;
          }
          for (std::uint32_t free = seen.empty | seen.erased; free != 0 && open; free &= free - 1) {
            const std::uint32_t bit = __ffs(free) - 1;
            typename View::SlotType* const slot = bucket + slot_of_bit<View>(bit);
            const Key mark = seen.empty >> bit & 1 ? empty_key<Key>() : erased_key<Key>();
            const Key was = claim(slot, mark, probe.stored(), value);
            if (was == mark) {
              ++counts.inserted;
              on_new(slot);
              open = false;
            } else if (was == probe.stored()) {
              on_hit(slot);
              open = false;
            }
          }
          // Others took all of them: the bucket is full now, and the walk goes on from here.
          remembered = false;
          returned = false;
        } else if (remembered) {
          probe.move_to(remembered_bucket, remembered_hop);
          returned = true;
        } else if (probe.exhausted(view.geometry)) {
          ++counts.dropped;
          open = false;
        } else {
          if (probe.hop() == kFarHops) count_far_key(view);
          counts.filter_bits += set_filter(view.filters, probe.bucket(), probe.filter_bit());
          probe.next(view.geometry);
        }
      }
    }
    active = __ballot_sync(kAllLanes, open);
  }
}

/// Where it has none: the first empty slot of the sequence is the key's.
///
/// A lane that has come to a bucket with empty slots claims one while the others look into their next buckets, so that
/// the warp waits once for both.
template <class View, class OnHit, class OnNew, class OnSeen, class Slots>
__device__ __forceinline__ void find_or_insert_unerased(const View& view, std::uint8_t* owners,
                                                        const typename View::Key& key,
                                                        const typename View::Value& value, bool open, Counts& counts,
                                                        OnHit on_hit, OnNew on_new, OnSeen on_seen, Slots slots) {
  using Key = typename View::Key;
  Probe<Key> probe(key, view.geometry);
  bool may_claim = false;
  bool is_new = false;
  const auto slot_of = [&](std::uint32_t seen_bits) {
    return view.slots + std::uint64_t{probe.bucket()} * View::kSlots + slot_of_bit<View>(__ffs(seen_bits) - 1);
  };
  std::uint32_t free = 0;  // empty slots of the probe's bucket that are still to be tried
  // Of a bucket that has been looked into, or has lost a slot that was tried.
  const auto see = [&](std::uint32_t hit, std::uint32_t empty) {
    free = empty;
    if (hit != 0) {
      on_hit(slot_of(hit));
      open = false;
    } else if (free == 0 && probe.exhausted(view.geometry)) {
      ++counts.dropped;
      open = false;
    } else if (free == 0) {
      if (probe.hop() == kFarHops) count_far_key(view);
      probe.next(view.geometry);
    } else if (!may_claim) {
      may_claim = slots.take(view);
      if (!may_claim) {
        ++counts.dropped;
        open = false;
      }
    }
  };
  Seen seen =
      look<View, Reads::kContended, false, true>(view, kAllLanes, probe.stored(), probe.bucket(), owners, on_seen);
  if (open) see(seen.hit, seen.empty);
  unsigned active = __ballot_sync(kAllLanes, open);
  while (active != 0) {
    const bool claims = open && free != 0;
    Key was{};
    if (claims) was = claim(slot_of(free), empty_key<Key>(), probe.stored(), value);
    const unsigned lookers = __ballot_sync(kAllLanes, open && !claims);
    if (lookers != 0)
      seen =
          look<View, Reads::kContended, false, false>(view, lookers, probe.stored(), probe.bucket(), owners, on_seen);
    if (claims) {
      if (was == empty_key<Key>()) {
        ++counts.inserted;
        on_new(slot_of(free));
        is_new = true;
        open = false;
      } else {
        see(was == probe.stored() ? free : 0, free & (free - 1));
      }
    } else if (open) {
      see(seen.hit, seen.empty);
    }
    active = __ballot_sync(kAllLanes, open);
  }
  counts.filter_bits += mark_passed(view, probe.stored(), is_new ? probe.hop() : 0);
}

/// Finds or inserts one key per lane: on_hit(slot) where it is there, on_new(slot) where this lane has put it there
/// with `value`.
///
/// Within one kernel, slots only go from free to taken. All lanes with one key try the free slots of its sequence in
/// one order, and each takes the first that it sees free: where two try, the first slot they both could take decides,
/// and the loser finds its key there. So a key is stored once, also where a lane remembers an erased slot and first
/// looks whether the key lies behind it.
///
/// on_seen(slot, lane) runs before that in a lane that has loaded the key of `lane`, as in look(), and sees the value
/// that lay beside it. It does not run where the key was put there between that load and on_hit.
///
/// kErased: there may be erased slots. Without them a lane need not remember anything, and nobody in this kernel goes
/// by the filters, so that the bits of passed buckets can wait until a key has found its slot: none is read for keys
/// that are there.
///
/// A key for which there is no slot, or none in the budget, counts as dropped.
template <class View, bool kErased, class OnHit, class OnNew, class OnSeen = Ignore, class Slots = NoBudget>
__device__ __forceinline__ void find_or_insert(const View& view, std::uint8_t* owners, const typename View::Key& key,
                                               const typename View::Value& value, bool open, Counts& counts,
                                               OnHit on_hit, OnNew on_new, OnSeen on_seen = {}, Slots slots = {}) {
  if constexpr (kErased)
    find_or_insert_among_erased(view, owners, key, value, open, counts, on_hit, on_new, on_seen, slots);
  else
    find_or_insert_unerased(view, owners, key, value, open, counts, on_hit, on_new, on_seen, slots);
}

/// Stores a value beside a key that is there. Not where it is the same: many lanes that write one word of a hot key
/// stand in line for it, about 10 ns each, where reading is free.
template <class SlotType, class Value>
__device__ __forceinline__ void assign_value([[maybe_unused]] SlotType* slot, [[maybe_unused]] const Value& value) {
  if constexpr (sizeof(SlotType) > sizeof(slot->key))
    if (*static_cast<volatile Value*>(&slot->value) != value) slot->value = value;
}

/// The slots to which a block has lately assigned a value; in shared memory.
///
/// Whose value stays is open where a key comes more than once, so one lane of the block stores its own, and others with
/// the same slot need not. And where that happens it exchanges the value: a word that warp after warp reads and then
/// stores to took 24 ns a warp, and 4 with exchanges. Where no slot comes twice a store takes less.
template <class View>
class AssignedSlots {
 public:
  /// All threads of the block call it.
  __device__ __forceinline__ void begin() {
    for (std::uint32_t i = threadIdx.x; i < kEntries; i += kBlock) buckets_[i] = kNoBucket;
    __syncthreads();
  }

  /// Stores a value beside the key of each lane; `slot` is null where there is none. The whole warp calls it.
  __device__ __forceinline__ void assign(const View& view, typename View::SlotType* slot,
                                         const typename View::Value& value) {
    using Word = std::conditional_t<sizeof(typename View::Value) == 8, unsigned long long, unsigned>;
    bool stores = slot != nullptr;
    if (stores) {
      // Entry and bucket together tell the slot.
      const auto index = static_cast<std::uint64_t>(slot - view.slots);
      const auto bucket = static_cast<std::uint32_t>(index / View::kSlots);
      const std::uint32_t hash = bucket * 0x9e3779b9u >> 16;
      stores = atomicExch(&buckets_[(hash * View::kSlots + index % View::kSlots) % kEntries], bucket) != bucket;
    }
    if (!__any_sync(kAllLanes, slot != nullptr && !stores)) {
      if (stores) assign_value(slot, value);
    } else if (stores) {
      atomicExch(reinterpret_cast<Word*>(&slot->value), static_cast<Word>(value));
    }
  }

 private:
  static constexpr std::uint32_t kEntries = 256;
  static constexpr std::uint32_t kNoBucket = ~0u;
  std::uint32_t buckets_[kEntries];
};

/// Gives a new key's slot its row, and returns that; `claimed` is null in lanes without a new key. A key for which
/// there is no row counts as dropped and not as inserted; settle_rows_kernel takes it out again. The whole warp calls
/// it.
template <class View>
__device__ __forceinline__ std::int64_t give_row(const View& view, typename View::SlotType* claimed, Counts& counts) {
  const std::int64_t row = take_row(view, claimed != nullptr);
  if (claimed == nullptr) return kNoRow;
  claimed->value = static_cast<typename View::Value>(row);
  if (row == kNoRow) {
    --counts.inserted;
    ++counts.dropped;
  }
  return row;
}

/// What insert_kernel does with the keys' slots.
struct InsertTarget {
  bool assign;              // overwrite values that are there
  bool rows;                // the value of a new key is the number of a new row
  bool* inserted;           // [n] or null
  std::int64_t* locations;  // [n] or null: the index of each key's slot
  std::uint64_t initial;    // the value of new keys where the batch has none
  ChainStep step = {};
  Trial trial = {};
};

/// Blocks to a multiprocessor, at least: more of them have more loads in flight, but fewer registers each. 12 were
/// slower than 10 (docs/dead-ends.md).
template <class View, bool kErased>
inline constexpr int kInsertBlocks = sizeof(typename View::Key) > 8 ? 7
                                     : kErased                      ? 8
                                                                    : 10;

/// kErased: as above. whole: keys and values have the width and the alignment of those in the slots. kTrial: see
/// Trial; a table without rows.
template <class View, bool kErased, bool kTrial>
__global__ void __launch_bounds__(kBlock, (kInsertBlocks<View, kErased>))
    insert_kernel(View view, KeyBatch keys, ValueBatch values, bool whole, InsertTarget target) {
  using Key = typename View::Key;
  using Value = typename View::Value;
  __shared__ Workspace work;
  __shared__ AssignedSlots<View> assigned;
  if (View::kHasValue && target.assign) assigned.begin();
  const std::int64_t i = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i == 0 && target.step.taken != nullptr) advance_chain(target.step);
  const bool valid = i < keys.count;
  Key key{};
  if (valid) key = load_key<Key>(keys, i, whole);
  Value value{};
  if constexpr (View::kHasValue) {
    value = static_cast<Value>(target.initial);
    if (valid && values.data != nullptr) value = load_value<Value>(values, i, whole);
  }

  Counts counts;
  typename View::SlotType* mine = nullptr;
  bool is_new = false;
  const auto on_hit = [&](typename View::SlotType* slot) { mine = slot; };
  const auto on_new = [&](typename View::SlotType* slot) {
    mine = slot;
    is_new = true;
  };
  const auto assign = [&] {
    if constexpr (View::kHasValue)
      if (target.assign) assigned.assign(view, is_new ? nullptr : mine, value);
  };
  if constexpr (kTrial) {
    __shared__ Budget::Loan loan;
    const Budget budget{&loan, target.trial.most};
    budget.begin();
    find_or_insert<View, kErased>(view, work.owners[threadIdx.x / 32], key, value, valid, counts, on_hit, on_new,
                                  Ignore{}, budget);
    assign();
    if (valid && target.inserted != nullptr && (is_new || !target.trial.again)) target.inserted[i] = is_new;
    if (valid && target.locations != nullptr) target.locations[i] = mine == nullptr ? -1 : mine - view.slots;
    budget.settle(view, counts, work);
  } else {
    find_or_insert<View, kErased>(view, work.owners[threadIdx.x / 32], key, value, valid, counts, on_hit, on_new);
    assign();
    if constexpr (View::kHasValue && sizeof(Value) == sizeof(std::uint64_t)) {
      if (target.rows) is_new = give_row(view, is_new ? mine : nullptr, counts) != kNoRow;
    }
    if (valid) {
      if (target.inserted != nullptr) target.inserted[i] = is_new;
      if (target.locations != nullptr) target.locations[i] = mine == nullptr ? -1 : mine - view.slots;
    }
    counts.add_to(view, work);
  }
}

template <class View>
void launch_insert(const View& view, const KeyBatch& keys, const ValueBatch& values, const InsertTarget& target,
                   Stream stream) {
  const bool whole = has_whole_words<typename View::SlotType>(keys, values);
  const auto run = [&](auto trial) {
    constexpr bool kTrial = decltype(trial)::value;
    launch("inserting keys",
           view.may_have_erased ? insert_kernel<View, true, kTrial> : insert_kernel<View, false, kTrial>, keys.count,
           kBlock, stream, view, keys, values, whole, target);
  };
  if (target.trial.most != 0)
    run(std::true_type{});
  else
    run(std::false_type{});
}

/// Keys only; with row storage, new keys get their rows.
template <class View>
void insert_keys(const View& view, const KeyBatch& keys, bool* inserted, std::int64_t* locations, Stream stream) {
  const bool rows = view.rows.bytes != 0;
  launch_insert(view, keys, ValueBatch{}, InsertTarget{false, rows, inserted, locations, 0}, stream);
  if (rows) count_off_row_tickets(view, stream);
}

}  // namespace gpuhash::cuda
