#include "table/sharded/look_up.hpp"

#include <atomic>
#include <utility>
#include <vector>

#include "table/sharded/side_by_side.hpp"

namespace gpuhash {
namespace {

/// Of so many keys, merging the hot ones gains about as much as the sample costs (docs/dead-ends.md).
constexpr std::int64_t kLeastToMerge = std::int64_t{1} << 22;

/// What the shards answer of one request.
struct Wanted {
  SplitBatch::Answers* found = nullptr;
  SplitBatch::Answers* rows = nullptr;
  std::vector<SplitBatch::Answers*> columns;
  std::atomic<std::int64_t> missing{0};
};

/// The keys of a batch that are absent, where those that were merged have been looked up as one. Waits.
std::int64_t count_missing(const SplitBatch& merged) {
  SplitBatch batch = merged.again();
  batch.begin();
  batch.send();
  std::int64_t missing = 0;
  for (std::size_t shard = 0; shard < batch.shards(); ++shard)
    if (batch.count(shard) != 0)
      missing +=
          batch.table(shard).look_up({.keys = batch.keys(shard), .count_missing = true, .stream = batch.stream(shard)});
  batch.finish();
  return missing;
}

}  // namespace

std::int64_t look_up_at_shards(std::deque<SplitBatch>& batches, Span<const Lookup> requests) {
  std::vector<Wanted> wanted(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    bool needs_found = requests[i].found != nullptr;
    for (const Read& read : requests[i].reads) {
      wanted[i].columns.push_back(batches[i].expect(batches[i].options().column_bytes(read.column), true));
      needs_found = needs_found || read.fallback != nullptr;
    }
    if (needs_found) wanted[i].found = batches[i].expect(sizeof(bool), true);
    if (requests[i].rows != nullptr) wanted[i].rows = batches[i].expect(sizeof(std::int64_t), true);
  }
  const auto ask = [&](std::size_t i, SplitBatch& batch, std::size_t shard) {
    if (batch.count(shard) == 0) return;
    std::vector<Read> reads;
    for (std::size_t c = 0; c < wanted[i].columns.size(); ++c)
      reads.push_back({.column = requests[i].reads[c].column, .values = batch.of(wanted[i].columns[c], shard)});
    wanted[i].missing +=
        batch.table(shard).look_up({.keys = batch.keys(shard),
                                    .reads = reads,
                                    .found = static_cast<bool*>(batch.of(wanted[i].found, shard)),
                                    .rows = static_cast<std::int64_t*>(batch.of(wanted[i].rows, shard)),
                                    .count_missing = requests[i].count_missing,
                                    .stream = batch.stream(shard)});
  };
  const auto is_first = [&](std::size_t i, const SplitBatch& batch, std::size_t shard) {
    return batch.is_local(shard) && !requests[i].count_missing;  // which waits
  };
  for_each_batch(batches, [&](std::size_t i, SplitBatch& batch) {
    batch.allow_merging(kLeastToMerge);
    batch.begin();
    for (std::size_t shard = 0; shard < batch.shards(); ++shard)
      if (is_first(i, batch, shard)) ask(i, batch, shard);
    batch.send();
  });
  for_each_shard(batches, [&](std::size_t i, SplitBatch& batch, std::size_t shard) {
    if (!is_first(i, batch, shard)) ask(i, batch, shard);
  });
  for_each_batch(batches, [&](std::size_t i, SplitBatch& batch) {
    const Lookup& request = requests[i];
    const auto& [found, rows, columns, missing] = wanted[i];
    batch.finish();
    const Split& split = batch.split();
    const bool* const marks = found != nullptr ? found->origin.as<bool>() : nullptr;
    bool* found_out = request.found;  // written on the way, with the first column
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const Read& read = request.reads[c];
      split.gather(columns[c]->origin.get(), columns[c]->bytes, read.values,
                   {marks, read.fallback, read.fallback_per_key, std::exchange(found_out, nullptr)}, request.stream);
    }
    if (found_out != nullptr) split.gather(marks, sizeof(bool), found_out, {}, request.stream);
    if (request.rows != nullptr) split.gather_rows(rows->origin.as<std::int64_t>(), request.rows, request.stream);
  });
  std::int64_t all_missing = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::int64_t missing = wanted[i].missing;
    all_missing += missing != 0 && batches[i].split().merges() ? count_missing(batches[i]) : missing;
  }
  return all_missing;
}

}  // namespace gpuhash
