#include <gpuhash/sharded_table.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <gpuhash/error.hpp>
#include "core/constants.hpp"
#include "core/environment.hpp"
#include "core/fork_safe_mutex.hpp"
#include "core/thread_pool.hpp"
#include "table/call_order.hpp"
#include "table/executor.hpp"
#include "table/hash_table.hpp"
#include "table/splitter.hpp"

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

/// Of so many keys, merging the hot ones gains about as much as the sample costs (docs/dead-ends.md).
constexpr std::int64_t kLeastToMerge = std::int64_t{1} << 20;
constexpr std::int64_t kLeastToMergeLookups = std::int64_t{1} << 22;

/// What all views of one sharded table share.
struct Shards {
  std::vector<std::shared_ptr<Table>> tables;
  std::vector<std::shared_ptr<DeviceContext>> contexts;  // of each shard
  TableOptions options;                                  // of the whole
  std::uint64_t seed = 0;                                // of the owners
  ForkSafeMutex mutex;                                   // one call after the other, in one order on all shards
};

/// The table as seen from the device of one context, its *home*.
class View final : public ShardedTable {
 public:
  View(std::shared_ptr<Shards> shards, std::shared_ptr<DeviceContext> home);
  ~View() override;

  const TableOptions& options() const override { return all_->options; }
  DeviceContext& context() const override { return *home_; }
  std::uint64_t seed() const override { return all_->tables.front()->seed(); }

  std::int64_t size(Stream stream) override;
  std::int64_t capacity() const override {
    return sum([](Table& shard) { return shard.capacity(); });
  }
  std::int64_t nbytes() const override {
    return sum([](Table& shard) { return shard.nbytes(); });
  }
  double max_load_factor() const override { return all_->tables.front()->max_load_factor(); }
  void set_max_load_factor(double factor) override {
    const std::lock_guard lock(all_->mutex);
    for (const auto& shard : all_->tables) shard->set_max_load_factor(factor);
  }

  std::int64_t find(const KeyBatch& keys, const FindOutput& out, Stream stream) override;
  void insert(const KeyBatch& keys, const ValueBatch& values, InsertMode mode, bool* inserted, Stream stream,
              const ChainStep& step) override;
  void apply(const KeyBatch& keys, const ValueBatch& values, ApplyOp op, bool* inserted, Stream stream) override;
  std::int64_t find_parts(const std::vector<Part>& parts) override;
  void insert_parts(const std::vector<Part>& parts, InsertMode mode) override;
  void find_or_insert(const KeyBatch& keys, const ValueBatch& values, std::int64_t* rows, bool* inserted,
                      Stream stream) override;
  void find_or_insert_parts(const std::vector<Part>& parts) override;
  void apply_parts(const std::vector<Part>& parts, ApplyOp op) override;
  void change_columns_parts(const std::vector<Part>& parts) override;
  void erase_parts(const std::vector<Part>& parts) override;
  void make_room(const KeyBatch& keys, bool expect_insertion, Stream stream) override;
  void forget_room() override {
    for (const auto& shard : all_->tables) shard->forget_room();
  }
  bool has_room(std::int64_t keys) const override {
    const std::lock_guard lock(all_->mutex);
    return std::ranges::all_of(all_->tables, [&](const auto& shard) { return shard->has_room(keys); });
  }
  void erase(const KeyBatch& keys, bool* erased, Stream stream) override;
  std::int64_t find_and_erase(const KeyBatch& keys, const FindOutput& out, const std::vector<ColumnOutput>& columns,
                              Stream stream) override;
  void insert_and_find(const KeyBatch& keys, const ValueBatch& values, const std::vector<ColumnInput>& inputs,
                       bool* inserted, const FindOutput& out, const std::vector<ColumnOutput>& columns,
                       Stream stream) override;
  void clear(Stream stream) override;
  void reserve(std::int64_t keys, Stream stream) override;
  void rehash(std::int64_t slots, bool compact_rows, Stream stream) override;
  void fix_in_place(Stream) override {
    throw ShapeError(
        "a table of several shards was to stay in place, which single tables can: hold its shards, table.shards");
  }
  void restore_rows(const KeyBatch&, const std::int64_t*, Stream) override {
    throw ShapeError(
        "rows were to be restored in a table of several shards: restore those of its shards, table.shards");
  }
  std::int64_t export_items(void* keys, void* values, std::int64_t* rows, std::int64_t room, Stream stream) override;
  std::int64_t find_columns(const KeyBatch& keys, const FindOutput& out, const std::vector<ColumnOutput>& columns,
                            Stream stream) override;
  void change_columns(const KeyBatch& keys, const std::vector<ColumnInput>& columns, std::int64_t* rows, bool* inserted,
                      Stream stream) override;
  void read_rows(const std::int64_t* rows, std::int64_t count, const std::vector<ColumnOutput>& columns,
                 Stream stream) override;
  void pool_rows(const std::int64_t* rows, std::int64_t count, const Bags& bags, const ColumnOutput& out,
                 Stream stream) override;
  void train(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
             const std::vector<std::size_t>& columns, const OptimizerStep& step, Stream stream) override;
  std::int64_t export_columns(void* keys, const std::vector<ColumnOutput>& columns, std::int64_t* rows,
                              std::int64_t room, Stream stream) override;
  RowStorage row_storage(Stream) override {
    throw ShapeError(
        "a table of several shards has no single row storage: its rows lie with its shards, "
        "table.shards[i].row_storage");
  }
  bool overlaps_rows(const MemoryRange& memory) const override {
    return std::ranges::any_of(all_->tables, [&](const auto& shard) { return shard->overlaps_rows(memory); });
  }
  Constants& constants() override { return constants_; }
  std::shared_ptr<Table> clone(std::shared_ptr<DeviceContext> context, Stream stream) override;

  const std::vector<std::shared_ptr<Table>>& shards() const override { return all_->tables; }
  std::shared_ptr<ShardedTable> at(const Device& device) override;

 private:
  /// A shard, as this device gets to it.
  struct Way {
    Table* shard;
    DeviceContext* context;
    bool local;                        // the shard is on this device
    bool direct;                       // work on the shard's device can write to the memory here
    std::unique_ptr<Fence> returning;  // recorded there, for streams here; null where it is local
  };
  class Turn;
  class Call;
  class Gathered;

  template <class Run>
  static void one_call_each(const std::vector<Part>& parts, Run run);
  static bool are_launched_apart(const std::deque<Call>& calls);
  template <class Body>
  static void for_each_call(std::deque<Call>& calls, Body body);
  template <class Body>
  static void for_each_shard(std::deque<Call>& calls, Body body);
  static std::int64_t count_missing(const Call& merged);
  template <class Calls>
  bool has_room_for(const Calls& calls) const;
  /// What a shard is given of one part of a change.
  struct Share {
    Table& shard;
    KeyBatch keys;
    ValueBatch values;
    std::vector<ColumnInput> columns;
    bool* mask;
    std::int64_t* rows;
    Stream stream;
  };
  std::int64_t export_parts(void* keys, void* values, const std::vector<ColumnOutput>& columns, std::int64_t* rows,
                            std::int64_t room, Stream stream);
  void check_lookup(const Part& part) const;
  std::int64_t look_up(std::deque<Call>& calls, const std::vector<Part>& parts);
  template <class Change>
  void change(std::deque<Call>& calls, const std::vector<Part>& parts, bool needs_room, Change change,
              const std::optional<Reduction>& reduction = {});
  template <class Change>
  void change_parts(const std::vector<Part>& parts, bool needs_room, Change change,
                    const std::optional<Reduction>& reduction = {});

  template <class Number>
  std::int64_t sum(Number number) const {
    const std::lock_guard lock(all_->mutex);
    std::int64_t total = 0;
    for (const auto& shard : all_->tables) total += number(*shard);
    return total;
  }
  Stream stream_of(const Way& way, Stream stream) const { return way.local ? stream : way.context->own_stream(); }
  /// Calls body(way, stream, number) for all shards, whose streams follow this one, and lets it follow them.
  template <class Body>
  void in_order(Stream stream, Body body);

  std::shared_ptr<Shards> all_;
  std::shared_ptr<DeviceContext> home_;
  CallOrder order_;
  Constants constants_;
  CountsMailbox mailbox_;
  CountsMailbox samples_;
  std::unique_ptr<Fence> leaving_;  // recorded here, for the shards' streams; null where all are local
  std::vector<Way> ways_;
};

/// One call's turn, here and at all shards.
class View::Turn {
 public:
  Turn(View& view, Stream stream)
      : here_(view.order_, stream), all_(view.all_->mutex, std::defer_lock), home_(*view.home_), stream_(stream) {
    check(here_.capturing());
  }
  ~Turn() {
    try {
      for (const Stream other : others_) follow(stream_, other);
    } catch (const CudaError&) {
      report_ignored_error("ending a call on a table of several shards");
    }
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// The call has work on this stream, too.
  void join(Stream stream) {
    if (stream == stream_ || std::ranges::find(others_, stream) != others_.end()) return;
    check(home_.is_capturing(stream));
    if (fence_ == nullptr) fence_ = home_.make_fence();
    follow(stream, stream_);
    others_.push_back(stream);
  }
  /// After those of all views that take part.
  void lock_all() { all_.lock(); }

 private:
  static void check(bool capturing) {
    if (capturing)
      throw ShapeError(
          "a call on a table of several shards was made while a CUDA graph is captured: it waits to learn how many "
          "keys belong to each shard, which a graph cannot; call it outside of the capture");
  }
  void follow(Stream stream, Stream other) {
    fence_->record(other);
    fence_->wait(stream);
  }

  CallOrder::Turn here_;
  std::unique_lock<ForkSafeMutex> all_;
  DeviceContext& home_;
  Stream stream_;
  std::unique_ptr<Fence> fence_;  // null: there is but one stream
  std::vector<Stream> others_;
};

/// One batch on its way: split, sent to the shards, answered, and back in the order of the keys.
///
/// What a shard works on lies in its own memory, and it works in the order of a stream on its device: for shards here
/// that is the call's, which the others follow where they have to.
class View::Call {
 public:
  /// To be followed by expect(), begin() and send(). Nothing is enqueued before.
  Call(View& view, const Part& part)
      : view_(view),
        keys_(part.keys),
        values_(part.values),
        columns_(part.columns),
        stream_(part.stream),
        sorted_columns_(columns_.size()),
        parcels_(view.ways_.size()) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Memory goes back in the order of the stream that it is from. Where the call was broken off, others may be at it.
  ~Call() {
    if (std::uncaught_exceptions() == exceptions_) return;
    try {
      leave();
      come_back();
    } catch (const std::exception&) {
      report_ignored_error("breaking off a call on a table of several shards");
    }
  }

  std::size_t shards() const { return parcels_.size(); }
  bool is_of_same_view(const Call& other) const { return &view_ == &other.view_; }
  bool may_be_launched_apart() const { return !view_.home_->is_host() && view_.home_->is_shared(stream_); }
  const Device& device(std::size_t shard) const { return view_.ways_[shard].context->device(); }
  bool is_local(std::size_t shard) const { return view_.ways_[shard].local; }
  std::int64_t count(std::size_t shard) const { return split_->counts()[shard]; }
  Table& table(std::size_t shard) const { return *view_.ways_[shard].shard; }
  Stream stream(std::size_t shard) const { return view_.stream_of(view_.ways_[shard], stream_); }

  /// Answers of one kind: `bytes` for each key.
  struct Answers {
    std::int64_t bytes = 0;
    bool written_directly = false;
    Allocation home;                 // [n, bytes], in the owners' order
    std::vector<Allocation> remote;  // where the shard cannot write to `home`
  };

  /// Before begin(). The call keeps them: others may be writing to them when it is broken off.
  Answers* expect(std::int64_t bytes, bool written_directly) {
    Answers& answers = answers_.emplace_back();
    answers.bytes = bytes;
    answers.written_directly = written_directly;
    answers.remote.resize(shards());
    return &answers;
  }

  /// Before begin(). Of a batch of `least` keys or more, all of one hot key may become one here. reduction: what the
  /// batch does to the values of a key, if it has any.
  void allow_merging(std::int64_t least, const std::optional<Reduction>& reduction = {}) {
    least_to_merge_ = least;
    reduction_ = reduction;
  }

  /// The keys are split. Waits until it is known which shard gets how many.
  void begin() {
    const Splitter& splitter = *view_.home_->executors().splitter;
    std::shared_ptr<Sample> sample;
    if (keys_.count >= least_to_merge_ && shards() > 1)
      sample = splitter.sample(*view_.home_, keys_, view_.all_->seed, view_.samples_, stream_);
    split_ = splitter.split(*view_.home_, keys_, view_.all_->seed, Parts(shards()), view_.mailbox_, sample, stream_);
    const bool combines = split_->merges() && values_.data != nullptr;
    const bool one_each = values_.data != nullptr && !values_.broadcast;
    sorted_keys_ = allocate(keys_.bytes);
    if (combines || one_each) sorted_values_ = allocate(values_.bytes);
    for (std::size_t c = 0; c < columns_.size(); ++c)
      if (!columns_[c].values.broadcast) sorted_columns_[c] = allocate(columns_[c].values.bytes);
    split_->sort_keys(sorted_keys_.get());
    if (combines) {
      split_->combine(values_.data, values_.broadcast, *reduction_, sorted_values_.get(), stream_);
      values_.broadcast = false;
    } else if (one_each) {
      split_->sort(values_.data, values_.bytes, sorted_values_.get(), stream_);
    }
    for (std::size_t c = 0; c < columns_.size(); ++c)
      if (const ValueBatch& values = columns_[c].values; !values.broadcast)
        split_->sort(values.data, values.bytes, sorted_columns_[c].get(), stream_);
    for (Answers& answers : answers_) answers.home = allocate(answers.bytes);
    split_->wait();
    leave();
    for (std::size_t shard = 0; shard < shards(); ++shard) {
      if (!is_local(shard)) continue;
      parcels_[shard] = {part_of(sorted_keys_, keys_.bytes, shard), values_of(shard), {}, {}};
      for (std::size_t c = 0; c < columns_.size(); ++c) parcels_[shard].columns.push_back(column_of(c, shard));
    }
  }

  /// Copies go to the shards that are elsewhere. They wait for nothing that was enqueued after begin().
  void send() {
    for (std::size_t shard = 0; shard < shards(); ++shard) {
      const Way& way = view_.ways_[shard];
      if (way.local) continue;
      Parcel& parcel = parcels_[shard];
      parcel.keys = deliver(shard, part_of(sorted_keys_, keys_.bytes, shard), count(shard) * keys_.bytes);
      if (void* const values = values_of(shard); values != nullptr)
        parcel.values = deliver(shard, values, values_.broadcast ? values_.bytes : count(shard) * values_.bytes);
      for (std::size_t c = 0; c < columns_.size(); ++c) {
        const ValueBatch& values = columns_[c].values;
        parcel.columns.push_back(
            deliver(shard, column_of(c, shard), values.broadcast ? values.bytes : count(shard) * values.bytes));
      }
      way.returning->record(stream(shard));  // what lies here has been read
      for (Answers& answers : answers_)
        if (!way.direct || !answers.written_directly)
          answers.remote[shard] =
              Allocation(*way.context, static_cast<std::size_t>(count(shard) * answers.bytes), stream(shard));
    }
  }

  KeyBatch keys(std::size_t shard) const { return {parcels_[shard].keys, count(shard), keys_.bytes}; }
  ValueBatch values(std::size_t shard) const { return {parcels_[shard].values, values_.bytes, values_.broadcast}; }
  std::vector<ColumnInput> columns(std::size_t shard) const {
    std::vector<ColumnInput> columns = columns_;
    for (std::size_t c = 0; c < columns.size(); ++c) columns[c].values.data = parcels_[shard].columns[c];
    return columns;
  }

  /// Where the shard writes its answers; null where none are expected.
  void* of(const Answers* answers, std::size_t shard) const {
    if (answers == nullptr) return nullptr;
    if (answers->remote[shard].get() != nullptr) return answers->remote[shard].get();
    return part_of(answers->home, answers->bytes, shard);
  }

  /// The stream of the call follows what it has to: the work of all shards, where answers are expected, and else the
  /// copies that were sent. Answers that lie elsewhere are fetched.
  void finish() {
    if (answers_.empty()) return follow();
    come_back();
    bool fetched = false;
    for (const Answers& answers : answers_)
      for (std::size_t shard = 0; shard < answers.remote.size(); ++shard) {
        const Allocation& there = answers.remote[shard];
        if (there.get() == nullptr) continue;
        fetched = true;
        view_.home_->copy_from(part_of(answers.home, answers.bytes, shard), *view_.ways_[shard].context, there.get(),
                               static_cast<std::size_t>(count(shard) * answers.bytes), stream_);
      }
    if (fetched) leave();  // before what was fetched is given back
  }

  const Split& split() const { return *split_; }
  /// The same batch once more, as it is, for what wants to know of each key; to be begun when this one is done.
  Call again() const { return Call(view_, Part{&view_, keys_, {}, {}, nullptr, stream_}); }

 private:
  struct Parcel {
    void* keys = nullptr;
    void* values = nullptr;
    std::vector<void*> columns;      // the values of each column
    std::vector<Allocation> memory;  // on the shard's device
  };

  /// Memory here, for n items.
  Allocation allocate(std::int64_t bytes) const {
    return Allocation(*view_.home_, static_cast<std::size_t>(keys_.count * bytes), stream_);
  }
  void* part_of(const Allocation& items, std::int64_t bytes, std::size_t shard) const {
    return items.as<char>() + split_->offsets()[shard] * bytes;
  }

  /// Those of the shard's keys, or the one that all keys have; null where there are none.
  void* values_of(std::size_t shard) const {
    if (values_.broadcast || values_.data == nullptr) return const_cast<void*>(values_.data);
    return part_of(sorted_values_, values_.bytes, shard);
  }

  void* column_of(std::size_t column, std::size_t shard) const {
    const ValueBatch& values = columns_[column].values;
    if (values.broadcast) return const_cast<void*>(values.data);
    return part_of(sorted_columns_[column], values.bytes, shard);
  }

  /// Where a shard that is elsewhere finds what lies here at `from`.
  void* deliver(std::size_t shard, void* from, std::int64_t bytes) {
    if (bytes == 0) return from;
    const Way& way = view_.ways_[shard];
    Allocation& there =
        parcels_[shard].memory.emplace_back(*way.context, static_cast<std::size_t>(bytes), stream(shard));
    way.context->copy_from(there.get(), *view_.home_, from, static_cast<std::size_t>(bytes), stream(shard));
    return there.get();
  }

  /// The shards' streams follow that of the call.
  void leave() {
    if (view_.leaving_ == nullptr) return;
    view_.leaving_->record(stream_);
    for (std::size_t shard = 0; shard < shards(); ++shard)
      if (const Way& way = view_.ways_[shard]; !way.local)
        view_.leaving_->wait_on(way.context->device(), stream(shard));
  }
  /// The reverse.
  void come_back() {
    for (std::size_t shard = 0; shard < shards(); ++shard)
      if (const Way& way = view_.ways_[shard]; !way.local) way.returning->record(stream(shard));
    follow();
  }
  /// The stream of the call follows what the shards' streams had to do when that was recorded.
  void follow() {
    for (const Way& way : view_.ways_)
      if (!way.local) way.returning->wait_on(view_.home_->device(), stream_);
  }

  const int exceptions_ = std::uncaught_exceptions();
  View& view_;
  KeyBatch keys_;
  ValueBatch values_;
  std::vector<ColumnInput> columns_;
  Stream stream_;
  std::int64_t least_to_merge_ = std::numeric_limits<std::int64_t>::max();
  std::optional<Reduction> reduction_;
  Allocation sorted_keys_;                  // [n, bytes], in the owners' order
  Allocation sorted_values_;                // likewise, if each key has one
  std::vector<Allocation> sorted_columns_;  // likewise
  std::unique_ptr<Split> split_;
  std::vector<Parcel> parcels_;
  std::deque<Answers> answers_;
};

/// The keys of several calls that belong to one shard, one call's behind the other's, in the shard's memory.
class View::Gathered {
 public:
  Gathered(std::deque<Call>& calls, std::size_t shard) : context_(calls.front().table(shard).context()) {
    std::int64_t count = 0;
    for (Call& call : calls) {
      firsts_.push_back(count);
      count += call.count(shard);
    }
    const KeyBatch first = calls.front().keys(shard);
    memory_ = Allocation(context_, static_cast<std::size_t>(count * first.bytes), stream());
    all_ = {memory_.get(), count, first.bytes};
    fence_ = context_.make_fence();
    fence_->record(stream());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const KeyBatch keys = calls[i].keys(shard);
      if (keys.count == 0) continue;
      const Stream there = calls[i].stream(shard);
      fence_->wait(there);
      readers_.push_back(there);
      context_.copy(const_cast<void*>(of(i, keys.count).data), keys.data,
                    static_cast<std::size_t>(keys.count * keys.bytes), there);
    }
    follow_readers();
  }
  ~Gathered() {
    try {
      follow_readers();  // the memory goes back in the order of its stream
    } catch (const CudaError&) {
      report_ignored_error("ending a call on a table of several shards");
    }
  }
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

  Stream stream() const { return context_.own_stream(); }
  const KeyBatch& all() const { return all_; }
  /// Those of one call, which are `count`.
  KeyBatch of(std::size_t call, std::int64_t count) const {
    return {static_cast<const char*>(all_.data) + firsts_[call] * all_.bytes, count, all_.bytes};
  }

 private:
  void follow_readers() {
    for (const Stream reader : readers_) {
      fence_->record(reader);
      fence_->wait(stream());
    }
  }

  DeviceContext& context_;
  std::vector<std::int64_t> firsts_;  // [calls]
  Allocation memory_;
  KeyBatch all_{};
  std::unique_ptr<Fence> fence_;
  std::vector<Stream> readers_;  // of the calls
};

View::View(std::shared_ptr<Shards> shards, std::shared_ptr<DeviceContext> home)
    : all_(std::move(shards)), home_(std::move(home)), order_(*home_), constants_(*home_) {
  bool first_here = true;
  for (std::size_t shard = 0; shard < all_->tables.size(); ++shard) {
    DeviceContext& context = *all_->contexts[shard];
    const bool here = context.device() == home_->device();
    Way way{all_->tables[shard].get(), &context, here, false, nullptr};
    if (!environment().peer_access) way.local = here && std::exchange(first_here, false);
    if (!way.local) {
      way.direct = environment().peer_access && context.reaches(*home_);
      way.returning = context.make_fence();
      if (leaving_ == nullptr) leaving_ = home_->make_fence();
    }
    ways_.push_back(std::move(way));
  }
}

View::~View() {
  try {
    constants_.set_stream(order_.stream_after_all());
  } catch (const CudaError&) {
    // At exit the driver may be gone before the last table.
  }
}

template <class Body>
void View::in_order(Stream stream, Body body) {
  for (std::size_t number = 0; number < ways_.size(); ++number) {
    const Way& way = ways_[number];
    const Stream there = stream_of(way, stream);
    if (!way.local) {
      leaving_->record(stream);
      leaving_->wait_on(way.context->device(), there);
    }
    body(way, there, number);
    if (!way.local) {
      way.returning->record(there);
      way.returning->wait_on(home_->device(), stream);
    }
  }
}

std::int64_t View::size(Stream stream) {
  Turn turn(*this, stream);
  turn.lock_all();
  std::int64_t total = 0;
  in_order(stream, [&](const Way& way, Stream there, std::size_t) { total += way.shard->size(there); });
  return total;
}

/// Calls run(calls, parts), with a call for each part whose keys are split, in one turn.
template <class Run>
void View::one_call_each(const std::vector<Part>& parts, Run run) {
  std::vector<Part> some;
  for (const Part& part : parts)
    if (part.keys.count != 0) some.push_back(part);
  if (some.empty()) return;
  // In one order, or two threads with the same parts could wait for each other.
  std::vector<std::size_t> order(some.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return some[i].table; });
  std::deque<Turn> turns;
  const View* last = nullptr;
  for (const std::size_t i : order) {
    auto& view = static_cast<View&>(*some[i].table);
    if (std::exchange(last, &view) == &view)
      turns.back().join(some[i].stream);
    else
      turns.emplace_back(view, some[i].stream);
  }
  turns.front().lock_all();
  std::deque<Call> calls;
  for (const Part& part : some) calls.emplace_back(static_cast<View&>(*part.table), part);
  run(calls, some);
}

/// Is each of several calls to be launched by a thread of its own, so that no GPU waits for launches on another one?
bool View::are_launched_apart(const std::deque<Call>& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (calls[i].is_of_same_view(calls[j])) return false;  // what a view has for a call is for one at a time
  return calls.size() > 1 && std::ranges::all_of(calls, &Call::may_be_launched_apart);
}

/// Calls body(number of the call, call), on each home's own thread.
template <class Body>
void View::for_each_call(std::deque<Call>& calls, Body body) {
  auto run = [&](int i) { body(static_cast<std::size_t>(i), calls[static_cast<std::size_t>(i)]); };
  const int count = static_cast<int>(calls.size());
  if (are_launched_apart(calls)) return launch_side_by_side(count, run);
  for (int i = 0; i < count; ++i) run(i);
}

/// Calls body(number of the call, call, shard), on each shard's device's own thread: for the shards at home of all
/// calls first, as their keys are there already, and then for the others, whose keys are being copied meanwhile.
template <class Body>
void View::for_each_shard(std::deque<Call>& calls, Body body) {
  const auto run = [&](auto is_mine) {
    for (const bool local : {true, false})
      for (std::size_t i = 0; i < calls.size(); ++i)
        for (std::size_t shard = 0; shard < calls[i].shards(); ++shard)
          if (calls[i].is_local(shard) == local && is_mine(calls[i].device(shard))) body(i, calls[i], shard);
  };
  if (!are_launched_apart(calls)) return run([](const Device&) { return true; });
  std::vector<Device> devices;
  for (std::size_t shard = 0; shard < calls.front().shards(); ++shard)
    if (const Device& device = calls.front().device(shard); std::ranges::find(devices, device) == devices.end())
      devices.push_back(device);
  launch_side_by_side(static_cast<int>(devices.size()), [&](int number) {
    run([&](const Device& device) { return device == devices[static_cast<std::size_t>(number)]; });
  });
}

void View::check_lookup(const Part& part) const {
  if (part.out.values != nullptr) check_single_value(all_->options);
  if (!part.outputs.empty()) check_outputs(all_->options, part.outputs);
}

std::int64_t View::find_parts(const std::vector<Part>& parts) {
  for (const Part& part : parts) check_lookup(part);
  std::int64_t missing = 0;
  one_call_each(parts,
                [&](std::deque<Call>& calls, const std::vector<Part>& some) { missing += look_up(calls, some); });
  return missing;
}

/// The lookups of calls in their turn, each of one part.
std::int64_t View::look_up(std::deque<Call>& calls, const std::vector<Part>& parts) {
  struct Wanted {
    Call::Answers* values = nullptr;
    Call::Answers* found = nullptr;
    Call::Answers* rows = nullptr;
    std::vector<Call::Answers*> columns;
    std::atomic<std::int64_t> missing{0};
  };
  std::vector<Wanted> wanted(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const FindOutput& out = parts[i].out;
    if (out.values != nullptr) wanted[i].values = calls[i].expect(all_->options.value_bytes(), true);
    bool needs_found = out.found != nullptr || (out.values != nullptr && out.fallback != nullptr);
    for (const ColumnOutput& column : parts[i].outputs) {
      wanted[i].columns.push_back(calls[i].expect(all_->options.columns[column.column].bytes(), true));
      needs_found = needs_found || column.fallback != nullptr;
    }
    if (needs_found) wanted[i].found = calls[i].expect(sizeof(bool), true);
    if (out.rows != nullptr) wanted[i].rows = calls[i].expect(sizeof(std::int64_t), true);
  }
  const auto ask = [&](std::size_t i, Call& call, std::size_t shard) {
    if (call.count(shard) == 0) return;
    FindOutput part{};
    part.values = call.of(wanted[i].values, shard);
    part.found = static_cast<bool*>(call.of(wanted[i].found, shard));
    part.rows = static_cast<std::int64_t*>(call.of(wanted[i].rows, shard));
    part.count_missing = parts[i].out.count_missing;
    if (parts[i].outputs.empty()) {
      wanted[i].missing += call.table(shard).find(call.keys(shard), part, call.stream(shard));
      return;
    }
    std::vector<ColumnOutput> columns;
    for (std::size_t c = 0; c < parts[i].outputs.size(); ++c)
      columns.push_back({parts[i].outputs[c].column, call.of(wanted[i].columns[c], shard), nullptr, false});
    wanted[i].missing += call.table(shard).find_columns(call.keys(shard), part, columns, call.stream(shard));
  };
  const auto is_first = [&](std::size_t i, const Call& call, std::size_t shard) {
    return call.is_local(shard) && !parts[i].out.count_missing;  // which waits
  };
  for_each_call(calls, [&](std::size_t i, Call& call) {
    call.allow_merging(kLeastToMergeLookups);
    call.begin();
    for (std::size_t shard = 0; shard < call.shards(); ++shard)
      if (is_first(i, call, shard)) ask(i, call, shard);
    call.send();
  });
  for_each_shard(calls, [&](std::size_t i, Call& call, std::size_t shard) {
    if (!is_first(i, call, shard)) ask(i, call, shard);
  });
  for_each_call(calls, [&](std::size_t i, Call& call) {
    const FindOutput& out = parts[i].out;
    const auto& [values, found, rows, columns, missing] = wanted[i];
    call.finish();
    const Split& split = call.split();
    if (out.values != nullptr)
      split.gather(values->home.get(), values->bytes, out.values,
                   {found != nullptr ? found->home.as<bool>() : nullptr, out.fallback, out.fallback_per_key, out.found},
                   parts[i].stream);
    else if (out.found != nullptr)
      split.gather(found->home.get(), sizeof(bool), out.found, {}, parts[i].stream);
    if (out.rows != nullptr) split.gather_rows(rows->home.as<std::int64_t>(), out.rows, parts[i].stream);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const ColumnOutput& column = parts[i].outputs[c];
      split.gather(
          columns[c]->home.get(), columns[c]->bytes, column.values,
          {found != nullptr ? found->home.as<bool>() : nullptr, column.fallback, column.fallback_per_key, nullptr},
          parts[i].stream);
    }
  });
  std::int64_t all_missing = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t missing = wanted[i].missing;
    all_missing += missing != 0 && calls[i].split().merges() ? count_missing(calls[i]) : missing;
  }
  return all_missing;
}

/// The keys of a batch that are absent, where those that were merged have been looked up as one. Waits.
std::int64_t View::count_missing(const Call& merged) {
  Call call = merged.again();
  call.begin();
  call.send();
  FindOutput nothing{};
  nothing.count_missing = true;
  std::int64_t missing = 0;
  for (std::size_t shard = 0; shard < call.shards(); ++shard)
    if (call.count(shard) != 0) missing += call.table(shard).find(call.keys(shard), nothing, call.stream(shard));
  call.finish();
  return missing;
}

/// Is it known that the keys of all calls fit, as if all were new? Where a shard may have had that many more, it is
/// asked how many it has: otherwise the keys would have to be gathered, and taken one batch after the other.
template <class Calls>
bool View::has_room_for(const Calls& calls) const {
  for (std::size_t shard = 0; shard < ways_.size(); ++shard) {
    std::int64_t keys = 0;
    for (const Call& call : calls) keys += call.count(shard);
    Table& table = *all_->tables[shard];
    if (table.has_room(keys)) continue;
    table.size(all_->contexts[shard]->own_stream());
    if (!table.has_room(keys)) return false;
  }
  return true;
}

/// change(share) is called for each part and shard. reduction: where the values of hot keys may be combined beforehand.
template <class Change>
void View::change_parts(const std::vector<Part>& parts, bool needs_room, Change change,
                        const std::optional<Reduction>& reduction) {
  one_call_each(parts, [&](std::deque<Call>& calls, const std::vector<Part>& some) {
    this->change(calls, some, needs_room, change, reduction);
  });
}

/// The changes of calls in their turn, each of one part.
template <class Change>
void View::change(std::deque<Call>& calls, const std::vector<Part>& parts, bool needs_room, Change change,
                  const std::optional<Reduction>& reduction) {
  std::vector<Call::Answers*> masks(parts.size());
  std::vector<Call::Answers*> rows(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].mask != nullptr) masks[i] = calls[i].expect(sizeof(bool), false);
    if (parts[i].rows != nullptr) rows[i] = calls[i].expect(sizeof(std::int64_t), false);
  }
  for_each_call(calls, [&](std::size_t, Call& call) {
    if (reduction) call.allow_merging(kLeastToMerge, reduction);
    call.begin();
    call.send();  // before anything changes: there may be no memory for it
  });
  const bool fits = !needs_room || has_room_for(calls);
  const bool at_once = calls.size() == 1 || (fits && !all_->options.deterministic);
  std::deque<Gathered> gathered;  // of each shard, where room is to be made for several batches
  const auto make_change = [&](std::size_t i, Call& call, std::size_t shard) {
    KeyBatch keys = call.keys(shard);
    if (!gathered.empty()) keys = gathered[shard].of(i, keys.count);
    change(Share{call.table(shard), keys, call.values(shard), call.columns(shard),
                 static_cast<bool*>(call.of(masks[i], shard)), static_cast<std::int64_t*>(call.of(rows[i], shard)),
                 call.stream(shard)});
  };
  const auto exceptions = std::uncaught_exceptions();
  const auto forget = [&](View* view) {
    if (std::uncaught_exceptions() == exceptions) return;
    for (const auto& shard : view->all_->tables) {  // some expect what will not come
      try {
        shard->forget_room();
      } catch (const std::logic_error&) {
        // This thread is in a call on the shard, for which no room has been made.
      }
    }
  };
  const std::unique_ptr<View, decltype(forget)> guard(this, forget);
  if (!fits && at_once) {
    for_each_shard(calls, [](std::size_t, Call& call, std::size_t shard) {
      call.table(shard).make_room(call.keys(shard), true, call.stream(shard));
    });
  } else if (!fits) {  // for all batches before the first one is in
    for (std::size_t shard = 0; shard < ways_.size(); ++shard) {
      const Gathered& keys = gathered.emplace_back(calls, shard);
      calls.front().table(shard).make_room(keys.all(), true, keys.stream());
    }
  }
  if (at_once) {
    for_each_shard(calls, make_change);
  } else {  // the batches in their order
    for (std::size_t i = 0; i < calls.size(); ++i)
      for (std::size_t shard = 0; shard < calls[i].shards(); ++shard) make_change(i, calls[i], shard);
  }
  for_each_call(calls, [&](std::size_t i, Call& call) {
    call.finish();
    if (parts[i].mask != nullptr) call.split().gather_mask(masks[i]->home.as<bool>(), parts[i].mask, parts[i].stream);
    if (parts[i].rows != nullptr)
      call.split().gather_rows(rows[i]->home.as<std::int64_t>(), parts[i].rows, parts[i].stream);
  });
}

void View::insert_parts(const std::vector<Part>& parts, InsertMode mode) {
  check_single_value(all_->options);
  change_parts(parts, true, [&](const Share& share) {
    share.shard.insert(share.keys, share.values, mode, share.mask, share.stream);
  });
}

void View::find_or_insert_parts(const std::vector<Part>& parts) {
  check_find_or_insert(all_->options);
  for (const Part& part : parts)
    if (part.values.data != nullptr) check_single_value(all_->options);
  change_parts(parts, true, [&](const Share& share) {
    share.shard.find_or_insert(share.keys, share.values, share.rows, share.mask, share.stream);
  });
}

void View::change_columns_parts(const std::vector<Part>& parts) {
  for (const Part& part : parts) check_inputs(all_->options, part.columns);
  change_parts(parts, true, [&](const Share& share) {
    share.shard.change_columns(share.keys, share.columns, share.rows, share.mask, share.stream);
  });
}

void View::apply_parts(const std::vector<Part>& parts, ApplyOp op) {
  // Of no keys, to check the operation before anything is done.
  all_->tables.front()->apply({nullptr, 0, all_->options.key_bytes()}, {}, op, nullptr, nullptr);
  std::optional<Reduction> reduction;
  if (!all_->options.has_rows() && !all_->options.deterministic) reduction = {op, *all_->options.value_dtype};
  if (reduction && !reduction->can_merge()) reduction.reset();
  change_parts(
      parts, true,
      [&](const Share& share) { share.shard.apply(share.keys, share.values, op, share.mask, share.stream); },
      reduction);
}

void View::erase_parts(const std::vector<Part>& parts) {
  change_parts(parts, false, [&](const Share& share) { share.shard.erase(share.keys, share.mask, share.stream); });
}

std::int64_t View::find(const KeyBatch& keys, const FindOutput& out, Stream stream) {
  const std::int64_t missing = find_parts({{this, keys, {}, out, nullptr, stream}});
  if (out.step.taken != nullptr) home_->advance(out.step, stream);
  return missing;
}

void View::insert(const KeyBatch& keys, const ValueBatch& values, InsertMode mode, bool* inserted, Stream stream,
                  const ChainStep& step) {
  insert_parts({{this, keys, values, {}, inserted, stream}}, mode);
  if (step.taken != nullptr) home_->advance(step, stream);
}

void View::find_or_insert(const KeyBatch& keys, const ValueBatch& values, std::int64_t* rows, bool* inserted,
                          Stream stream) {
  find_or_insert_parts({{this, keys, values, {}, inserted, stream, rows}});
}

void View::apply(const KeyBatch& keys, const ValueBatch& values, ApplyOp op, bool* inserted, Stream stream) {
  apply_parts({{this, keys, values, {}, inserted, stream}}, op);
}

std::int64_t View::find_columns(const KeyBatch& keys, const FindOutput& out, const std::vector<ColumnOutput>& columns,
                                Stream stream) {
  check_outputs(all_->options, columns);
  const std::int64_t missing = find_parts({{this, keys, {}, out, nullptr, stream, nullptr, columns}});
  if (out.step.taken != nullptr) home_->advance(out.step, stream);
  return missing;
}

void View::change_columns(const KeyBatch& keys, const std::vector<ColumnInput>& columns, std::int64_t* rows,
                          bool* inserted, Stream stream) {
  change_columns_parts({{this, keys, {}, {}, inserted, stream, rows, {}, columns}});
}

void View::erase(const KeyBatch& keys, bool* erased, Stream stream) {
  erase_parts({{this, keys, {}, {}, erased, stream}});
}

std::int64_t View::find_and_erase(const KeyBatch& keys, const FindOutput& out, const std::vector<ColumnOutput>& columns,
                                  Stream stream) {
  const Part part{this, keys, {}, out, nullptr, stream, nullptr, columns};
  check_lookup(part);
  std::int64_t missing = 0;
  one_call_each({part}, [&](std::deque<Call>& lookup, const std::vector<Part>& parts) {
    missing = look_up(lookup, parts);
    if (missing != 0) return;
    std::deque<Call> erasure;
    erasure.emplace_back(*this, part);
    change(erasure, parts, false, [&](const Share& share) { share.shard.erase(share.keys, nullptr, share.stream); });
  });
  return missing;
}

void View::insert_and_find(const KeyBatch& keys, const ValueBatch& values, const std::vector<ColumnInput>& inputs,
                           bool* inserted, const FindOutput& out, const std::vector<ColumnOutput>& columns,
                           Stream stream) {
  const bool has_columns = !all_->options.columns.empty();
  const bool is_initial = !has_columns && values.data == nullptr;
  if (has_columns) check_inputs(all_->options, inputs);
  const Part lookup{this, keys, {}, out, nullptr, stream, nullptr, columns};
  check_lookup(lookup);
  if (keys.count == 0) return;
  if (is_initial) check_find_or_insert(all_->options);
  const auto room = [&](std::size_t bytes) {
    return is_initial ? Allocation(*home_, static_cast<std::size_t>(keys.count) * bytes, stream) : Allocation();
  };
  const Allocation rows = room(sizeof(std::int64_t));
  const Allocation mask = room(sizeof(bool));
  if (inserted == nullptr) inserted = mask.as<bool>();
  const Part insertion{this, keys, values, {}, inserted, stream, rows.as<std::int64_t>(), {}, inputs};
  one_call_each({insertion}, [&](std::deque<Call>& calls, const std::vector<Part>& parts) {
    change(calls, parts, true, [&](const Share& share) {
      if (has_columns)
        share.shard.change_columns(share.keys, share.columns, nullptr, share.mask, share.stream);
      else if (is_initial)
        share.shard.find_or_insert(share.keys, {}, share.rows, share.mask, share.stream);
      else
        share.shard.insert(share.keys, share.values, InsertMode::kKeep, share.mask, share.stream);
    });
    std::deque<Call> afterwards;
    afterwards.emplace_back(*this, lookup);
    look_up(afterwards, {lookup});
  });
}

void View::make_room(const KeyBatch& keys, bool, Stream stream) {
  one_call_each({{this, keys, {}, {}, nullptr, stream}}, [&](std::deque<Call>& calls, const std::vector<Part>&) {
    Call& call = calls.front();
    call.begin();
    call.send();
    for (std::size_t shard = 0; shard < call.shards(); ++shard)
      call.table(shard).make_room(call.keys(shard), false, call.stream(shard));
    call.finish();
  });
}

void View::clear(Stream stream) {
  Turn turn(*this, stream);
  turn.lock_all();
  in_order(stream, [&](const Way& way, Stream there, std::size_t) { way.shard->clear(there); });
}

void View::reserve(std::int64_t keys, Stream stream) {
  if (keys < 0) throw ShapeError("reserve takes a number of keys, not " + std::to_string(keys));
  Turn turn(*this, stream);
  turn.lock_all();
  const std::int64_t most = most_of(keys, ways_.size());
  in_order(stream, [&](const Way& way, Stream there, std::size_t) {
    try {
      way.shard->reserve(most, there);
    } catch (const TableFullError&) {  // it may hold no more than its share, and mostly gets no more
      way.shard->reserve(divide_up(keys, ways_.size()), there);
    }
  });
}

void View::rehash(std::int64_t slots, bool compact_rows, Stream stream) {
  if (slots < 0) throw ShapeError("rehash takes a number of slots, not " + std::to_string(slots));
  Turn turn(*this, stream);
  turn.lock_all();
  const std::int64_t each = divide_up(slots, ways_.size());
  in_order(stream, [&](const Way& way, Stream there, std::size_t) { way.shard->rehash(each, compact_rows, there); });
}

std::int64_t View::export_items(void* keys, void* values, std::int64_t* rows, std::int64_t room, Stream stream) {
  if (values != nullptr) check_single_value(all_->options);
  return export_parts(keys, values, {}, rows, room, stream);
}

void View::read_rows(const std::int64_t*, std::int64_t, const std::vector<ColumnOutput>&, Stream) {
  throw ShapeError("rows of a table of several shards were to be read by their numbers: read those of its shards");
}

void View::pool_rows(const std::int64_t*, std::int64_t, const Bags&, const ColumnOutput&, Stream) {
  throw ShapeError("rows of a table of several shards were to be summed up: sum up those of its shards");
}

void View::train(const std::int64_t*, std::int64_t, const Gradients&, const std::vector<std::size_t>&,
                 const OptimizerStep&, Stream) {
  throw ShapeError("rows of a table of several shards were to be trained: train those of its shards");
}

std::int64_t View::export_columns(void* keys, const std::vector<ColumnOutput>& columns, std::int64_t* rows,
                                  std::int64_t room, Stream stream) {
  check_outputs(all_->options, columns);
  return export_parts(keys, nullptr, columns, rows, room, stream);
}

std::int64_t View::export_parts(void* keys, void* values, const std::vector<ColumnOutput>& columns, std::int64_t* rows,
                                std::int64_t room, Stream stream) {
  Turn turn(*this, stream);
  turn.lock_all();
  const auto key_bytes = static_cast<std::int64_t>(all_->options.key_bytes());
  const std::int64_t value_bytes = all_->options.value_bytes();
  std::vector<std::int64_t> sizes(ways_.size());
  std::int64_t total = 0;
  in_order(stream,
           [&](const Way& way, Stream there, std::size_t shard) { total += sizes[shard] = way.shard->size(there); });
  if (total > room) return total;

  struct Fetched {
    void* to;
    Allocation from;
  };
  std::int64_t first = 0;
  const auto part_of = [&](void* array, std::int64_t bytes) -> void* {
    return array == nullptr ? nullptr : static_cast<char*>(array) + first * bytes;
  };
  in_order(stream, [&](const Way& way, Stream there, std::size_t shard) {
    const std::int64_t size = sizes[shard];
    void* const part_keys = part_of(keys, key_bytes);
    void* const part_values = part_of(values, value_bytes);
    auto* const part_rows = static_cast<std::int64_t*>(part_of(rows, sizeof(std::int64_t)));
    std::vector<ColumnOutput> part_columns = columns;
    for (ColumnOutput& column : part_columns)
      column.values = part_of(column.values, all_->options.columns[column.column].bytes());
    first += size;
    if (size == 0) return;
    std::int64_t exported = size;
    if (way.local) {
      exported = columns.empty() ? way.shard->export_items(part_keys, part_values, part_rows, size, there)
                                 : way.shard->export_columns(part_keys, part_columns, part_rows, size, there);
    } else {
      // All in one turn at the shard, whose items others may change between two.
      std::deque<Fetched> fetched;
      const auto copy_of = [&](void* to, std::int64_t bytes) -> void* {
        if (to == nullptr) return nullptr;
        const auto all = static_cast<std::size_t>(size * bytes);
        return fetched.emplace_back(to, Allocation(*way.context, all, there)).from.get();
      };
      void* const far_keys = copy_of(part_keys, key_bytes);
      void* const far_values = copy_of(part_values, value_bytes);
      auto* const far_rows = static_cast<std::int64_t*>(copy_of(part_rows, sizeof(std::int64_t)));
      for (ColumnOutput& column : part_columns)
        column.values = copy_of(column.values, all_->options.columns[column.column].bytes());
      exported = columns.empty() ? way.shard->export_items(far_keys, far_values, far_rows, size, there)
                                 : way.shard->export_columns(far_keys, part_columns, far_rows, size, there);
      way.context->synchronize(there);
      for (const Fetched& array : fetched)
        home_->copy_from(array.to, *way.context, array.from.get(), array.from.bytes(), stream);
      home_->synchronize(stream);
    }
    if (exported != size)
      throw ShapeError("a shard has changed its size while all items were read: another thread works on it; ask again");
    if (part_rows != nullptr && shard != 0)
      home_->executors().splitter->number_rows(*home_, part_rows, size, shard, stream);
  });
  return total;
}

std::shared_ptr<Table> View::clone(std::shared_ptr<DeviceContext>, Stream stream) {
  Turn turn(*this, stream);
  turn.lock_all();
  auto twin = std::make_shared<Shards>();
  twin->options = all_->options;
  twin->seed = all_->seed;
  twin->contexts = all_->contexts;
  in_order(stream, [&](const Way& way, Stream there, std::size_t shard) {
    twin->tables.push_back(way.shard->clone(all_->contexts[shard], there));
  });
  return std::make_shared<View>(std::move(twin), home_);
}

std::shared_ptr<ShardedTable> View::at(const Device& device) {
  for (const auto& context : all_->contexts)
    if (context->device() == device) return std::make_shared<View>(all_, context);
  throw ShapeError("arrays on " + device.to_string() + " were given to a table that has no shard there");
}

}  // namespace

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
  std::shared_ptr<DeviceContext> home = shards->contexts.front();
  return std::make_shared<View>(std::move(shards), std::move(home));
}

}  // namespace gpuhash
