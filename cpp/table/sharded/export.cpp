#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include <gpuhash/error.hpp>
#include "table/executor.hpp"
#include "table/placed_columns.hpp"
#include "table/sharded/turn.hpp"
#include "table/sharded/view.hpp"

namespace gpuhash {
namespace {

/// An array that a shard has written elsewhere, and where the caller wants it.
struct Fetched {
  void* to;
  Allocation from;
};

}  // namespace

std::int64_t ShardedView::export_items(const Export& request) {
  check_reads(options(), request.reads);
  const Stream stream = request.stream;
  ShardedTurn turn(order_, routes_, stream);
  turn.lock_all();
  DeviceContext& origin = *routes_.origin();
  const auto key_bytes = static_cast<std::int64_t>(options().key_bytes());
  std::vector<std::int64_t> sizes(routes_.size());
  std::int64_t total = 0;
  routes_.in_order(stream, [&](const Route& route, Stream there, std::size_t shard) {
    total += sizes[shard] = route.shard->size(there);
  });
  if (total > request.room) return total;

  std::int64_t first = 0;
  const auto part_of = [&](void* array, std::int64_t bytes) -> void* {
    return array == nullptr ? nullptr : static_cast<char*>(array) + first * bytes;
  };
  routes_.in_order(stream, [&](const Route& route, Stream there, std::size_t shard) {
    const std::int64_t size = sizes[shard];
    void* const keys = part_of(request.keys, key_bytes);
    auto* const rows = static_cast<std::int64_t*>(part_of(request.rows, sizeof(std::int64_t)));
    std::vector<Read> reads(request.reads.begin(), request.reads.end());
    for (Read& read : reads) read.values = part_of(read.values, options().column_bytes(read.column));
    first += size;
    if (size == 0) return;
    Export part{.keys = keys, .reads = reads, .rows = rows, .room = size, .stream = there};
    std::int64_t exported = size;
    if (route.local) {
      exported = route.shard->export_items(part);
    } else {
      // All in one turn at the shard, whose items others may change between two.
      std::deque<Fetched> fetched;
      const auto copy_of = [&](void* to, std::int64_t bytes) -> void* {
        if (to == nullptr) return nullptr;
        const auto all = static_cast<std::size_t>(size * bytes);
        return fetched.emplace_back(to, Allocation(*route.context, all, there)).from.get();
      };
      part.keys = copy_of(keys, key_bytes);
      part.rows = static_cast<std::int64_t*>(copy_of(rows, sizeof(std::int64_t)));
      for (Read& read : reads) read.values = copy_of(read.values, options().column_bytes(read.column));
      exported = route.shard->export_items(part);
      route.context->synchronize(there);
      for (const Fetched& array : fetched)
        origin.copy_from(array.to, *route.context, array.from.get(), array.from.bytes(), stream);
      origin.synchronize(stream);
    }
    if (exported != size)
      throw ShapeError("a shard has changed its size while all items were read: another thread works on it; ask again");
    if (rows != nullptr && shard != 0) origin.executors().splitter->number_rows(origin, rows, size, shard, stream);
  });
  return total;
}

}  // namespace gpuhash
