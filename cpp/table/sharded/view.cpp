#include "table/sharded/view.hpp"

#include <cmath>
#include <string>
#include <utility>

#include <gpuhash/error.hpp>
#include "table/sharded/turn.hpp"

namespace gpuhash {
namespace {

std::int64_t divide_up(std::int64_t total, std::size_t parts) {
  const auto divisor = static_cast<std::int64_t>(parts);
  return total / divisor + (total % divisor != 0 ? 1 : 0);
}

/// How many of so many keys one shard gets at most, but for one time in 10^9: a binomial distribution's mean and six
/// standard deviations.
std::int64_t most_of(std::int64_t keys, std::size_t shards) {
  if (shards == 1) return keys;
  const double mean = static_cast<double>(keys) / static_cast<double>(shards);
  return std::min(keys, static_cast<std::int64_t>(mean + 6 * std::sqrt(mean)) + 8);
}

}  // namespace

ShardedView::ShardedView(std::shared_ptr<Shards> shards, std::shared_ptr<DeviceContext> origin)
    : routes_(std::move(shards), std::move(origin)), order_(*routes_.origin()), constants_(*routes_.origin()) {}

ShardedView::~ShardedView() {
  try {
    constants_.set_stream(order_.stream_after_all());
  } catch (const CudaError&) {
    // At exit the driver may be gone before the last table.
  }
}

std::int64_t ShardedView::size(Stream stream) {
  ShardedTurn turn(order_, routes_, stream);
  turn.lock_all();
  std::int64_t total = 0;
  routes_.in_order(stream, [&](const Route& route, Stream there, std::size_t) { total += route.shard->size(there); });
  return total;
}

void ShardedView::set_max_load_factor(double factor) {
  const std::lock_guard lock(all().mutex);
  for (const auto& shard : all().tables) shard->set_max_load_factor(factor);
}

void ShardedView::forget_room() {
  for (const auto& shard : all().tables) shard->forget_room();
}

bool ShardedView::has_room(std::int64_t keys) const {
  const std::lock_guard lock(all().mutex);
  return std::ranges::all_of(all().tables, [&](const auto& shard) { return shard->has_room(keys); });
}

bool ShardedView::overlaps_rows(const MemoryRange& memory) const {
  return std::ranges::any_of(all().tables, [&](const auto& shard) { return shard->overlaps_rows(memory); });
}

void ShardedView::clear(Stream stream) {
  ShardedTurn turn(order_, routes_, stream);
  turn.lock_all();
  routes_.in_order(stream, [&](const Route& route, Stream there, std::size_t) { route.shard->clear(there); });
}

void ShardedView::reserve(std::int64_t keys, Stream stream) {
  if (keys < 0) throw ShapeError("reserve takes a number of keys, not " + std::to_string(keys));
  ShardedTurn turn(order_, routes_, stream);
  turn.lock_all();
  const std::int64_t most = most_of(keys, routes_.size());
  routes_.in_order(stream, [&](const Route& route, Stream there, std::size_t) {
    try {
      route.shard->reserve(most, there);
    } catch (const TableFullError&) {  // it may hold no more than its share, and mostly gets no more
      route.shard->reserve(divide_up(keys, routes_.size()), there);
    }
  });
}

void ShardedView::rehash(std::int64_t slots, bool compact_rows, Stream stream) {
  if (slots < 0) throw ShapeError("rehash takes a number of slots, not " + std::to_string(slots));
  ShardedTurn turn(order_, routes_, stream);
  turn.lock_all();
  const std::int64_t each = divide_up(slots, routes_.size());
  routes_.in_order(
      stream, [&](const Route& route, Stream there, std::size_t) { route.shard->rehash(each, compact_rows, there); });
}

std::shared_ptr<Table> ShardedView::clone(std::shared_ptr<DeviceContext>, Stream stream) {
  ShardedTurn turn(order_, routes_, stream);
  turn.lock_all();
  auto twin = std::make_shared<Shards>();
  twin->options = all().options;
  twin->seed = all().seed;
  twin->contexts = all().contexts;
  routes_.in_order(stream, [&](const Route& route, Stream there, std::size_t shard) {
    twin->tables.push_back(route.shard->clone(all().contexts[shard], there));
  });
  return std::make_shared<ShardedView>(std::move(twin), routes_.origin());
}

void ShardedView::fix_in_place(Stream) {
  throw ShapeError(
      "a table of several shards was to stay in place, which single tables can: hold its shards, table.shards");
}

void ShardedView::restore_rows(const KeyBatch&, const std::int64_t*, Stream) {
  throw ShapeError("rows were to be restored in a table of several shards: restore those of its shards, table.shards");
}

void ShardedView::read_rows(const std::int64_t*, std::int64_t, Span<const Read>, Stream) {
  throw ShapeError("rows of a table of several shards were to be read by their numbers: read those of its shards");
}

void ShardedView::pool_rows(const std::int64_t*, std::int64_t, const Bags&, const Read&, Stream) {
  throw ShapeError("rows of a table of several shards were to be summed up: sum up those of its shards");
}

void ShardedView::train(const std::int64_t*, std::int64_t, const Gradients&, const std::vector<std::size_t>&,
                        const OptimizerStep&, Stream) {
  throw ShapeError("rows of a table of several shards were to be trained: train those of its shards");
}

RowStorage ShardedView::row_storage(Stream) {
  throw ShapeError(
      "a table of several shards has no single row storage: its rows lie with its shards, "
      "table.shards[i].row_storage");
}

std::shared_ptr<ShardedTable> ShardedView::at(const Device& device) {
  for (const auto& context : all().contexts)
    if (context->device() == device) return std::make_shared<ShardedView>(routes_.shards(), context);
  throw ShapeError("arrays on " + device.to_string() + " were given to a table that has no shard there");
}

std::shared_ptr<ShardedTable> ShardedTable::make(const TableOptions& options,
                                                 std::vector<std::shared_ptr<DeviceContext>> contexts) {
  const std::size_t count = contexts.size();
  if (count == 0 || count > Split::kMaxParts)
    throw ShapeError(std::to_string(count) + " devices were given; a table has 1 to " +
                     std::to_string(Split::kMaxParts) + " shards");
  for (const auto& context : contexts)
    if (context->device().platform != contexts.front()->device().platform)
      throw ShapeError("shards on " + contexts.front()->device().to_string() + " and " + context->device().to_string() +
                       " were asked for; all shards of a table lie on one platform");
  auto shards = std::make_shared<Shards>();
  shards->options = options;
  shards->seed = options.seed.value_or(0);
  TableOptions each = options;
  each.capacity = options.capacity == 0 ? 0 : divide_up(options.capacity, count);
  if (options.max_capacity) each.max_capacity = divide_up(*options.max_capacity, count);
  for (const auto& context : contexts) shards->tables.push_back(Table::make(each, context));
  shards->contexts = std::move(contexts);
  std::shared_ptr<DeviceContext> origin = shards->contexts.front();
  return std::make_shared<ShardedView>(std::move(shards), std::move(origin));
}

}  // namespace gpuhash
