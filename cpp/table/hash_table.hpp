#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <gpuhash/table.hpp>
#include "core/constants.hpp"
#include "table/call_order.hpp"
#include "table/executor.hpp"
#include "table/growth_rule.hpp"
#include "table/placed_columns.hpp"
#include "table/size_ledger.hpp"
#include "table/storage.hpp"

namespace gpuhash {

/// One table: its memory and the context it lives in. It sequences what the growth rule decides and what the executor
/// does, whose work is all that touches slots.
template <class Key, class Value>
class HashTable final : public Table {
 public:
  using View = TableView<Key, Value>;

  HashTable(const TableOptions& options, std::shared_ptr<DeviceContext> context);
  /// With exactly these buckets, whatever options.capacity says: a twin's slots are copied as they are.
  HashTable(const TableOptions& options, std::shared_ptr<DeviceContext> context, const Geometry& geometry);
  ~HashTable() override;

  const TableOptions& options() const override { return options_; }
  std::uint64_t seed() const override;
  DeviceContext& context() const override { return *context_; }

  std::int64_t size(Stream stream) override;
  std::int64_t capacity() const override;
  std::int64_t nbytes() const override;
  double max_load_factor() const override;
  void set_max_load_factor(double factor) override;

  using Table::change;
  using Table::erase;
  using Table::look_up;
  std::int64_t look_up(Span<const Lookup> requests) override;
  void change(Span<const Change> requests) override;
  std::int64_t erase(Span<const Erasure> requests) override;
  std::int64_t export_items(const Export& request) override;
  void restore_rows(const KeyBatch& keys, const std::int64_t* rows, Stream stream) override;
  void make_room(const KeyBatch& keys, bool expect_insertion, Stream stream) override;
  void forget_room() override {
    const auto lock = order_.lock();
    room_made_.reset();
  }
  bool has_room(std::int64_t keys) const override;
  void clear(Stream stream) override;
  void reserve(std::int64_t keys, Stream stream) override;
  void rehash(std::int64_t slots, bool compact_rows, Stream stream) override;
  void fix_in_place(Stream stream) override;
  RowStorage row_storage(Stream stream) override;
  void read_rows(const std::int64_t* rows, std::int64_t count, Span<const Read> reads, Stream stream) override;
  void pool_rows(const std::int64_t* rows, std::int64_t count, const Bags& bags, const Read& out,
                 Stream stream) override;
  void train(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
             const std::vector<std::size_t>& columns, const OptimizerStep& step, Stream stream) override;
  bool overlaps_rows(const MemoryRange& memory) const override;
  bool is_in_call_here() const noexcept override { return order_.is_held_here(); }
  Constants& constants() override { return constants_; }
  std::shared_ptr<Table> clone(std::shared_ptr<DeviceContext> context, Stream stream) override;

  /// In a turn of its own: work(rows), on the stream, reads the rows as they lie now.
  template <class Work>
  void with_rows(Stream stream, Work work) {
    const Turn turn(order_, stream);
    work(storage_.view().rows);
  }

 private:
  template <class, class>
  friend class HashTable;  // twins and temporary sets

  using Storage = gpuhash::Storage<Key, Value>;
  using Turn = CallOrder::Turn;

  static constexpr auto kMostSlots = static_cast<std::int64_t>(kMaxBuckets * View::kSlots);

  const Executor<Key, Value>& executor() const;
  /// What prepare_room() has found for a batch.
  struct Room {
    std::unique_ptr<Plan> plan;       // of the batch, for the table as it is now; or null
    bool unchecked = false;           // the batch may fill the table beyond max_load_factor
    std::int64_t slots_before = 0;    // not 0: the table was made larger than its distinct keys may need
    std::int64_t size_before = 0;     // not 0: and with room for the next batches
    std::optional<Storage> next{};    // for the table and all of the batch, in which nobody has counted the new keys
    std::optional<Storage> twice{};   // with next: for twice the slots, where these are fewer; it is taken before
    std::int64_t least_part = 0;      // with next: the batch goes in by parts of as many keys or more
    std::uint64_t most = 0;           // not 0: the batch is tried, and may bring the table to this size
    Allocation left{};                // of a trial: positions of the keys that are left out, if it lists them
    bool scattered = false;           // the table has taken another seed while the batch was inserted
    std::optional<Storage> before{};  // an empty table's memory, until the insertion has made that which it has now
  };

  /// When a table may grow for a batch: before it, or within it as well.
  enum class Grows { kBefore, kWithin };

  /// What make_room() has found out about the keys that are expected next, in one batch or in several.
  struct RoomMade {
    const void* keys;
    std::int64_t count;
    std::int64_t size;  // the table's, at most, once all of them are in
    std::int64_t slots_before;

    bool is_for(const KeyBatch& batch) const { return batch.data == keys && batch.count <= count; }
    /// What is expected behind a batch that it is_for().
    std::optional<RoomMade> behind(const KeyBatch& batch) const {
      if (batch.count == count) return {};
      return RoomMade{static_cast<const char*>(keys) + batch.count * batch.bytes, count - batch.count, size,
                      slots_before};
    }
  };

  std::int64_t row_bytes() const { return options_.row_bytes(); }
  GrowthRule growth() const {
    return {kMostSlots, fixed_ ? storage_.capacity() : options_.max_capacity, options_.max_load_factor};
  }
  std::int64_t current_limit() const;
  bool has_known_room(std::int64_t keys) const;

  Control read_control(Stream stream);
  void ask_for_size(std::int64_t keys, Stream stream);
  bool hear_of_size();
  void take_note(const Control& control);
  Control refresh(Stream stream);
  template <class Request, class Run>
  void in_turn(Span<const Request> requests, Run run);
  bool are_rows(const MemoryRange& memory) const;
  std::int64_t find_in(const Lookup& request);
  void change_all(Turn& turn, Span<const Change> requests);
  void change_in(const Turn& turn, const Change& request);
  void change_value_in(const Turn& turn, const Change& request);
  void apply_value_in(const Turn& turn, const Change& request, const Write& write);
  void insert_initial_in(const Turn& turn, const Change& request);
  InsertOrder insertion_of(const Change& request) const;
  template <class Request>
  void make_step(const Request& request);
  void insert_in(const Turn& turn, InsertOrder& order, Stream stream);
  void change_columns_in(const Turn& turn, const ColumnsOrder& order, Stream stream);
  void erase_in(const Turn& turn, const Erasure& request);
  void make_room_in(const KeyBatch& keys, bool expect_insertion, Stream stream);
  void prepare_captured(const KeyBatch& keys);
  Slots slots_for_insertion(const Room& room) const {
    return !ledger_.is_pristine() ? Slots::kFilled : room.before ? Slots::kBlank : Slots::kEmpty;
  }
  template <class MakePlan>
  Room prepare_room(const KeyBatch& keys, Stream stream, MakePlan make_plan, Grows grows = Grows::kWithin,
                    const ApplyOrder* applied = nullptr);
  bool may_try() const;
  bool prepare_trial(Room& room, std::int64_t keys, const ApplyOrder* applied, Stream stream);
  void apply_in(const Turn& turn, ApplyOrder& order, Stream stream);
  bool apply_counted(const Turn& turn, ApplyOrder& order, Stream stream);
  bool prepare_uncounted(Room& room, const KeyBatch& keys, const Control& control, Stream stream);
  std::int64_t guess_new(const KeyBatch& keys, Stream stream);
  template <class Order, class Run>
  void run_in(Room& room, Order& order, Stream stream, Run run);
  void make_room_for_rest(Room& room, const KeyBatch& keys, std::optional<Storage> spare, Stream stream);
  template <class Order, class Run>
  void for_each_part(const Order& order, Room& room, Stream stream, Run run);
  bool may_scatter(const Room& room) const;
  void scatter(Room& room, std::int64_t left, std::int64_t rest, Stream stream);
  template <class MakePlan>
  bool make_room_for_all(Room& room, const KeyBatch& keys, const Control& control, Stream stream, MakePlan make_plan);
  template <class MakePlan>
  void grow(Room& room, std::int64_t slots, const Control& control, Stream stream, MakePlan make_plan);
  void finish_insertion(const Room& room, std::int64_t keys, Stream stream);
  std::int64_t count_new(const KeyBatch& keys, const Plan* plan, Stream stream);
  bool wants_seed(const Control& control) const;
  void maintain(const Control& control, Stream stream);
  void note_cleared();
  void need_movable(std::int64_t keys) const;
  void rebuild(std::int64_t slots, bool compact_rows, const Control& control, Stream stream);
  Storage make_storage(std::int64_t slots, bool compact_rows, const Control& control, Stream stream);
  void move_into(Storage next, bool compact_rows, const Control& control, Stream stream,
                 RehashMemory memory = RehashMemory::kAsNeeded);

  TableOptions options_;
  const bool has_rows_ = options_.has_rows();  // a small call asks these again and again
  const std::int64_t value_bytes_ = options_.value_bytes();
  PlacedColumns columns_;
  std::shared_ptr<DeviceContext> context_;
  CallOrder order_;
  Constants constants_;
  Storage storage_;

  SizeLedger ledger_;
  bool fixed_ = false;                 // the memory stays where it is: see fix_in_place()
  std::optional<RoomMade> room_made_;  // until the next insertion or rebuild
};

/// Of the first slot type that fits; for options that are in order.
std::shared_ptr<Table> make_hash_table(const TableOptions& options, std::shared_ptr<DeviceContext> context);

}  // namespace gpuhash
