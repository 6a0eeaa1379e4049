#include "table/sharded/split_batch.hpp"

#include <algorithm>
#include <utility>

#include "table/executor.hpp"
#include "table/slot_types.hpp"

namespace gpuhash {

SplitBatch::SplitBatch(Routes& routes, const KeyBatch& keys, Span<const Write> writes, Stream stream)
    : routes_(routes),
      keys_(keys),
      writes_(writes.begin(), writes.end()),
      stream_(stream),
      sorted_columns_(writes.size()),
      parcels_(routes.size()) {}

SplitBatch::~SplitBatch() {
  if (std::uncaught_exceptions() == exceptions_) return;
  try {
    routes_.leave(stream_);
    routes_.come_back(stream_);
  } catch (const std::exception&) {
    report_ignored_error("breaking off a call on a table of several shards");
  }
}

SplitBatch::Answers* SplitBatch::expect(std::int64_t bytes, bool written_directly) {
  Answers& answers = answers_.emplace_back();
  answers.bytes = bytes;
  answers.written_directly = written_directly;
  answers.remote.resize(shards());
  return &answers;
}

void SplitBatch::allow_merging(std::int64_t least, const std::optional<Reduction>& reduction) {
  least_to_merge_ = least;
  reduction_ = reduction;
}

void SplitBatch::begin() {
  DeviceContext& origin = *routes_.origin();
  const Splitter& splitter = *origin.executors().splitter;
  const std::uint64_t seed = routes_.shards()->seed;
  std::shared_ptr<Sample> sample;
  if (keys_.count >= least_to_merge_ && shards() > 1 && keys_.bytes <= kMostSlotKeyBytes)
    sample = splitter.sample(origin, keys_, seed, routes_.samples(), stream_);
  split_ = splitter.split(origin, keys_, seed, Parts(shards()), routes_.counts(), sample, stream_);
  const bool merges = split_->merges();  // where there are values, with a reduction
  sorted_keys_ = allocate(keys_.bytes);
  for (std::size_t c = 0; c < writes_.size(); ++c)
    if (merges || !writes_[c].broadcast) sorted_columns_[c] = allocate(bytes(c));
  split_->sort_keys(sorted_keys_.get());
  for (std::size_t c = 0; c < writes_.size(); ++c) {
    Write& write = writes_[c];
    void* const sorted = sorted_columns_[c].get();
    if (merges)
      split_->combine(write.values, std::exchange(write.broadcast, false), *reduction_, sorted, stream_);
    else if (!write.broadcast)
      split_->sort(write.values, bytes(c), sorted, stream_);
    else
      keep_from_rows(c);
  }
  for (Answers& answers : answers_) answers.origin = allocate(answers.bytes);
  split_->wait();
  routes_.leave(stream_);
  for (std::size_t shard = 0; shard < shards(); ++shard) {
    if (!is_local(shard)) continue;
    parcels_[shard].keys = part_of(sorted_keys_, keys_.bytes, shard);
    for (std::size_t c = 0; c < writes_.size(); ++c) parcels_[shard].columns.push_back(column_of(c, shard));
  }
}

void SplitBatch::send() {
  for (std::size_t shard = 0; shard < shards(); ++shard) {
    const Route& route = routes_[shard];
    if (route.local) continue;
    Parcel& parcel = parcels_[shard];
    parcel.keys = deliver(shard, part_of(sorted_keys_, keys_.bytes, shard), count(shard) * keys_.bytes);
    for (std::size_t c = 0; c < writes_.size(); ++c) {
      const std::int64_t values = writes_[c].broadcast ? 1 : count(shard);
      parcel.columns.push_back(deliver(shard, column_of(c, shard), values * bytes(c)));
    }
    route.returning->record(stream(shard));  // what lies here has been read
    for (Answers& answers : answers_)
      if (!route.direct || !answers.written_directly)
        answers.remote[shard] =
            Allocation(*route.context, static_cast<std::size_t>(count(shard) * answers.bytes), stream(shard));
  }
}

std::vector<Write> SplitBatch::writes(std::size_t shard) const {
  std::vector<Write> writes = writes_;
  for (std::size_t c = 0; c < writes.size(); ++c) writes[c].values = parcels_[shard].columns[c];
  return writes;
}

void* SplitBatch::of(const Answers* answers, std::size_t shard) const {
  if (answers == nullptr) return nullptr;
  if (answers->remote[shard].get() != nullptr) return answers->remote[shard].get();
  return part_of(answers->origin, answers->bytes, shard);
}

void SplitBatch::finish() {
  if (answers_.empty()) return routes_.follow(stream_);
  routes_.come_back(stream_);
  bool fetched = false;
  for (const Answers& answers : answers_)
    for (std::size_t shard = 0; shard < answers.remote.size(); ++shard) {
      const Allocation& there = answers.remote[shard];
      if (there.get() == nullptr) continue;
      fetched = true;
      routes_.origin()->copy_from(part_of(answers.origin, answers.bytes, shard), *routes_[shard].context, there.get(),
                                  static_cast<std::size_t>(count(shard) * answers.bytes), stream_);
    }
  if (fetched) routes_.leave(stream_);  // before what was fetched is given back
}

/// Copies the one value of all keys where it is a shard's rows, which are written while others read it.
void SplitBatch::keep_from_rows(std::size_t c) {
  Write& write = writes_[c];
  const MemoryRange value{write.values, bytes(c)};
  if (std::ranges::none_of(routes_.shards()->tables, [&](const auto& shard) { return shard->overlaps_rows(value); }))
    return;
  const auto length = static_cast<std::size_t>(bytes(c));
  Allocation& copy = sorted_columns_[c] = Allocation(*routes_.origin(), length, stream_);
  routes_.origin()->copy(copy.get(), write.values, length, stream_);
  write.values = copy.get();
}

/// The values of the shard's keys, or the one that all keys have.
void* SplitBatch::column_of(std::size_t c, std::size_t shard) const {
  if (writes_[c].broadcast) return const_cast<void*>(writes_[c].values);
  return part_of(sorted_columns_[c], bytes(c), shard);
}

/// Where a shard that is elsewhere finds what lies here at `from`.
void* SplitBatch::deliver(std::size_t shard, void* from, std::int64_t bytes) {
  if (bytes == 0) return from;
  DeviceContext& context = *routes_[shard].context;
  Allocation& there = parcels_[shard].memory.emplace_back(context, static_cast<std::size_t>(bytes), stream(shard));
  context.copy_from(there.get(), *routes_.origin(), from, static_cast<std::size_t>(bytes), stream(shard));
  return there.get();
}

}  // namespace gpuhash
