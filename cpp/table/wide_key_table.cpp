#include "table/wide_key_table.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <gpuhash/error.hpp>
#include <gpuhash/factorization.hpp>
#include "core/random_seed.hpp"
#include "core/tuning.hpp"

namespace gpuhash {
namespace {

/// Of the inner table: where the keys lie. The caller's columns follow.
constexpr std::size_t kKeyColumn = 0;

/// A captured lookup makes so many attempts, or more. Four keys of one fingerprint of 63 bits are not to be expected.
constexpr std::uint64_t kCapturedAttempts = 3;

template <class Column>
std::vector<Column> of_inner(Span<const Column> columns) {
  std::vector<Column> shifted(columns.begin(), columns.end());
  for (Column& column : shifted) ++column.column;
  return shifted;
}

/// The key as one column of numbers as wide as divide it, so that it is aligned to them.
Column key_column(std::int64_t bytes) {
  const DType dtype = bytes % 8 == 0   ? DType::kUInt64
                      : bytes % 4 == 0 ? DType::kUInt32
                      : bytes % 2 == 0 ? DType::kUInt16
                                       : DType::kUInt8;
  return {"", dtype, {bytes / static_cast<std::int64_t>(itemsize(dtype))}, {}};
}

TableOptions inner_options(const TableOptions& options) {
  TableOptions inner = options;
  inner.key_dtype = DType::kUInt64;
  inner.key_elements = 1;
  inner.value_dtype.reset();
  inner.value_shape.clear();
  inner.initializer.reset();
  inner.columns = {key_column(options.key_bytes())};
  if (options.value_dtype)
    inner.columns.push_back({"values", *options.value_dtype, options.value_shape, options.initializer});
  inner.columns.insert(inner.columns.end(), options.columns.begin(), options.columns.end());
  return inner;
}

bool draws(const Column& column) {
  return column.initializer && column.initializer->distribution != Distribution::kConstant;
}

template <class T>
Allocation scratch(DeviceContext& context, std::int64_t count, Stream stream) {
  return {context, static_cast<std::size_t>(count) * sizeof(T), stream};
}

/// The keys of several batches one behind the other, in the order of the first one's stream.
class GatheredKeys {
 public:
  GatheredKeys(DeviceContext& context, Span<const Change> requests, std::uint32_t bytes)
      : context_(context), requests_(requests) {
    std::int64_t batches = 0;
    for (const Change& request : requests) {
      if (request.keys.count == 0) continue;
      if (batches++ == 0) {
        keys_ = request.keys;
        stream_ = request.stream;
      } else {
        keys_.count += request.keys.count;
      }
    }
    if (batches < 2) return;
    fence_ = context.make_fence();
    memory_ = scratch<std::byte>(context, keys_.count * bytes, stream_);
    auto* next = memory_.as<std::byte>();
    follow([&](const Change& request) {
      const auto length = static_cast<std::size_t>(request.keys.count) * bytes;
      context.copy(std::exchange(next, next + length), request.keys.data, length, request.stream);
    });
    keys_ = {memory_.get(), keys_.count, bytes};
  }
  /// What the requests' streams have read goes back in the order of the first one.
  ~GatheredKeys() {
    if (fence_ == nullptr) return;
    try {
      follow([](const Change&) {});
    } catch (const CudaError&) {
      // A stream that takes no work any more says so in the next call.
    }
  }
  GatheredKeys(const GatheredKeys&) = delete;
  GatheredKeys& operator=(const GatheredKeys&) = delete;

  const KeyBatch& keys() const { return keys_; }
  Stream stream() const { return stream_; }

 private:
  /// Calls body(request) between the work before on the first stream and that after.
  template <class Body>
  void follow(Body body) {
    for (const Change& request : requests_) {
      if (request.keys.count == 0) continue;
      fence_->record(stream_);
      fence_->wait(request.stream);
      body(request);
      fence_->record(request.stream);
      fence_->wait(stream_);
    }
  }

  DeviceContext& context_;
  Span<const Change> requests_;
  std::unique_ptr<Fence> fence_;  // null: there is one batch, as it is
  KeyBatch keys_{nullptr, 0, 0};
  Stream stream_ = nullptr;
  Allocation memory_;
};

}  // namespace

WideKeyTable::WideKeyTable(const TableOptions& options, std::shared_ptr<DeviceContext> context)
    : options_(options),
      context_(std::move(context)),
      inner_(std::static_pointer_cast<Inner>(make_hash_table(inner_options(options), context_))),
      prints_{options.seed ? hash_key(*options.seed, detail::kHashFinish) : random_seed(),
              static_cast<int>(tuning().fingerprint_bits)},
      columns_(inner_->options()),
      key_offset_(place_columns(inner_->options().columns).offsets[kKeyColumn]),
      draws_(std::ranges::any_of(inner_->options().columns, draws)) {
  options_.max_capacity = inner_->options().max_capacity;
}

WideKeyTable::WideKeyTable(const WideKeyTable& other, std::shared_ptr<DeviceContext> context,
                           std::shared_ptr<Table> inner)
    : options_(other.options_),
      context_(std::move(context)),
      inner_(std::static_pointer_cast<Inner>(std::move(inner))),
      prints_(other.prints_),
      columns_(other.columns_),
      key_offset_(other.key_offset_),
      draws_(other.draws_),
      attempts_(other.attempts_) {}

std::unique_lock<ForkSafeMutex> WideKeyTable::lock() const {
  let_fork_pass();
  return std::unique_lock(mutex_);
}

/// As lock(), for a change of the keys other than the one that is expected.
std::unique_lock<ForkSafeMutex> WideKeyTable::lock_for_change() {
  auto locked = lock();
  if (expected_) forget();
  return locked;
}

/// With the lock.
void WideKeyTable::forget() {
  expected_.reset();
  inner_->forget_room();
}

// Lookups -------------------------------------------------------------------------------------------------------------

/// rows [n]: the keys' rows, kAbsentRow or, with Search::kPlace, kTakenRow. slots [n]: as Attempt's, and scratch memory
/// with Search::kFind. reads: of what is there.
void WideKeyTable::search(const KeyBatch& keys, Search search, std::int64_t* rows, std::uint64_t* slots,
                          Span<const Read> reads, Stream stream) {
  std::uint64_t attempts = attempts_;
  if (context_->is_capturing(stream)) {
    attempts = std::max(attempts, kCapturedAttempts);
    captured_attempts_ = captured_attempts_ == 0 ? attempts : std::min(attempts, captured_attempts_);
  }
  const Allocation more_prints = scratch<std::uint64_t>(*context_, attempts == 1 ? 0 : keys.count, stream);
  const Allocation more_rows = scratch<std::int64_t>(*context_, attempts == 1 ? 0 : keys.count, stream);
  std::uint64_t* const tried = attempts == 1 ? slots : more_prints.as<std::uint64_t>();
  std::int64_t* const met = attempts == 1 ? rows : more_rows.as<std::int64_t>();
  const std::vector<ColumnRead> read = columns_.reads(of_inner(reads));
  for (std::uint64_t attempt = 0; attempt < attempts; ++attempt) {
    wide_keys().fingerprint(*context_, keys, prints_, attempt, tried, stream);
    inner_->look_up({.keys = {tried, keys.count, sizeof *tried}, .rows = met, .stream = stream});
    inner_->with_rows(stream, [&](const RowView& view) {
      const Attempt made{tried, met, rows, search == Search::kFind ? nullptr : slots, search, attempt == 0};
      const bool is_last = attempt + 1 == attempts;
      wide_keys().match(*context_, keys, {view, key_offset_}, made,
                        is_last ? std::span(read) : std::span(read).first(0), stream);
    });
  }
}

std::int64_t WideKeyTable::look_up(Span<const Lookup> requests) {
  for (const Lookup& request : requests) check_reads(options_, request.reads);
  const auto locked = lock();
  std::int64_t missing = 0;
  for (const Lookup& request : requests) missing += find_in(request);
  return missing;
}

std::int64_t WideKeyTable::find_in(const Lookup& request) {
  const std::int64_t count = request.keys.count;
  const Stream stream = request.stream;
  std::int64_t missing = 0;
  if (count != 0) {
    const Allocation slots = scratch<std::uint64_t>(*context_, count, stream);
    const Allocation memory = scratch<std::int64_t>(*context_, request.rows == nullptr ? count : 0, stream);
    std::int64_t* const rows = request.rows == nullptr ? memory.as<std::int64_t>() : request.rows;
    search(request.keys, Search::kFind, rows, slots.as<std::uint64_t>(), request.reads, stream);
    if (request.found != nullptr) wide_keys().write_found(*context_, rows, count, request.found, stream);
    if (request.count_missing) missing = wide_keys().count_absent(*context_, rows, count, stream).count;
  }
  make_step(request.step, stream);
  return missing;
}

/// Of the chain that a request belongs to, if it does.
void WideKeyTable::make_step(const ChainStep* step, Stream stream) {
  if (step != nullptr && step->taken != nullptr) context_->advance(*step, stream);
}

// Changes -------------------------------------------------------------------------------------------------------------

/// Waits. All that a change of these keys needs to know, and takes memory for, before anything is changed.
WideKeyTable::Placed WideKeyTable::place(const KeyBatch& keys, Stream stream) {
  Placed placed = find_slots(keys, stream);
  if (!draws_ || placed.absent == 0) return placed;
  placed.digests = scratch<Uint128>(*context_, keys.count, stream);
  wide_keys().digest(*context_, keys, placed.digests.as<Uint128>(), stream);
  return placed;
}

/// Waits. Gives each key a slot that is its own: that which it has, or one that neither another key of the table has
/// nor another one of the batch gets.
WideKeyTable::Placed WideKeyTable::find_slots(const KeyBatch& keys, Stream stream) {
  const std::int64_t n = keys.count;
  Placed placed{scratch<std::uint64_t>(*context_, n, stream), scratch<std::int64_t>(*context_, n, stream), 0, {}};
  auto* const slots = placed.slots.as<std::uint64_t>();
  auto* const rows = placed.rows.as<std::int64_t>();
  search(keys, Search::kPlace, rows, slots, {}, stream);
  const auto [absent, taken] = wide_keys().count_absent(*context_, rows, n, stream);
  placed.absent = absent;
  if (absent == 0) return placed;
  bool some_taken = taken != 0;
  if (!some_taken && !part_absent(keys, placed, stream)) return placed;
  const Allocation met = scratch<std::int64_t>(*context_, n, stream);
  do {
    do {
      inner_->look_up({.keys = placed.keys(0, n), .rows = met.as<std::int64_t>(), .stream = stream});
    } while (wide_keys().move_on(*context_, met.as<std::int64_t>(), n, rows, slots, stream) != 0);
  } while (part_absent(keys, placed, stream));
  const Allocation prints = scratch<std::uint64_t>(*context_, n, stream);
  wide_keys().fingerprint(*context_, keys, prints_, 0, prints.as<std::uint64_t>(), stream);
  note_attempts(1 + wide_keys().most_attempts(*context_, prints.as<std::uint64_t>(), slots, n, stream));
  return placed;
}

/// Of different absent keys with one slot, all but the first get kTakenRow and the next slot; false: there were none.
bool WideKeyTable::part_absent(const KeyBatch& keys, const Placed& placed, Stream stream) {
  const std::int64_t absent = placed.absent;
  if (absent == 1) return false;
  auto* const slots = placed.slots.as<std::uint64_t>();
  auto* const rows = placed.rows.as<std::int64_t>();
  const bool all = absent == keys.count;
  const Allocation positions = scratch<std::int64_t>(*context_, all ? 0 : absent, stream);
  const Allocation listed = scratch<std::uint64_t>(*context_, all ? 0 : absent, stream);
  if (!all)
    wide_keys().list_absent(*context_, rows, slots, keys.count, positions.as<std::int64_t>(),
                            listed.as<std::uint64_t>(), stream);
  const NumberKeys numbers{all ? slots : listed.as<std::uint64_t>(), absent, DType::kUInt64};
  const auto batch = Factorizer::of(*context_).factorize(*context_, numbers, {.counts = false}, stream);
  if (batch->count() == absent) return false;
  const Allocation codes = scratch<std::int64_t>(*context_, absent, stream);
  const Allocation firsts = scratch<std::int64_t>(*context_, batch->count(), stream);
  batch->write({nullptr, codes.as<std::int64_t>(), nullptr, firsts.as<std::int64_t>(), false});
  const NumberedKeys numbered{positions.as<std::int64_t>(), codes.as<std::int64_t>(), firsts.as<std::int64_t>(),
                              absent};
  return wide_keys().part(*context_, keys, numbered, rows, slots, stream) != 0;
}

/// Before a key is inserted that takes so many.
void WideKeyTable::note_attempts(std::uint64_t attempts) {
  if (captured_attempts_ != 0 && attempts > captured_attempts_)
    throw TableFullError("a key shares its fingerprint with " + std::to_string(attempts - 1) +
                         " others, more than a CUDA graph that was captured looks at: clear the table, or insert into "
                         "one with another seed and capture again");
  attempts_ = std::max(attempts_, attempts);
}

void WideKeyTable::change(Span<const Change> requests) {
  for (const Change& request : requests) check_change(options_, request);
  const auto locked = lock();
  if (expected_ && !(requests.size() == 1 && expected_->is_for(requests.front().keys, requests.front().stream)))
    forget();
  for (const Change& request : requests)
    if (request.keys.count != 0 && context_->is_capturing(request.stream))
      throw ShapeError("an insertion of keys of " + std::to_string(options_.key_bytes()) +
                       " bytes was made while a CUDA graph is captured: it waits for the GPU, as all of keys of more "
                       "than 16 bytes do; insert before the capture, which may have lookups and erasures");
  const GatheredKeys gathered(*context_, requests, options_.key_bytes());
  if (gathered.keys().count != 0) {
    std::optional<Expected> expected = std::exchange(expected_, std::nullopt);
    const Placed placed = expected ? std::move(expected->placed) : place(gathered.keys(), gathered.stream());
    change_placed(requests, placed);
  }
  for (const Change& request : requests) make_step(request.step, request.stream);
}

/// `placed`: the keys of all requests.
void WideKeyTable::change_placed(Span<const Change> requests, const Placed& placed) {
  std::vector<Change> changes;
  std::vector<std::vector<Write>> writes;
  std::vector<std::vector<Read>> reads;
  changes.reserve(requests.size());
  std::int64_t from = 0;
  for (const Change& request : requests) {
    const std::int64_t count = request.keys.count;
    if (count == 0) continue;
    std::vector<Write>& written = writes.emplace_back(of_inner(request.writes));
    if (placed.absent != 0)
      written.push_back({.column = kKeyColumn, .values = request.keys.data, .action = Action::kKeep});
    Change& inner = changes.emplace_back(request);
    inner.keys = placed.keys(from, count);
    inner.writes = written;
    inner.reads = reads.emplace_back(of_inner(request.reads));
    if (placed.digests.get() != nullptr) inner.drawn_from = placed.digests.as<Uint128>() + from;
    inner.step = nullptr;
    from += count;
  }
  inner_->change(changes);
}

std::int64_t WideKeyTable::erase(Span<const Erasure> requests) {
  for (const Erasure& request : requests) check_reads(options_, request.reads);
  const auto locked = lock_for_change();
  std::int64_t missing = 0;
  std::vector<Allocation> memory;
  std::vector<Erasure> erasures;
  for (const Erasure& request : requests) {
    const std::int64_t count = request.keys.count;
    const Stream stream = request.stream;
    if (count == 0) continue;
    auto* const slots = memory.emplace_back(scratch<std::uint64_t>(*context_, count, stream)).as<std::uint64_t>();
    const Allocation numbers = scratch<std::int64_t>(*context_, count, stream);
    auto* const rows = numbers.as<std::int64_t>();
    search(request.keys, Search::kErase, rows, slots, request.reads, stream);
    if (request.all_or_none) missing += wide_keys().count_absent(*context_, rows, count, stream).count;
    erasures.push_back({.keys = {slots, count, sizeof *slots}, .erased = request.erased, .stream = stream});
  }
  if (missing == 0) inner_->erase(erasures);
  return missing;
}

void WideKeyTable::clear(Stream stream) {
  const auto locked = lock_for_change();
  inner_->clear(stream);
  if (!context_->is_capturing(stream)) attempts_ = 1;  // else nothing is cleared yet
}

void WideKeyTable::restore_rows(const KeyBatch& keys, const std::int64_t* rows, Stream stream) {
  const auto locked = lock_for_change();
  if (keys.count == 0) return inner_->restore_rows(keys, rows, stream);
  const Placed placed = place(keys, stream);
  const Write write{.column = kKeyColumn, .values = keys.data};
  inner_->restore_rows(placed.keys(0, keys.count), rows, stream);
  try {
    inner_->change({.keys = placed.keys(0, keys.count), .writes = Span(&write, 1), .stream = stream});
  } catch (...) {
    inner_->clear(stream);
    throw;
  }
}

// All keys ------------------------------------------------------------------------------------------------------------

std::int64_t WideKeyTable::export_items(const Export& request) {
  check_reads(options_, request.reads);
  const auto locked = lock();
  std::vector<Read> reads = of_inner(request.reads);
  if (request.keys != nullptr) reads.push_back({.column = kKeyColumn, .values = request.keys});
  return inner_->export_items({.reads = reads, .rows = request.rows, .room = request.room, .stream = request.stream});
}

void WideKeyTable::make_room(const KeyBatch& keys, bool expect_insertion, Stream stream) {
  if (keys.count == 0) return;
  const auto locked = lock_for_change();
  Placed placed = place(keys, stream);
  inner_->make_room(placed.keys(0, keys.count), expect_insertion, stream);
  if (expect_insertion) expected_ = {keys, stream, std::move(placed)};
}

void WideKeyTable::forget_room() {
  const auto locked = lock();
  forget();
}

void WideKeyTable::reserve(std::int64_t keys, Stream stream) {
  const auto locked = lock();
  inner_->reserve(keys, stream);
}

void WideKeyTable::rehash(std::int64_t slots, bool compact_rows, Stream stream) {
  const auto locked = lock_for_change();
  inner_->rehash(slots, compact_rows, stream);
}

void WideKeyTable::fix_in_place(Stream) {
  throw ShapeError("a table with keys of " + std::to_string(options_.key_bytes()) +
                   " bytes was to stay where it is, as programs want it that hold its memory (fixed=True in JAX); that "
                   "is for keys of up to 16 bytes: call it without fixed=True");
}

std::shared_ptr<Table> WideKeyTable::clone(std::shared_ptr<DeviceContext> context, Stream stream) {
  const auto locked = lock();
  std::shared_ptr<Table> inner = inner_->clone(context, stream);
  return std::shared_ptr<Table>(new WideKeyTable(*this, std::move(context), std::move(inner)));
}

// Rows ----------------------------------------------------------------------------------------------------------------

RowStorage WideKeyTable::row_storage(Stream stream) {
  check_row_storage(options_);
  RowStorage storage = inner_->row_storage(stream);
  storage.layout.offsets.erase(storage.layout.offsets.begin());
  return storage;
}

void WideKeyTable::read_rows(const std::int64_t* rows, std::int64_t count, Span<const Read> reads, Stream stream) {
  check_row_reads(options_, reads);
  inner_->read_rows(rows, count, of_inner(reads), stream);
}

void WideKeyTable::pool_rows(const std::int64_t* rows, std::int64_t count, const Bags& bags, const Read& out,
                             Stream stream) {
  check_pooled(options_, out);
  inner_->pool_rows(rows, count, bags, of_inner(Span(&out, 1)).front(), stream);
}

void WideKeyTable::train(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
                         const std::vector<std::size_t>& columns, const OptimizerStep& step, Stream stream) {
  check_trained(options_, columns, step, gradients);
  std::vector<std::size_t> inner = columns;
  for (std::size_t& column : inner) ++column;
  inner_->train(rows, count, gradients, inner, step, stream);
}

}  // namespace gpuhash
