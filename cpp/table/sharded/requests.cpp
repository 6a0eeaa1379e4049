#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gpuhash/error.hpp>
#include "table/placed_columns.hpp"
#include "table/sharded/gathered_keys.hpp"
#include "table/sharded/look_up.hpp"
#include "table/sharded/side_by_side.hpp"
#include "table/sharded/split_batch.hpp"
#include "table/sharded/turn.hpp"
#include "table/sharded/view.hpp"

namespace gpuhash {
namespace {

/// Of so many keys, merging the hot ones gains about as much as the sample costs (docs/dead-ends.md).
constexpr std::int64_t kLeastToMerge = std::int64_t{1} << 20;

/// The columns that a request writes.
Span<const Write> writes_of(const Change& request) { return request.writes; }
template <class Request>
Span<const Write> writes_of(const Request&) {
  return {};
}

/// Is it known that the keys of all batches fit, as if all were new? Where a shard may have had that many more, it is
/// asked how many it has: otherwise the keys would have to be gathered, and taken one batch after the other.
bool has_room_for(const Shards& shards, const std::deque<SplitBatch>& batches) {
  for (std::size_t shard = 0; shard < shards.tables.size(); ++shard) {
    std::int64_t keys = 0;
    for (const SplitBatch& batch : batches) keys += batch.count(shard);
    Table& table = *shards.tables[shard];
    if (table.has_room(keys)) continue;
    table.size(shards.contexts[shard]->own_stream());
    if (!table.has_room(keys)) return false;
  }
  return true;
}

/// Where the caller wants what the shards answer of each key of a change.
struct Told {
  bool* mask;
  std::int64_t* rows;
};

/// The changes of batches in the turn of a call. change_shard(batch, shard, keys, told) makes one at a shard, whose
/// answers it is told where to write.
template <class ChangeShard>
void change_at_shards(const Shards& shards, std::deque<SplitBatch>& batches, const std::vector<Told>& told,
                      bool needs_room, ChangeShard change_shard) {
  std::vector<SplitBatch::Answers*> masks(told.size());
  std::vector<SplitBatch::Answers*> rows(told.size());
  for (std::size_t i = 0; i < told.size(); ++i) {
    if (told[i].mask != nullptr) masks[i] = batches[i].expect(sizeof(bool), false);
    if (told[i].rows != nullptr) rows[i] = batches[i].expect(sizeof(std::int64_t), false);
  }
  for_each_batch(batches, [](std::size_t, SplitBatch& batch) {
    batch.begin();
    batch.send();  // before anything changes: there may be no memory for it
  });
  const bool fits = !needs_room || has_room_for(shards, batches);
  const bool at_once = batches.size() == 1 || (fits && !shards.options.deterministic);
  std::deque<GatheredKeys> gathered;  // of each shard, where room is to be made for several batches
  const auto make_change = [&](std::size_t i, SplitBatch& batch, std::size_t shard) {
    KeyBatch keys = batch.keys(shard);
    if (!gathered.empty()) keys = gathered[shard].of(i, keys.count);
    change_shard(
        batch, shard, keys,
        Told{static_cast<bool*>(batch.of(masks[i], shard)), static_cast<std::int64_t*>(batch.of(rows[i], shard))});
  };
  const auto exceptions = std::uncaught_exceptions();
  const auto forget = [&](const Shards* all) {
    if (std::uncaught_exceptions() == exceptions) return;
    for (const auto& shard : all->tables) {  // some expect what will not come
      try {
        shard->forget_room();
      } catch (const std::logic_error&) {
        // This thread is in a call on the shard, for which no room has been made.
      }
    }
  };
  const std::unique_ptr<const Shards, decltype(forget)> guard(&shards, forget);
  if (!fits && at_once) {
    for_each_shard(batches, [](std::size_t, SplitBatch& batch, std::size_t shard) {
      batch.table(shard).make_room(batch.keys(shard), true, batch.stream(shard));
    });
  } else if (!fits) {  // for all batches before the first one is in
    for (std::size_t shard = 0; shard < shards.tables.size(); ++shard) {
      const GatheredKeys& keys = gathered.emplace_back(batches, shard);
      batches.front().table(shard).make_room(keys.all(), true, keys.stream());
    }
  }
  if (at_once) {
    for_each_shard(batches, make_change);
  } else {  // the batches in their order
    for (std::size_t i = 0; i < batches.size(); ++i)
      for (std::size_t shard = 0; shard < batches[i].shards(); ++shard) make_change(i, batches[i], shard);
  }
  for_each_batch(batches, [&](std::size_t i, SplitBatch& batch) {
    batch.finish();
    if (told[i].mask != nullptr) batch.split().gather_mask(masks[i]->origin.as<bool>(), told[i].mask, batch.stream());
    if (told[i].rows != nullptr)
      batch.split().gather_rows(rows[i]->origin.as<std::int64_t>(), told[i].rows, batch.stream());
  });
}

/// How the values of hot keys may be combined beforehand, if they may.
std::optional<Reduction> reduction_of(const TableOptions& options, const Change& request) {
  if (options.has_rows() || options.deterministic || request.writes.empty()) return {};
  const Reduction reduction{request.writes.front().action, *options.value_dtype};
  return reduction.can_merge() ? std::optional(reduction) : std::nullopt;
}

}  // namespace

/// Calls run(batches, requests), with a batch for each request that has keys, which are split, in one turn.
template <class Request, class Run>
void ShardedView::one_batch_each(Span<const Request> requests, Run run) {
  std::vector<Request> some;
  for (const Request& request : requests)
    if (request.keys.count != 0) some.push_back(request);
  if (some.empty()) return;
  // In one order, or two threads with the same requests could wait for each other.
  std::vector<std::size_t> order(some.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return &view_of(some[i].view); });
  std::deque<ShardedTurn> turns;
  const ShardedView* last = nullptr;
  for (const std::size_t i : order) {
    ShardedView& view = view_of(some[i].view);
    if (std::exchange(last, &view) == &view)
      turns.back().join(some[i].stream);
    else
      turns.emplace_back(view.order_, view.routes_, some[i].stream);
  }
  turns.front().lock_all();
  std::deque<SplitBatch> batches;
  for (const Request& request : some)
    batches.emplace_back(view_of(request.view).routes_, request.keys, writes_of(request), request.stream);
  run(batches, Span<const Request>(some));
}

template <class Request>
void ShardedView::advance_steps(Span<const Request> requests) {
  for (const Request& request : requests)
    if (request.step != nullptr && request.step->taken != nullptr)
      view_of(request.view).context().advance(*request.step, request.stream);
}

std::int64_t ShardedView::look_up(Span<const Lookup> requests) {
  for (const Lookup& request : requests) check_reads(options(), request.reads);
  std::int64_t missing = 0;
  one_batch_each(requests, [&](std::deque<SplitBatch>& batches, Span<const Lookup> some) {
    missing = look_up_at_shards(batches, some);
  });
  advance_steps(requests);
  return missing;
}

void ShardedView::change(Span<const Change> requests) {
  for (const Change& request : requests) check_change(options(), request);
  one_batch_each(requests, [&](std::deque<SplitBatch>& batches, Span<const Change> some) {
    std::vector<Told> told;
    for (std::size_t i = 0; i < some.size(); ++i) {
      told.push_back({some[i].inserted, some[i].rows});
      if (const std::optional<Reduction> reduction = reduction_of(options(), some[i]))
        batches[i].allow_merging(kLeastToMerge, reduction);
    }
    change_at_shards(
        all(), batches, told, true, [](SplitBatch& batch, std::size_t shard, const KeyBatch& keys, const Told& to) {
          const std::vector<Write> writes = batch.writes(shard);
          batch.table(shard).change(
              {.keys = keys, .writes = writes, .inserted = to.mask, .rows = to.rows, .stream = batch.stream(shard)});
        });
    std::deque<SplitBatch> afterwards;
    std::vector<Lookup> lookups;
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (some[i].reads.empty()) continue;
      lookups.push_back({.keys = some[i].keys, .reads = some[i].reads, .stream = some[i].stream});
      afterwards.emplace_back(batches[i].routes(), some[i].keys, Span<const Write>(), some[i].stream);
    }
    if (!lookups.empty()) look_up_at_shards(afterwards, lookups);
  });
  advance_steps(requests);
}

std::int64_t ShardedView::erase(Span<const Erasure> requests) {
  for (const Erasure& request : requests) check_reads(options(), request.reads);
  std::int64_t missing = 0;
  one_batch_each(requests, [&](std::deque<SplitBatch>& batches, Span<const Erasure> some) {
    std::deque<SplitBatch> before;
    std::vector<Lookup> lookups;
    std::vector<Told> told;
    for (std::size_t i = 0; i < some.size(); ++i) {
      const Erasure& request = some[i];
      told.push_back({request.erased, nullptr});
      if (request.reads.empty() && !request.all_or_none) continue;
      lookups.push_back({.keys = request.keys,
                         .reads = request.reads,
                         .count_missing = request.all_or_none,
                         .stream = request.stream});
      before.emplace_back(batches[i].routes(), request.keys, Span<const Write>(), request.stream);
    }
    if (!lookups.empty()) missing = look_up_at_shards(before, lookups);
    if (missing != 0) return;
    change_at_shards(all(), batches, told, false,
                     [](SplitBatch& batch, std::size_t shard, const KeyBatch& keys, const Told& to) {
                       batch.table(shard).erase({.keys = keys, .erased = to.mask, .stream = batch.stream(shard)});
                     });
  });
  return missing;
}

void ShardedView::make_room(const KeyBatch& keys, bool, Stream stream) {
  const Lookup request{.keys = keys, .stream = stream};
  one_batch_each(Span(&request, 1), [](std::deque<SplitBatch>& batches, Span<const Lookup>) {
    SplitBatch& batch = batches.front();
    batch.begin();
    batch.send();
    for (std::size_t shard = 0; shard < batch.shards(); ++shard)
      batch.table(shard).make_room(batch.keys(shard), false, batch.stream(shard));
    batch.finish();
  });
}

}  // namespace gpuhash
