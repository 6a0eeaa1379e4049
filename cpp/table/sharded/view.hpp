#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <gpuhash/sharded_table.hpp>
#include "core/constants.hpp"
#include "table/call_order.hpp"
#include "table/sharded/routes.hpp"

namespace gpuhash {

/// A sharded table as seen from one device, the origin of its routes.
///
/// view.cpp has what needs no keys, requests.cpp and look_up.cpp the calls with batches of keys, export.cpp that of all
/// items.
class ShardedView final : public ShardedTable {
 public:
  ShardedView(std::shared_ptr<Shards> shards, std::shared_ptr<DeviceContext> origin);
  ~ShardedView() override;

  const TableOptions& options() const override { return all().options; }
  DeviceContext& context() const override { return *routes_.origin(); }
  std::uint64_t seed() const override { return all().tables.front()->seed(); }

  std::int64_t size(Stream stream) override;
  std::int64_t capacity() const override {
    return sum([](Table& shard) { return shard.capacity(); });
  }
  std::int64_t nbytes() const override {
    return sum([](Table& shard) { return shard.nbytes(); });
  }
  double max_load_factor() const override { return all().tables.front()->max_load_factor(); }
  void set_max_load_factor(double factor) override;

  using Table::change;
  using Table::erase;
  using Table::look_up;
  std::int64_t look_up(Span<const Lookup> requests) override;
  void change(Span<const Change> requests) override;
  std::int64_t erase(Span<const Erasure> requests) override;
  std::int64_t export_items(const Export& request) override;
  void make_room(const KeyBatch& keys, bool expect_insertion, Stream stream) override;
  void forget_room() override;
  bool has_room(std::int64_t keys) const override;
  void clear(Stream stream) override;
  void reserve(std::int64_t keys, Stream stream) override;
  void rehash(std::int64_t slots, bool compact_rows, Stream stream) override;
  std::shared_ptr<Table> clone(std::shared_ptr<DeviceContext> context, Stream stream) override;
  bool overlaps_rows(const MemoryRange& memory) const override;
  bool is_in_call_here() const noexcept override { return order_.is_held_here(); }
  Constants& constants() override { return constants_; }

  // Single tables have these; here they throw.
  void fix_in_place(Stream stream) override;
  void restore_rows(const KeyBatch& keys, const std::int64_t* rows, Stream stream) override;
  void read_rows(const std::int64_t* rows, std::int64_t count, Span<const Read> reads, Stream stream) override;
  void pool_rows(const std::int64_t* rows, std::int64_t count, const Bags& bags, const Read& out,
                 Stream stream) override;
  void train(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
             const std::vector<std::size_t>& columns, const OptimizerStep& step, Stream stream) override;
  RowStorage row_storage(Stream stream) override;

  const std::vector<std::shared_ptr<Table>>& shards() const override { return all().tables; }
  std::uint64_t owner_seed() const override { return all().seed; }
  std::shared_ptr<ShardedTable> at(const Device& device) override;

 private:
  Shards& all() const { return *routes_.shards(); }
  ShardedView& view_of(ShardedTable* given) { return given == nullptr ? *this : static_cast<ShardedView&>(*given); }
  template <class Request, class Run>
  void one_batch_each(Span<const Request> requests, Run run);
  template <class Request>
  void advance_steps(Span<const Request> requests);

  template <class Number>
  std::int64_t sum(Number number) const {
    const std::lock_guard lock(all().mutex);
    std::int64_t total = 0;
    for (const auto& shard : all().tables) total += number(*shard);
    return total;
  }

  Routes routes_;
  CallOrder order_;  // of the calls from this device
  Constants constants_;
};

}  // namespace gpuhash
