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

  using Table::change;
  using Table::erase;
  using Table::look_up;
  std::int64_t look_up(Span<const Lookup> requests) override;
  void change(Span<const Change> requests) override;
  std::int64_t erase(Span<const Erasure> requests) override;
  std::int64_t export_items(const Export& request) override;
  void make_room(const KeyBatch& keys, bool expect_insertion, Stream stream) override;
  void forget_room() override {
    for (const auto& shard : all_->tables) shard->forget_room();
  }
  bool has_room(std::int64_t keys) const override {
    const std::lock_guard lock(all_->mutex);
    return std::ranges::all_of(all_->tables, [&](const auto& shard) { return shard->has_room(keys); });
  }
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
  void read_rows(const std::int64_t* rows, std::int64_t count, Span<const Read> reads, Stream stream) override;
  void pool_rows(const std::int64_t* rows, std::int64_t count, const Bags& bags, const Read& out,
                 Stream stream) override;
  void train(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
             const std::vector<std::size_t>& columns, const OptimizerStep& step, Stream stream) override;
  RowStorage row_storage(Stream) override {
    throw ShapeError(
        "a table of several shards has no single row storage: its rows lie with its shards, "
        "table.shards[i].row_storage");
  }
  bool overlaps_rows(const MemoryRange& memory) const override {
    return std::ranges::any_of(all_->tables, [&](const auto& shard) { return shard->overlaps_rows(memory); });
  }
  bool is_in_call_here() const noexcept override { return order_.is_held_here(); }
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

  View& view_of(ShardedTable* given) { return given == nullptr ? *this : static_cast<View&>(*given); }
  template <class Request, class Run>
  void one_call_each(Span<const Request> requests, Run run);
  template <class Request>
  void advance_steps(Span<const Request> requests);
  static bool are_launched_apart(const std::deque<Call>& calls);
  template <class Body>
  static void for_each_call(std::deque<Call>& calls, Body body);
  template <class Body>
  static void for_each_shard(std::deque<Call>& calls, Body body);
  static std::int64_t count_missing(const Call& merged);
  template <class Calls>
  bool has_room_for(const Calls& calls) const;
  std::int64_t look_up_in(std::deque<Call>& calls, Span<const Lookup> requests);
  std::optional<Reduction> reduction_of(const Change& request) const;
  /// What a shard answers of each key of a change, for the caller.
  struct Told {
    bool* mask;
    std::int64_t* rows;
  };
  template <class ChangeShard>
  void change_in(std::deque<Call>& calls, const std::vector<Told>& told, bool needs_room, ChangeShard change_shard);

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
      : here_(order_of(view), stream), all_(view.all_->mutex, std::defer_lock), home_(*view.home_), stream_(stream) {
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
  /// A call waits for those of the shards. It must not wait within one of them: another thread's may wait for that one.
  static CallOrder& order_of(View& view) {
    if (locks_held() != 0)
      for (const auto& shard : view.all_->tables)
        if (shard->is_in_call_here()) throw_in_call();
    return view.order_;
  }
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
  /// To be followed by expect(), begin() and send(). Nothing is enqueued before. The columns written are read in
  /// begin().
  Call(View& view, const KeyBatch& keys, Span<const Write> writes, Stream stream)
      : view_(view),
        keys_(keys),
        writes_(writes.begin(), writes.end()),
        stream_(stream),
        sorted_columns_(writes.size()),
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
    for (Answers& answers : answers_) answers.home = allocate(answers.bytes);
    split_->wait();
    leave();
    for (std::size_t shard = 0; shard < shards(); ++shard) {
      if (!is_local(shard)) continue;
      parcels_[shard].keys = part_of(sorted_keys_, keys_.bytes, shard);
      for (std::size_t c = 0; c < writes_.size(); ++c) parcels_[shard].columns.push_back(column_of(c, shard));
    }
  }

  /// Copies go to the shards that are elsewhere. They wait for nothing that was enqueued after begin().
  void send() {
    for (std::size_t shard = 0; shard < shards(); ++shard) {
      const Way& way = view_.ways_[shard];
      if (way.local) continue;
      Parcel& parcel = parcels_[shard];
      parcel.keys = deliver(shard, part_of(sorted_keys_, keys_.bytes, shard), count(shard) * keys_.bytes);
      for (std::size_t c = 0; c < writes_.size(); ++c) {
        const std::int64_t values = writes_[c].broadcast ? 1 : count(shard);
        parcel.columns.push_back(deliver(shard, column_of(c, shard), values * bytes(c)));
      }
      way.returning->record(stream(shard));  // what lies here has been read
      for (Answers& answers : answers_)
        if (!way.direct || !answers.written_directly)
          answers.remote[shard] =
              Allocation(*way.context, static_cast<std::size_t>(count(shard) * answers.bytes), stream(shard));
    }
  }

  KeyBatch keys(std::size_t shard) const { return {parcels_[shard].keys, count(shard), keys_.bytes}; }
  std::vector<Write> writes(std::size_t shard) const {
    std::vector<Write> writes = writes_;
    for (std::size_t c = 0; c < writes.size(); ++c) writes[c].values = parcels_[shard].columns[c];
    return writes;
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

  View& view() const { return view_; }
  Stream stream() const { return stream_; }
  const Split& split() const { return *split_; }
  /// The same batch once more, as it is, for what wants to know of each key; to be begun when this one is done.
  Call again() const { return Call(view_, keys_, {}, stream_); }

 private:
  struct Parcel {
    void* keys = nullptr;
    std::vector<void*> columns;      // the values of each column that is written
    std::vector<Allocation> memory;  // on the shard's device
  };

  /// Per value of the column that is written as the c-th.
  std::int64_t bytes(std::size_t c) const { return view_.all_->options.column_bytes(writes_[c].column); }
  /// Memory here, for n items.
  Allocation allocate(std::int64_t bytes) const {
    return Allocation(*view_.home_, static_cast<std::size_t>(keys_.count * bytes), stream_);
  }
  void* part_of(const Allocation& items, std::int64_t bytes, std::size_t shard) const {
    return items.as<char>() + split_->offsets()[shard] * bytes;
  }

  /// Copies the one value of all keys where it is a shard's rows, which are written while others read it.
  void keep_from_rows(std::size_t c) {
    Write& write = writes_[c];
    if (!view_.overlaps_rows({write.values, bytes(c)})) return;
    const auto length = static_cast<std::size_t>(bytes(c));
    Allocation& copy = sorted_columns_[c] = Allocation(*view_.home_, length, stream_);
    view_.home_->copy(copy.get(), write.values, length, stream_);
    write.values = copy.get();
  }

  /// The values of the shard's keys, or the one that all keys have.
  void* column_of(std::size_t c, std::size_t shard) const {
    if (writes_[c].broadcast) return const_cast<void*>(writes_[c].values);
    return part_of(sorted_columns_[c], bytes(c), shard);
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
  std::vector<Write> writes_;
  Stream stream_;
  std::int64_t least_to_merge_ = std::numeric_limits<std::int64_t>::max();
  std::optional<Reduction> reduction_;
  Allocation sorted_keys_;                  // [n, bytes], in the owners' order
  std::vector<Allocation> sorted_columns_;  // likewise, where each key has a value
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

/// The columns that a request writes.
Span<const Write> writes_of(const Change& request) { return request.writes; }
template <class Request>
Span<const Write> writes_of(const Request&) {
  return {};
}

/// Calls run(calls, requests), with a call for each request that has keys, which are split, in one turn.
template <class Request, class Run>
void View::one_call_each(Span<const Request> requests, Run run) {
  std::vector<Request> some;
  for (const Request& request : requests)
    if (request.keys.count != 0) some.push_back(request);
  if (some.empty()) return;
  // In one order, or two threads with the same requests could wait for each other.
  std::vector<std::size_t> order(some.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return &view_of(some[i].view); });
  std::deque<Turn> turns;
  const View* last = nullptr;
  for (const std::size_t i : order) {
    View& view = view_of(some[i].view);
    if (std::exchange(last, &view) == &view)
      turns.back().join(some[i].stream);
    else
      turns.emplace_back(view, some[i].stream);
  }
  turns.front().lock_all();
  std::deque<Call> calls;
  for (const Request& request : some)
    calls.emplace_back(view_of(request.view), request.keys, writes_of(request), request.stream);
  run(calls, Span<const Request>(some));
}

template <class Request>
void View::advance_steps(Span<const Request> requests) {
  for (const Request& request : requests)
    if (request.step != nullptr && request.step->taken != nullptr)
      view_of(request.view).home_->advance(*request.step, request.stream);
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

std::int64_t View::look_up(Span<const Lookup> requests) {
  for (const Lookup& request : requests) check_reads(all_->options, request.reads);
  std::int64_t missing = 0;
  one_call_each(requests, [&](std::deque<Call>& calls, Span<const Lookup> some) { missing = look_up_in(calls, some); });
  advance_steps(requests);
  return missing;
}

/// The lookups of calls in their turn, each of one request.
std::int64_t View::look_up_in(std::deque<Call>& calls, Span<const Lookup> requests) {
  struct Wanted {
    Call::Answers* found = nullptr;
    Call::Answers* rows = nullptr;
    std::vector<Call::Answers*> columns;
    std::atomic<std::int64_t> missing{0};
  };
  std::vector<Wanted> wanted(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    bool needs_found = requests[i].found != nullptr;
    for (const Read& read : requests[i].reads) {
      wanted[i].columns.push_back(calls[i].expect(all_->options.column_bytes(read.column), true));
      needs_found = needs_found || read.fallback != nullptr;
    }
    if (needs_found) wanted[i].found = calls[i].expect(sizeof(bool), true);
    if (requests[i].rows != nullptr) wanted[i].rows = calls[i].expect(sizeof(std::int64_t), true);
  }
  const auto ask = [&](std::size_t i, Call& call, std::size_t shard) {
    if (call.count(shard) == 0) return;
    std::vector<Read> reads;
    for (std::size_t c = 0; c < wanted[i].columns.size(); ++c)
      reads.push_back({.column = requests[i].reads[c].column, .values = call.of(wanted[i].columns[c], shard)});
    wanted[i].missing += call.table(shard).look_up({.keys = call.keys(shard),
                                                    .reads = reads,
                                                    .found = static_cast<bool*>(call.of(wanted[i].found, shard)),
                                                    .rows = static_cast<std::int64_t*>(call.of(wanted[i].rows, shard)),
                                                    .count_missing = requests[i].count_missing,
                                                    .stream = call.stream(shard)});
  };
  const auto is_first = [&](std::size_t i, const Call& call, std::size_t shard) {
    return call.is_local(shard) && !requests[i].count_missing;  // which waits
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
    const Lookup& request = requests[i];
    const auto& [found, rows, columns, missing] = wanted[i];
    call.finish();
    const Split& split = call.split();
    const bool* const marks = found != nullptr ? found->home.as<bool>() : nullptr;
    bool* found_out = request.found;  // written on the way, with the first column
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const Read& read = request.reads[c];
      split.gather(columns[c]->home.get(), columns[c]->bytes, read.values,
                   {marks, read.fallback, read.fallback_per_key, std::exchange(found_out, nullptr)}, request.stream);
    }
    if (found_out != nullptr) split.gather(marks, sizeof(bool), found_out, {}, request.stream);
    if (request.rows != nullptr) split.gather_rows(rows->home.as<std::int64_t>(), request.rows, request.stream);
  });
  std::int64_t all_missing = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
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
  std::int64_t missing = 0;
  for (std::size_t shard = 0; shard < call.shards(); ++shard)
    if (call.count(shard) != 0)
      missing +=
          call.table(shard).look_up({.keys = call.keys(shard), .count_missing = true, .stream = call.stream(shard)});
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

/// The changes of calls in their turn. change_shard(call, shard, keys, told) makes one at a shard, whose answers it is
/// told where to write.
template <class ChangeShard>
void View::change_in(std::deque<Call>& calls, const std::vector<Told>& told, bool needs_room,
                     ChangeShard change_shard) {
  std::vector<Call::Answers*> masks(told.size());
  std::vector<Call::Answers*> rows(told.size());
  for (std::size_t i = 0; i < told.size(); ++i) {
    if (told[i].mask != nullptr) masks[i] = calls[i].expect(sizeof(bool), false);
    if (told[i].rows != nullptr) rows[i] = calls[i].expect(sizeof(std::int64_t), false);
  }
  for_each_call(calls, [](std::size_t, Call& call) {
    call.begin();
    call.send();  // before anything changes: there may be no memory for it
  });
  const bool fits = !needs_room || has_room_for(calls);
  const bool at_once = calls.size() == 1 || (fits && !all_->options.deterministic);
  std::deque<Gathered> gathered;  // of each shard, where room is to be made for several batches
  const auto make_change = [&](std::size_t i, Call& call, std::size_t shard) {
    KeyBatch keys = call.keys(shard);
    if (!gathered.empty()) keys = gathered[shard].of(i, keys.count);
    change_shard(
        call, shard, keys,
        Told{static_cast<bool*>(call.of(masks[i], shard)), static_cast<std::int64_t*>(call.of(rows[i], shard))});
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
    if (told[i].mask != nullptr) call.split().gather_mask(masks[i]->home.as<bool>(), told[i].mask, call.stream());
    if (told[i].rows != nullptr)
      call.split().gather_rows(rows[i]->home.as<std::int64_t>(), told[i].rows, call.stream());
  });
}

/// How the values of hot keys may be combined beforehand, if they may.
std::optional<Reduction> View::reduction_of(const Change& request) const {
  const TableOptions& options = all_->options;
  if (options.has_rows() || options.deterministic || request.writes.empty()) return {};
  const Reduction reduction{request.writes.front().action, *options.value_dtype};
  return reduction.can_merge() ? std::optional(reduction) : std::nullopt;
}

void View::change(Span<const Change> requests) {
  for (const Change& request : requests) check_change(all_->options, request);
  one_call_each(requests, [&](std::deque<Call>& calls, Span<const Change> some) {
    std::vector<Told> told;
    for (std::size_t i = 0; i < some.size(); ++i) {
      told.push_back({some[i].inserted, some[i].rows});
      if (const std::optional<Reduction> reduction = reduction_of(some[i]))
        calls[i].allow_merging(kLeastToMerge, reduction);
    }
    change_in(calls, told, true, [](Call& call, std::size_t shard, const KeyBatch& keys, const Told& to) {
      const std::vector<Write> writes = call.writes(shard);
      call.table(shard).change(
          {.keys = keys, .writes = writes, .inserted = to.mask, .rows = to.rows, .stream = call.stream(shard)});
    });
    std::deque<Call> afterwards;
    std::vector<Lookup> lookups;
    for (std::size_t i = 0; i < some.size(); ++i) {
      if (some[i].reads.empty()) continue;
      lookups.push_back({.keys = some[i].keys, .reads = some[i].reads, .stream = some[i].stream});
      afterwards.emplace_back(calls[i].view(), some[i].keys, Span<const Write>(), some[i].stream);
    }
    if (!lookups.empty()) look_up_in(afterwards, lookups);
  });
  advance_steps(requests);
}

std::int64_t View::erase(Span<const Erasure> requests) {
  for (const Erasure& request : requests) check_reads(all_->options, request.reads);
  std::int64_t missing = 0;
  one_call_each(requests, [&](std::deque<Call>& calls, Span<const Erasure> some) {
    std::deque<Call> before;
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
      before.emplace_back(calls[i].view(), request.keys, Span<const Write>(), request.stream);
    }
    if (!lookups.empty()) missing = look_up_in(before, lookups);
    if (missing != 0) return;
    change_in(calls, told, false, [](Call& call, std::size_t shard, const KeyBatch& keys, const Told& to) {
      call.table(shard).erase({.keys = keys, .erased = to.mask, .stream = call.stream(shard)});
    });
  });
  return missing;
}

void View::make_room(const KeyBatch& keys, bool, Stream stream) {
  const Lookup request{.keys = keys, .stream = stream};
  one_call_each(Span(&request, 1), [](std::deque<Call>& calls, Span<const Lookup>) {
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

void View::read_rows(const std::int64_t*, std::int64_t, Span<const Read>, Stream) {
  throw ShapeError("rows of a table of several shards were to be read by their numbers: read those of its shards");
}

void View::pool_rows(const std::int64_t*, std::int64_t, const Bags&, const Read&, Stream) {
  throw ShapeError("rows of a table of several shards were to be summed up: sum up those of its shards");
}

void View::train(const std::int64_t*, std::int64_t, const Gradients&, const std::vector<std::size_t>&,
                 const OptimizerStep&, Stream) {
  throw ShapeError("rows of a table of several shards were to be trained: train those of its shards");
}

std::int64_t View::export_items(const Export& request) {
  check_reads(all_->options, request.reads);
  const Stream stream = request.stream;
  Turn turn(*this, stream);
  turn.lock_all();
  const auto key_bytes = static_cast<std::int64_t>(all_->options.key_bytes());
  std::vector<std::int64_t> sizes(ways_.size());
  std::int64_t total = 0;
  in_order(stream,
           [&](const Way& way, Stream there, std::size_t shard) { total += sizes[shard] = way.shard->size(there); });
  if (total > request.room) return total;

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
    void* const keys = part_of(request.keys, key_bytes);
    auto* const rows = static_cast<std::int64_t*>(part_of(request.rows, sizeof(std::int64_t)));
    std::vector<Read> reads(request.reads.begin(), request.reads.end());
    for (Read& read : reads) read.values = part_of(read.values, all_->options.column_bytes(read.column));
    first += size;
    if (size == 0) return;
    Export part{.keys = keys, .reads = reads, .rows = rows, .room = size, .stream = there};
    std::int64_t exported = size;
    if (way.local) {
      exported = way.shard->export_items(part);
    } else {
      // All in one turn at the shard, whose items others may change between two.
      std::deque<Fetched> fetched;
      const auto copy_of = [&](void* to, std::int64_t bytes) -> void* {
        if (to == nullptr) return nullptr;
        const auto all = static_cast<std::size_t>(size * bytes);
        return fetched.emplace_back(to, Allocation(*way.context, all, there)).from.get();
      };
      part.keys = copy_of(keys, key_bytes);
      part.rows = static_cast<std::int64_t*>(copy_of(rows, sizeof(std::int64_t)));
      for (Read& read : reads) read.values = copy_of(read.values, all_->options.column_bytes(read.column));
      exported = way.shard->export_items(part);
      way.context->synchronize(there);
      for (const Fetched& array : fetched)
        home_->copy_from(array.to, *way.context, array.from.get(), array.from.bytes(), stream);
      home_->synchronize(stream);
    }
    if (exported != size)
      throw ShapeError("a shard has changed its size while all items were read: another thread works on it; ask again");
    if (rows != nullptr && shard != 0) home_->executors().splitter->number_rows(*home_, rows, size, shard, stream);
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
