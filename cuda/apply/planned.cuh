#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/apply/cell.cuh"
#include "cuda/apply/planned.hpp"
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/partition/plan.cuh"
#include "cuda/region/chunk.cuh"
#include "cuda/region/insert.cuh"
#include "cuda/region/left.cuh"
#include "cuda/region/shared_region.cuh"
#include "cuda/walk/insert.cuh"
#include "shared/combines_in_float.hpp"

/// While a batch is partitioned, duplicates within a tile are merged: a key that comes in every tile then takes a few
/// places of its list, and skewed batches need no way of their own. What is left is combined with the cells in one go
/// with finding or inserting the keys: a slot that becomes a new key's holds the operation's identity beforehand.
namespace gpuhash::cuda {

/// `mask` [n] or null is false everywhere before: most values are of keys that are there, or duplicates.
template <class View>
__global__ void __launch_bounds__(kRegionBlock, 3)
    apply_region_kernel(View view, PartitionedBatch<typename View::SlotType> batch, Slots slots,
                        WordReducer<typename View::Value> reducer, bool* mask) {
  using Item = typename View::SlotType;
  extern __shared__ __align__(16) unsigned char memory[];
  auto& region = *reinterpret_cast<SharedRegion<View>*>(memory);
  __shared__ Workspace work;
  __shared__ Backlog backlog;

  const std::uint32_t r = blockIdx.x;
  const std::uint32_t count = batch.rest.overflown() ? 0 : batch.regions.count(r);
  if (count == 0) {
    if (slots == Slots::kBlank) store_empty_region(region, view, r);
    return;
  }
  const std::uint32_t first_bucket = r * view.geometry.region_buckets;
  const std::uint64_t first_item = batch.regions.offset(r, 0);
  // So whoever takes a slot has no value to write, and others may update it at once.
  if (slots != Slots::kFilled)
    make_region_empty(region, reducer.identity);
  else
    load_region<true>(region, view, first_bucket, reducer.identity);

  int inserted = 0;
  int filter_bits = 0;
  std::uint32_t all_left = 0;
  for (std::uint32_t base = 0; base < count; base += kChunk) {
    const Item* const items = batch.regions.items + first_item + base;
    const std::uint32_t* const positions = batch.regions.positions + first_item + base;
    const std::uint32_t left = insert_in_rounds<View>(
        region, backlog, first_bucket, view.geometry, min(count - base, kChunk), filter_bits,
        [&](std::uint32_t i, Item& item) {
          item = items[i];
          return true;
        },
        [&](std::uint32_t i, const Item& item, Outcome outcome, std::uint32_t at) {
          reducer.template update<CellsIn::kShared>(&region.values[at], item.value);
          inserted += outcome == Outcome::kNew;
          if (mask != nullptr && outcome == Outcome::kNew) mask[positions[i]] = true;
        });
    keep_leavers(batch, backlog, first_item, base, all_left, mask != nullptr);
    all_left += left;
    __syncthreads();
  }
  if (threadIdx.x == 0) batch.leavers[r] = all_left;
  store_region<true>(region, view, first_bucket);
  std::uint64_t* const counters[3] = {&view.control->size, &view.control->filter_bits, nullptr};
  add_to_control(work, counters, {inserted, filter_bits, 0});
}

/// Needs slots that are claimed by one compare-and-swap of key and value: lanes that find the key may update its value
/// right away.
template <class View>
__global__ void __launch_bounds__(kBlock)
    apply_left_kernel(View view, PartitionedBatch<typename View::SlotType> batch,
                      BatchItems<typename View::SlotType> all, WordReducer<typename View::Value> reducer, bool* mask) {
  using SlotType = typename View::SlotType;
  using Value = typename View::Value;
  __shared__ Workspace work;
  Counts counts;
  for_each_left(batch, all, view.geometry.region_count, [&](bool valid, const SlotType& item, std::uint32_t position) {
    std::int64_t index = -1;
    bool is_new = false;
    find_or_insert<View, true>(
        view, work.owners[threadIdx.x / 32], item.key, reducer.identity, valid, counts,
        [&](SlotType* slot) { index = slot - view.slots; },
        [&](SlotType* slot) {
          index = slot - view.slots;
          is_new = true;
        });
    Value value = item.value;
    const bool leads = combine_peers(index, value, [&](Value a, Value b) { return reducer.combine(a, b); });
    if (leads) reducer.update(&view.slots[index].value, value);
    if (is_new && mask != nullptr) mask[position] = true;
  });
  counts.add_to(view, work);
}

/// Sums of keys that come often, for the warps of a block to combine their values in, so that each goes out once; in
/// shared memory. Words for which a warp after the other has an atomic cost 4 ns each.
template <class Word>
class BlockCells {
 public:
  /// All threads of the block call it.
  __device__ __forceinline__ void begin(const WordReducer<Word>& reducer) {
    for (std::uint32_t e = threadIdx.x; e < kEntries; e += kBlock) {
      indices_[e] = kNone;
      sums_[e] = reducer.identity;
    }
    __syncthreads();
  }

  /// Where the value for a cell goes: to a sum in here, or null where another cell has the place.
  __device__ __forceinline__ Word* sum_of(std::int64_t index) {
    const auto mine = static_cast<unsigned long long>(index);
    const std::uint64_t entry = mine * detail::kHashWhiten >> (64 - kBits);
    const unsigned long long was = atomicCAS(&indices_[entry], kNone, mine);
    return was == kNone || was == mine ? &sums_[entry] : nullptr;
  }

  /// All threads of the block call it. add(index, sum) for each cell that has one, where `any` is true in a thread.
  template <class Add>
  __device__ __forceinline__ void end(bool any, Add add) {
    if (__syncthreads_or(any) == 0) return;
    for (std::uint32_t e = threadIdx.x; e < kEntries; e += kBlock)
      if (indices_[e] != kNone) add(static_cast<std::int64_t>(indices_[e]), sums_[e]);
  }

 private:
  static constexpr std::uint32_t kBits = 7;
  static constexpr std::uint32_t kEntries = 1u << kBits;
  static constexpr unsigned long long kNone = ~0ull;
  unsigned long long indices_[kEntries];
  Word sums_[kEntries];
};

/// As above, of the batch as it was given. kErased: as in find_or_insert(). kTrial: see Trial; again, of the keys that
/// are listed.
template <class View, bool kErased, bool kTrial>
__global__ void __launch_bounds__(kBlock, (kInsertBlocks<View, kErased>))
    apply_at_once_kernel(View view, KeyBatch keys, ValueBatch values, bool whole,
                         WordReducer<typename View::Value> reducer, Trial trial, bool* mask) {
  using SlotType = typename View::SlotType;
  using Value = typename View::Value;
  __shared__ Workspace work;
  __shared__ PeerMarks marks[kWarps];
  __shared__ BlockCells<Value> cells;
  cells.begin(reducer);
  const std::int64_t t = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const bool again = kTrial && trial.again;
  const bool valid = t < (again ? trial.left_count : keys.count);
  const std::int64_t i = valid && again ? trial.left[t] : t;
  typename View::Key key{};
  if (valid) key = load_key<typename View::Key>(keys, i, whole);
  Value value{};
  if (valid) value = load_value<Value>(values, i, whole);

  Counts counts;
  std::int64_t index = -1;
  bool is_new = false;
  const auto run = [&](const auto& slots) {
    find_or_insert<View, kErased>(
        view, work.owners[threadIdx.x / 32], key, reducer.identity, valid, counts,
        [&](SlotType* slot) { index = slot - view.slots; },
        [&](SlotType* slot) {
          index = slot - view.slots;
          is_new = true;
        },
        Ignore{}, slots);
    const auto cell_of = [&](std::int64_t at) { return &view.slots[at].value; };
    const bool peers = have_peers(index, marks[threadIdx.x / 32]);
    bool direct = index >= 0;
    if (peers) {
      direct = combine_peers(index, value, [&](Value a, Value b) { return reducer.combine(a, b); });
      Value* const sum = direct ? cells.sum_of(index) : nullptr;
      if (sum != nullptr) {
        reducer.template update<CellsIn::kShared>(sum, value);
        direct = false;
      }
    }
    if (direct) reducer.update(cell_of(index), value);
    cells.end(peers, [&](std::int64_t at, Value sum) { reducer.update(cell_of(at), sum); });
    if (valid && mask != nullptr) mask[i] = is_new;
  };
  if constexpr (kTrial) {
    __shared__ Budget::Loan loan;
    const Budget budget{&loan, trial.most};
    budget.begin();
    run(budget);
    const bool is_left = counts.dropped != 0;
    const std::uint64_t place = take_ticket(&view.control->left, is_left);
    if (is_left) trial.left[place] = static_cast<std::uint32_t>(i);
    counts.dropped = 0;
    budget.settle(view, counts, work);
  } else {
    run(NoBudget{});
    counts.add_to(view, work);
  }
}

template <class View>
WordReducer<typename View::Value> reducer_of(const ApplyOrder& batch) {
  return {batch.op, batch.dtype, static_cast<typename View::Value>(identity_bits(batch.op, batch.dtype).low)};
}

/// Does claim() write key and value at once, in the code that this device, which is the current one, runs? It need not
/// be the newest it could run.
template <class View>
bool claims_whole_slots(int device) {
  if (sizeof(typename View::SlotType) <= 8) return true;
  enum : std::uint8_t { kUnknown, kNo, kYes };
  static std::array<std::atomic<std::uint8_t>, kMaxDevices> known{};  // the driver takes its time
  std::atomic<std::uint8_t>& answer = known[static_cast<std::size_t>(device)];
  if (answer.load(std::memory_order_relaxed) == kUnknown) {
    cudaFuncAttributes attributes{};
    const BesideCaptures relaxed;  // the kernel may have to be loaded
    check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(apply_left_kernel<View>)),
          "looking for kernels");
    answer.store(attributes.ptxVersion >= 90 ? kYes : kNo, std::memory_order_relaxed);
  }
  return answer.load(std::memory_order_relaxed) == kYes;
}

template <class View>
std::unique_ptr<Plan> make_apply_plan(DeviceContext& context, const View& view, const ApplyOrder& batch,
                                      Stream stream) {
  if (!claims_whole_slots<View>(context.device().index)) return nullptr;
  return make_plan<typename View::SlotType>(context, view.geometry, batch.keys, batch.values, batch.inserted != nullptr,
                                            stream, reducer_of<View>(batch));
}

template <class View>
void apply_planned(DeviceContext& context, const View& view, const ApplyOrder& batch, Stream stream) {
  const auto& plan = static_cast<const RegionPlan<typename View::SlotType>&>(*batch.plan);
  const auto reducer = reducer_of<View>(batch);
  if (batch.inserted != nullptr) context.fill(batch.inserted, 0, static_cast<std::size_t>(batch.keys.count), stream);
  launch_regions("applying values", apply_region_kernel<View>, view.geometry.region_count, sizeof(SharedRegion<View>),
                 stream, view, plan.batch, batch.slots, reducer, batch.inserted);
  launch("applying values", apply_left_kernel<View>, kLeftThreads, kBlock, stream, view, plan.batch, plan.all, reducer,
         batch.inserted);
}

template <class View>
bool applies_at_once(const DeviceContext& context, const View& view, const ApplyOrder& batch) {
  if (combines_in_float(batch.dtype, batch.op)) return false;
  // Of more keys than slots most are duplicates, and may be of a few keys: see apply_scalars_kernel.
  if (batch.keys.count > static_cast<std::int64_t>(view.slot_count())) return false;
  return view.rows.bytes == 0 && batch.elements == 1 && claims_whole_slots<View>(context.device().index);
}

template <class View>
void apply_at_once(const View& view, const ApplyOrder& batch, Stream stream) {
  const bool whole = has_whole_words<typename View::SlotType>(batch.keys, batch.values);
  const auto run = [&](auto trial) {
    constexpr bool kTrial = decltype(trial)::value;
    launch("applying values",
           view.may_have_erased ? apply_at_once_kernel<View, true, kTrial> : apply_at_once_kernel<View, false, kTrial>,
           batch.trial.again ? batch.trial.left_count : batch.keys.count, kBlock, stream, view, batch.keys,
           batch.values, whole, reducer_of<View>(batch), batch.trial, batch.inserted);
  };
  if (batch.trial.most != 0)
    run(std::true_type{});
  else
    run(std::false_type{});
}

}  // namespace gpuhash::cuda
