#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "cuda/apply/cell_update.hpp"
#include "cuda/apply/planned.hpp"
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/partition/plan.cuh"
#include "cuda/region/kernels.cuh"
#include "cuda/region/left.cuh"
#include "cuda/region/rehash.cuh"
#include "cuda/region/shared_region.cuh"
#include "cuda/rows/columns.hpp"
#include "cuda/rows/initial_rows.hpp"
#include "cuda/rows/rows.cuh"
#include "cuda/walk/election.cuh"
#include "cuda/walk/erase.cuh"
#include "cuda/walk/export.cuh"
#include "cuda/walk/find.cuh"
#include "cuda/walk/find_or_insert.cuh"
#include "cuda/walk/insert.cuh"
#include "cuda/walk/insert_rows.cuh"
#include "cuda/walk/rehash.cuh"

/// Sequences of kernels that make up the operations; nothing here waits for the device, except where it says so.
namespace gpuhash::cuda {

template <class Key, class Value>
class CudaExecutor final : public Executor<Key, Value> {
 public:
  using View = TableView<Key, Value>;

  void clear(DeviceContext& context, const View& view, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const std::uint64_t buckets = view.geometry.bucket_count;
    context.fill(view.slots, kEmptyByte, View::slot_bytes(buckets), stream);
    context.fill(view.filters, 0, View::filter_bytes(buckets), stream);
    clear_control(context, view, stream);
  }

  void begin_blank(DeviceContext& context, const View& view, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const std::uint64_t buckets = view.geometry.bucket_count;
    context.fill(view.slots + buckets * View::kSlots, kEmptyByte, View::kBucketBytes, stream);
    context.fill(view.filters + buckets, 0, View::filter_bytes(buckets) - buckets, stream);
    clear_control(context, view, stream);
  }

  void find(DeviceContext& context, const View& view, const KeyBatch& keys, const FindOrder& out,
            Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    if (out.count_missing) context.fill(&view.control->missing, 0, sizeof view.control->missing, stream);
    launch_find(view, keys, out, AbsentKeys<Key>{}, stream);
  }

  void insert(DeviceContext& context, const View& view, const InsertOrder& batch, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const bool assign = batch.action == Action::kAssign;
    // Which of a set's duplicates comes first shows in the mask alone.
    const bool in_any_order = !batch.deterministic || (!View::kHasValue && batch.inserted == nullptr);
    if (batch.plan == nullptr && view.rows.bytes == 0 && in_any_order) {
      const InsertTarget target{assign, false, batch.inserted, nullptr, 0, batch.step, batch.trial};
      launch_insert(view, batch.keys, batch.values, target, stream);
      return;
    }
    if (batch.plan != nullptr) {
      if constexpr (kPlans)
        insert_planned(context, view, batch, static_cast<const RegionPlan<Item>&>(*batch.plan), assign, stream);
    } else if (batch.initial != nullptr && batch.inserted == nullptr) {
      const Allocation mask = scratch<bool>(context, batch.keys.count, stream);
      InsertOrder masked = batch;
      masked.inserted = mask.as<bool>();
      insert_unplanned(context, view, masked, stream);
    } else {
      insert_unplanned(context, view, batch, stream);
    }
    if (batch.step.taken != nullptr) context.advance(batch.step, stream);
  }

  void apply(DeviceContext& context, const View& view, const ApplyOrder& batch, Stream stream) const override {
    if constexpr (View::kHasValue) {
      const DeviceGuard guard(context.device().index);
      if constexpr (kPlans) {
        if (batch.plan != nullptr) return apply_planned(context, view, batch, stream);
        if (applies_at_once(context, view, batch)) return apply_at_once(view, batch, stream);
      }
      const std::int64_t n = batch.keys.count;
      const Uint128 initial = identity_bits(batch.op, batch.dtype);
      const Allocation targets = scratch<std::int64_t>(context, n, stream);
      const std::int64_t cell_count =
          view.rows.bytes != 0 ? view.rows.capacity : static_cast<std::int64_t>(view.slot_count());
      const CellUpdate update(context, n, cell_count, combines_in_float(batch.dtype, batch.op) ? batch.elements : 0,
                              stream);
      if (view.rows.bytes == 0) {
        launch_insert(
            view, batch.keys, ValueBatch{},
            InsertTarget{false, false, batch.inserted, targets.as<std::int64_t>(), initial.low, {}, batch.trial},
            stream);
        const Cells cells{value_bytes(view), sizeof(typename View::SlotType), targets.as<std::int64_t>(),
                          batch.elements, &view.control->left};
        update.apply(cells, batch.values, batch.op, batch.dtype);
        return;
      }
      const Allocation mask = scratch<bool>(context, batch.inserted == nullptr ? n : 0, stream);
      bool* const inserted = batch.inserted != nullptr ? batch.inserted : mask.as<bool>();
      insert_keys(view, batch.keys, inserted, targets.as<std::int64_t>(), stream);
      launch("reading row numbers", rows_of_locations_kernel<View>, n, kRowBlock, stream, view,
             targets.as<std::int64_t>(), n);
      const ColumnChange whole_rows{{0, batch.dtype, batch.elements}, batch.values, batch.op};
      write_columns(view.rows, {batch.keys, batch.keys, {whole_rows}, {}, false, nullptr, nullptr},
                    {targets.as<std::int64_t>(), inserted, nullptr}, update, stream);
    }
  }

  void read_columns(DeviceContext& context, const View& view, const std::int64_t* rows, std::int64_t count,
                    std::span<const ColumnRead> columns, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    cuda::read_columns(view.rows, rows, count, columns, stream);
  }

  void change_columns(DeviceContext& context, const View& view, const ColumnsOrder& batch,
                      Stream stream) const override {
    if constexpr (kMayHaveRows<View>) {
      const DeviceGuard guard(context.device().index);
      const std::int64_t n = batch.keys.count;
      const bool assigns =
          std::ranges::any_of(batch.given, [](const ColumnChange& change) { return change.action == Action::kAssign; });
      const Allocation numbers = scratch<std::int64_t>(context, batch.rows != nullptr ? 0 : n, stream);
      const Allocation mask = scratch<bool>(context, batch.inserted != nullptr ? 0 : n, stream);
      const Allocation elected = scratch<std::int64_t>(context, assigns ? n : 0, stream);
      const CellUpdate update(context, n, view.rows.capacity, most_short_elements(batch), stream);
      InsertOrder keys{batch.keys,
                       {},
                       Action::kKeep,
                       batch.deterministic,
                       batch.inserted != nullptr ? batch.inserted : mask.as<bool>()};
      keys.rows = batch.rows != nullptr ? batch.rows : numbers.as<std::int64_t>();
      if (batch.given.empty() && !batch.deterministic)
        return find_or_insert_rows(context, view, keys, batch.initial, stream);
      insert_unplanned(context, view, keys, stream);
      auto* const writers = elected.as<std::int64_t>();
      if (assigns && batch.deterministic) {
        context.copy(writers, keys.rows, elected.bytes(), stream);
        elect(row_tags(view), writers, n, Elect::kLast, nullptr, stream);
      } else if (assigns) {
        elect_any(view.rows, view.control, keys.rows, writers, n, stream);
        count_off_row_tickets(view, stream);  // of none: the epoch has served
      }
      write_columns(view.rows, batch, {keys.rows, keys.inserted, writers}, update, stream);
    }
  }

  void erase(DeviceContext& context, const View& view, const KeyBatch& keys, bool* erased, const Plan* plan,
             Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    if constexpr (kPlans) {
      if (plan != nullptr)
        return erase_planned(context, view, static_cast<const RegionPlan<KeyItem>&>(*plan), erased, stream);
    }
    launch("erasing keys", erase_kernel<View>, keys.count, kBlock, stream, view, keys,
           has_whole_words<KeyItem>(keys, {}), erased);
  }

  std::unique_ptr<Plan> plan(DeviceContext& context, const View& view, const KeyBatch& keys, const ValueBatch& values,
                             bool with_mask, Stream stream) const override {
    if constexpr (kPlans) {
      if (view.rows.bytes != 0 || !is_planned<View>(view.geometry, keys.count)) return nullptr;
      const DeviceGuard guard(context.device().index);
      try {
        if (values.data == nullptr) return make_plan<KeyItem>(context, view.geometry, keys, values, with_mask, stream);
        return make_plan<Item>(context, view.geometry, keys, values, with_mask, stream);
      } catch (const OutOfMemoryError&) {
        return nullptr;
      }
    }
    return nullptr;
  }

  std::unique_ptr<Plan> plan_apply(DeviceContext& context, const View& view, const ApplyOrder& batch,
                                   Stream stream) const override {
    if constexpr (kPlans && View::kHasValue) {
      if (view.rows.bytes != 0 || !is_planned<View>(view.geometry, batch.keys.count)) return nullptr;
      if (combines_in_float(batch.dtype, batch.op)) return nullptr;
      const DeviceGuard guard(context.device().index);
      try {
        return make_apply_plan(context, view, batch, stream);
      } catch (const OutOfMemoryError&) {
        return nullptr;
      }
    }
    return nullptr;
  }

  bool tries(const View& view, std::int64_t keys) const override {
    if (view.rows.bytes != 0) return false;
    return !is_planned<View>(view.geometry, keys) || lies_in_l2<View>(view.geometry);
  }

  bool lists_left([[maybe_unused]] DeviceContext& context, [[maybe_unused]] const View& view,
                  [[maybe_unused]] const ApplyOrder& batch) const override {
    if constexpr (kPlans && View::kHasValue) {
      const DeviceGuard guard(context.device().index);
      return applies_at_once(context, view, batch);
    }
    return false;
  }

  void count_absent(DeviceContext& context, const View& view, const Plan& plan, bool table_is_empty,
                    Stream stream) const override {
    if constexpr (kPlans) {
      const DeviceGuard guard(context.device().index);
      const auto& planned = static_cast<const RegionPlan<Item>&>(plan);
      context.fill(&view.control->absent, 0, sizeof view.control->absent + sizeof view.control->undecided, stream);
      launch_regions("counting new keys", insert_region_kernel<View>, view.geometry.region_count,
                     sizeof(SharedRegion<View>), stream, view, planned.batch,
                     table_is_empty ? Slots::kEmpty : Slots::kFilled, InsertWork::kCount, ExpectedMask{});
      launch("counting new keys", count_left_kernel<View, Item>, 1, 1, stream, view, planned.batch,
             planned.all.keys.count);
    }
  }

  void list_absent(DeviceContext& context, const View& view, const KeyBatch& keys, Key* out,
                   Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    context.fill(&view.control->absent, 0, sizeof view.control->absent, stream);
    launch_find(view, keys, FindOrder{}, AbsentKeys<Key>{out}, stream);
  }

  void rehash(DeviceContext& context, const View& from, const View& to, bool compact_rows, RehashMemory memory,
              Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    Allocation source;
    if (compact_rows && to.rows.bytes != 0) source = scratch<std::int64_t>(context, to.rows.capacity, stream);
    if (memory == RehashMemory::kNone || !rehash_by_region(context, from, to, stream)) {
      clear(context, to, stream);
      launch("rehashing", rehash_kernel<View>, static_cast<std::int64_t>(from.slot_count()), kBlock, stream, from, to);
    }
    if constexpr (View::kHasValue) {
      if (to.rows.bytes == 0) return;
      if (!compact_rows) {
        launch("copying free rows", copy_free_rows_kernel<View>, std::min<std::int64_t>(from.rows.capacity, 1 << 18),
               kBlock, stream, from, to);
        return;
      }
      launch("renumbering rows", renumber_rows_kernel<View>, static_cast<std::int64_t>(to.slot_count()), kBlock, stream,
             to, source.as<std::int64_t>());
      read_rows(from.rows, source.as<std::int64_t>(), read_size(context, to, stream), to.rows.data, stream);
    }
  }

  void export_items(DeviceContext& context, const View& view, void* keys, std::uint32_t key_bytes, void* values,
                    std::int64_t value_bytes, std::int64_t* rows, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const Allocation counts = scratch<std::int64_t>(context, kExportBlocks, stream);
    const bool gather = view.rows.bytes != 0 && values != nullptr;
    Allocation numbers;
    std::int64_t size = 0;
    if (gather) {
      size = read_size(context, view, stream);
      if (rows == nullptr) {
        numbers = scratch<std::int64_t>(context, size, stream);
        rows = numbers.as<std::int64_t>();
      }
    }
    constexpr std::int64_t kThreads = std::int64_t{kExportBlocks} * kExportThreads;
    launch("counting items", count_live_kernel<View>, kThreads, kExportThreads, stream, view,
           counts.as<std::int64_t>());
    launch("summing counts", sum_counts_kernel, kExportBlocks, kExportBlocks, stream, counts.as<std::int64_t>());
    launch("exporting items", export_kernel<View>, kThreads, kExportThreads, stream, view,
           static_cast<const std::int64_t*>(counts.as<std::int64_t>()),
           ExportTarget{keys, key_bytes, gather ? nullptr : values, static_cast<std::uint32_t>(value_bytes), rows});
    if (gather) read_rows(view.rows, rows, size, values, stream);
  }

 private:
  /// What a plan's lists hold: slots, or keys alone where the batch has no values.
  using Item = typename View::SlotType;
  using KeyItem = Slot<Key, NoValue>;
  static constexpr bool kPlans = sizeof(Key) <= 8;

  /// With the epoch back at 0, the tags forget the epochs of before.
  static void clear_control(DeviceContext& context, const View& view, Stream stream) {
    context.fill(view.control, 0, sizeof(Control), stream);
    if (view.rows.bytes != 0)
      context.fill(view.rows.tags, 0, static_cast<std::size_t>(view.rows.capacity) * sizeof(std::uint32_t), stream);
  }

  /// In the order of the batch, or into rows.
  static void insert_unplanned(DeviceContext& context, const View& view, const InsertOrder& batch, Stream stream) {
    if constexpr (kMayHaveRows<View>) {
      if (batch.initial != nullptr && !batch.deterministic && batch.slots == Slots::kFilled) {
        const ColumnInitial whole{0, *batch.initial};
        return find_or_insert_rows(context, view, batch, {&whole, 1}, stream);
      }
    }
    if (batch.deterministic)
      insert_in_order(context, view, batch, stream);
    else if constexpr (kMayHaveRows<View>)
      insert_rows(view, batch, stream);
    if (batch.initial != nullptr)
      initialise_rows(view.rows, *batch.initial, 0, batch.keys, batch.inserted, batch.rows, stream);
  }

  static void insert_planned(DeviceContext& context, const View& view, const InsertOrder& batch,
                             const RegionPlan<Item>& plan, bool assign, Stream stream) {
    const ExpectedMask mask{batch.inserted, batch.expect_new};
    if (mask.data != nullptr)
      context.fill(mask.data, mask.expected, static_cast<std::size_t>(batch.keys.count), stream);
    launch_regions("inserting keys", insert_region_kernel<View>, view.geometry.region_count, sizeof(SharedRegion<View>),
                   stream, view, plan.batch, batch.slots, assign ? InsertWork::kAssign : InsertWork::kKeep, mask);
    launch("inserting keys", insert_left_kernel<View, Item>, kLeftThreads, kBlock, stream, view, plan.batch, plan.all,
           assign, batch.inserted);
  }

  static void erase_planned(DeviceContext& context, const View& view, const RegionPlan<KeyItem>& plan, bool* erased,
                            Stream stream) {
    if (erased != nullptr) context.fill(erased, 1, static_cast<std::size_t>(plan.all.keys.count), stream);
    launch_regions("erasing keys", erase_region_kernel<View>, view.geometry.region_count, sizeof(SharedRegion<View>),
                   stream, view, plan.batch, ExpectedMask{erased, true});
    launch("erasing keys", erase_left_kernel<View, KeyItem>, kLeftThreads, kBlock, stream, view, plan.batch, plan.all,
           erased);
  }

  /// False: nothing is done, or what is done is worth nothing. Waits.
  bool rehash_by_region(DeviceContext& context, const View& from, const View& to, Stream stream) const {
    if constexpr (kPlans) {
      constexpr std::uint32_t kMinRegions = 64;
      if (to.geometry.region_count < kMinRegions) return false;
      if (from.geometry.seeds.hash != to.geometry.seeds.hash) return false;  // nothing keeps its order
      const auto capacity =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(from.slot_count() / 16 + 1024, std::uint64_t{1} << 30));
      Allocation items, counters;
      try {
        items = scratch<Item>(context, capacity, stream);
        counters = scratch<PartitionCounters>(context, 1, stream);
      } catch (const OutOfMemoryError&) {
        return false;
      }
      const Rest<Item> rest{items.as<Item>(), nullptr, counters.as<PartitionCounters>(), capacity};
      context.fill(counters.get(), 0, counters.bytes(), stream);
      begin_blank(context, to, stream);
      launch_regions("rehashing", rehash_region_kernel<View>, to.geometry.region_count, sizeof(SharedRegion<View>),
                     stream, from, to, rest);
      PartitionCounters left;
      context.copy_to_host(&left, counters.get(), sizeof left, stream);
      if (left.overflow != 0) return false;
      const KeyBatch keys{};
      launch("rehashing", insert_left_kernel<View, Item>, left.rest, kBlock, stream, to,
             PartitionedBatch<Item>{{}, nullptr, rest}, BatchItems<Item>{keys, {}, true}, false,
             static_cast<bool*>(nullptr));
      return true;
    }
    return false;
  }

  /// Waits.
  static std::int64_t read_size(DeviceContext& context, const View& view, Stream stream) {
    std::uint64_t size = 0;
    context.copy_to_host(&size, &view.control->size, sizeof size, stream);
    return static_cast<std::int64_t>(size);
  }
};

template <class Key, class Value>
const Executor<Key, Value>& CudaAlgorithms::executor() {
  static const auto& executor = *new CudaExecutor<Key, Value>;  // never destroyed: threads may work at exit
  return executor;
}

}  // namespace gpuhash::cuda
