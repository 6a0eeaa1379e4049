#include "table/hash_table.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gpuhash/error.hpp>
#include "core/interruption.hpp"
#include "core/random_seed.hpp"
#include "core/tuning.hpp"
#include "shared/arithmetic.hpp"
#include "shared/combines_in_float.hpp"
#include "shared/probe_sequence.hpp"
#include "table/apart_changes.hpp"
#include "table/counted_batch.hpp"
#include "table/forecast.hpp"
#include "table/row_optimizer.hpp"
#include "table/wide_values.hpp"

namespace gpuhash {
namespace {

/// The seeds of a table that is made with the options. One that is given decides all, so that tables made with it are
/// alike; without one they differ only where nothing but a flood of picked keys goes, or a table's last free slots lie.
Seeds make_seeds(const TableOptions& options) {
  if (options.seed) return {*options.seed, hash_key(*options.seed, detail::kHashFold)};
  return {0, random_seed()};
}

KeyBatch slice(const KeyBatch& keys, std::int64_t from, std::int64_t count) {
  return {static_cast<const char*>(keys.data) + from * keys.bytes, count, keys.bytes, keys.distinct, 0};
}

ValueBatch slice(const ValueBatch& values, std::int64_t from) {
  if (values.data == nullptr || values.broadcast) return values;
  return {static_cast<const char*>(values.data) + from * values.bytes, values.bytes, false};
}

/// The rows before `end` that are not among these, which are in [0, end), the last one first: new keys get the first
/// one first. ShapeError where a number comes twice.
std::vector<std::int64_t> rows_between(const std::vector<std::int64_t>& numbers, std::int64_t end) {
  std::vector<bool> taken(static_cast<std::size_t>(end));
  for (const std::int64_t number : numbers) {
    if (taken[static_cast<std::size_t>(number)])
      throw ShapeError("the row " + std::to_string(number) + " was to be restored for two keys");
    taken[static_cast<std::size_t>(number)] = true;
  }
  std::vector<std::int64_t> free;
  for (std::int64_t row = end; row-- > 0;)
    if (!taken[static_cast<std::size_t>(row)]) free.push_back(row);
  return free;
}

/// Calls body(first, length) for each run of positions that follow each other.
template <class Body>
void for_each_run(const std::vector<std::int64_t>& positions, Body body) {
  for (std::size_t begin = 0, end; begin < positions.size(); begin = end) {
    for (end = begin + 1; end < positions.size() && positions[end] == positions[end - 1] + 1;) ++end;
    body(positions[begin], static_cast<std::int64_t>(end - begin));
  }
}

/// Calls body(request) for each request with keys, in the order of its stream.
template <class Requests, class Body>
void for_each_batch(CallOrder::Turn& turn, Requests& requests, Body body) {
  for (auto& request : requests) {
    if (request.keys.count == 0) continue;
    turn.go_on(request.stream);
    body(request);
  }
}

/// Keys [from, from + count) of the order.
template <class Order>
Order part_of(const Order& order, std::int64_t from, std::int64_t count) {
  Order part = order;
  part.keys = slice(order.keys, from, count);
  part.values = slice(order.values, from);
  if (order.inserted != nullptr) part.inserted = order.inserted + from;
  if constexpr (requires { part.wide; }) part.wide.begin += from;
  return part;
}

}  // namespace

template <class Key, class Value>
HashTable<Key, Value>::HashTable(const TableOptions& options, std::shared_ptr<DeviceContext> context)
    : HashTable(options, std::move(context), make_geometry<View>(options.capacity, make_seeds(options))) {}

template <class Key, class Value>
HashTable<Key, Value>::HashTable(const TableOptions& options, std::shared_ptr<DeviceContext> context,
                                 const Geometry& geometry)
    : options_(options), columns_(options), context_(std::move(context)), order_(*context_), constants_(*context_) {
  if (options_.max_capacity) {
    const Geometry largest = make_geometry<View>(std::max(*options_.max_capacity, options.capacity), {});
    options_.max_capacity = capacity_of<View>(largest);
  }
  storage_ = Storage(*context_, geometry, growth().key_limit(capacity_of<View>(geometry)), row_bytes(), nullptr);
  executor().clear(*context_, storage_.view(), nullptr);
  order_.record(nullptr);
}

/// The memory goes back after the work of the last call.
template <class Key, class Value>
HashTable<Key, Value>::~HashTable() {
  try {
    const Stream stream = order_.stream_after_all();
    storage_.set_stream(stream);
    constants_.set_stream(stream);
    if (order_.captured()) {  // a replay, of which nobody is told, may be running
      storage_.lend(context_);
      constants_.lend(context_);
    }
  } catch (const CudaError&) {
    // At exit the driver may be gone before the last table; its memory went with it.
  }
}

template <class Key, class Value>
const Executor<Key, Value>& HashTable<Key, Value>::executor() const {
  return context_->executors().template get<Key, Value>();
}

/// Keys that the table takes before it has to grow.
template <class Key, class Value>
std::int64_t HashTable<Key, Value>::current_limit() const {
  const std::int64_t limit = growth().key_limit(storage_.capacity());
  return options_.has_rows() ? std::min(limit, storage_.view().rows.capacity) : limit;
}

/// So many more keys fit, and there is nothing else to see to before they are inserted.
template <class Key, class Value>
bool HashTable<Key, Value>::has_known_room(std::int64_t keys) const {
  return ledger_.has_room(keys, current_limit());
}

/// Waits. The counters as they are now; makes the bound of the size exact.
template <class Key, class Value>
Control HashTable<Key, Value>::read_control(Stream stream) {
  const Control control = ledger_.read(*context_, storage_.view().control, stream);
  take_note(control);
  return control;
}

/// After an insertion of `keys` keys: where the next ones might have to wait for the size, the device is asked for it
/// now.
template <class Key, class Value>
void HashTable<Key, Value>::ask_for_size(std::int64_t keys, Stream stream) {
  if (context_->is_host() || !ledger_.wants_to_ask(keys, current_limit())) return;
  try {
    ledger_.ask(*context_, storage_.view().control, stream);
  } catch (const std::exception&) {
    report_ignored_error("asking a GPU for a hash table's size");  // which is then waited for
  }
}

/// Takes note of the counters that were asked for, if they have come.
template <class Key, class Value>
bool HashTable<Key, Value>::hear_of_size() {
  return ledger_.hear([&](const Control& control) { take_note(control); });
}

template <class Key, class Value>
void HashTable<Key, Value>::take_note(const Control& control) {
  ledger_.note_size(static_cast<std::int64_t>(control.size));
  const std::uint32_t buckets = storage_.view().geometry.bucket_count;
  const auto slots = static_cast<std::uint64_t>(storage_.capacity());
  const bool needs_rebuild = is_worn(control, buckets, slots, ledger_.fresh_filter_bits()) ||
                             (!options_.has_rows() && is_deserted(control, slots));
  ledger_.set_worn(wants_seed(control) || (!order_.captured() && needs_rebuild));
}

/// Likewise; tells of what replayed graphs have lost, and may therefore not come after a change.
template <class Key, class Value>
Control HashTable<Key, Value>::refresh(Stream stream) {
  const Control control = read_control(stream);
  if (control.dropped == 0) return control;
  context_->fill(&storage_.view().control->dropped, 0, sizeof control.dropped, stream);  // told once
  throw TableFullError("a replayed CUDA graph inserted more keys than the table had room for; " +
                       std::to_string(control.dropped) + " are lost: reserve more before capturing");
}

/// Makes sure that all keys of the batch fit, before anything is changed; TableFullError or OutOfMemoryError otherwise.
/// make_plan() plans the batch for the table as it is. With Grows::kWithin, run_in() is to insert it; `applied`: by
/// this order, if it is one of apply().
template <class Key, class Value>
template <class MakePlan>
auto HashTable<Key, Value>::prepare_room(const KeyBatch& keys, Stream stream, MakePlan make_plan, Grows grows,
                                         const ApplyOrder* applied) -> Room {
  const std::int64_t n = keys.count;
  std::optional<RoomMade> made = std::exchange(room_made_, std::nullopt);
  if (made && !made->is_for(keys)) made.reset();
  if (made) room_made_ = made->behind(keys);
  Room room;
  if (has_known_room(n) || (hear_of_size() && has_known_room(n))) {
    ledger_.expect(ledger_.bound() + n);
    room.plan = make_plan();
    return room;
  }
  if (made && ledger_.is_sure()) {
    ledger_.expect_anew(made->size);
    if (!room_made_) room.slots_before = made->slots_before;  // else the table has to stay as large as it is
    room.plan = make_plan();
    return room;
  }
  if (grows == Grows::kWithin && may_try()) {
    if (growth().may_grow_afterwards(ledger_.bound() + n, storage_.capacity())) {
      room.unchecked = true;
      ledger_.expect(ledger_.bound() + n);
      room.plan = make_plan();
      return room;
    }
    if (prepare_trial(room, n, applied, stream)) return room;
  }
  const Control control = refresh(stream);
  maintain(control, stream);
  const std::int64_t size = ledger_.bound();
  if (grows == Grows::kWithin && size + n > current_limit() && prepare_uncounted(room, keys, control, stream))
    return room;
  const std::int64_t slots = storage_.capacity();
  room.plan = make_plan();
  room.unchecked = size + n > current_limit() && !options_.has_rows() && growth().may_grow_afterwards(size + n, slots);
  std::int64_t added = n;
  if (size + n > current_limit() && !room.unchecked) {
    if (room.plan == nullptr && make_room_for_all(room, keys, control, stream, make_plan)) {
      room.slots_before = slots;
    } else {
      added = count_new(keys, room.plan.get(), stream);
      ledger_.note_new(added, n);
    }
  }
  if (size + added > current_limit() && !room.unchecked) {
    need_movable(size + added);
    grow(room, growth().grown_for(size + added, slots), control, stream, make_plan);
  }
  ledger_.expect(size + added);
  return room;
}

/// Without a wait before: not where there is something else to see to, and on the host nobody waits for anything.
template <class Key, class Value>
bool HashTable<Key, Value>::may_try() const {
  return !context_->is_host() && ledger_.is_sure() && !ledger_.is_worn() && !options_.has_rows() &&
         !options_.deterministic;
}

/// Makes ready for a trial: most keys of the batch are thought to be there, so it is inserted at once, with a bound for
/// the size, and what was left out gets its room afterwards. That must not fail then. So the memory is set aside that
/// it takes if all keys are new, unless they would fit into the slots that there are. False: no trial.
template <class Key, class Value>
bool HashTable<Key, Value>::prepare_trial(Room& room, std::int64_t keys, const ApplyOrder* applied, Stream stream) {
  const std::int64_t slots = storage_.capacity();
  if (keys > tuning().most_batch_keys) return false;  // in parts, each of which would have a list of its own
  // Memory to combine in is asked for by each attempt, and the second one must not fail.
  if (applied != nullptr && combines_in_float(applied->dtype, applied->op)) return false;
  if (!ledger_.expects_present() || keys > slots || !executor().tries(storage_.view(), keys)) return false;
  if (!growth().may_grow_beyond(slots) || !growth().may_hold(ledger_.bound() + keys)) return false;
  try {
    if (ledger_.bound() + keys > slots) {
      const Geometry geometry =
          make_geometry<View>(growth().grown_for(ledger_.bound() + keys, slots), storage_.view().geometry.seeds);
      if (static_cast<std::int64_t>(Storage::bytes_of(geometry)) > tuning().most_spare_bytes) return false;
      room.next.emplace(*context_, geometry, 0, 0, stream);
    }
    if (applied != nullptr && executor().lists_left(*context_, storage_.view(), *applied))
      room.left = Allocation(*context_, static_cast<std::size_t>(keys) * sizeof(std::uint32_t), stream);
    ledger_.prepare_to_read(*context_);
  } catch (const OutOfMemoryError&) {
    room.next.reset();
    room.left = Allocation();
    return false;
  }
  const std::int64_t most = growth().uncounted_limit(slots);
  room.most = static_cast<std::uint64_t>(most);
  ledger_.expect(std::min(ledger_.bound() + keys, most));
  return true;
}

/// Runs run(order), the insertion for which the room was prepared. After a trial that left keys out, it gives them
/// room, and runs it once more: for these, if they are listed, and otherwise for all, when nothing happens to keys that
/// are in that has not happened before. Waits after a trial.
template <class Key, class Value>
template <class Order, class Run>
void HashTable<Key, Value>::run_in(Room& room, Order& order, Stream stream, Run run) {
  ledger_.offer(order.keys.count);
  order.plan = room.plan.get();
  std::optional<Storage> spare;
  if (room.most != 0) spare = std::exchange(room.next, std::nullopt);
  order.trial.most = room.most;
  order.trial.left = room.left.template as<std::uint32_t>();
  try {
    run(order);
  } catch (...) {
    if (room.before) storage_ = *std::exchange(room.before, std::nullopt);
    throw;
  }
  if (room.most == 0) return;
  order.trial.left_count = static_cast<std::int64_t>(read_control(stream).left);
  if (order.trial.left_count == 0) return;
  make_room_for_rest(room, order.keys, std::move(spare), stream);
  order.trial.most = ~std::uint64_t{0};
  order.trial.again = true;
  run(order);
}

/// Of a trial. What is wrong with the memory is not told: there is the spare.
template <class Key, class Value>
void HashTable<Key, Value>::make_room_for_rest(Room& room, const KeyBatch& keys, std::optional<Storage> spare,
                                               Stream stream) {
  context_->fill(&storage_.view().control->left, 0, sizeof(Control::left), stream);
  room.most = 0;
  try {
    const Room rest = prepare_room(keys, stream, [] { return std::unique_ptr<Plan>(); }, Grows::kBefore);
    room.unchecked = rest.unchecked;
    room.slots_before = rest.slots_before;
    return;
  } catch (const CudaError&) {
    throw;
  } catch (const OutOfMemoryError&) {
  } catch (const Interrupted&) {  // whoever asked for it is heard once the call returns
  } catch (const std::exception&) {
    report_ignored_error("growing a hash table in the middle of an insertion");
  }
  if (spare) {
    room.slots_before = storage_.capacity();
    move_into(*std::move(spare), false, read_control(stream), stream, RehashMemory::kNone);
  } else {
    room.unchecked = true;
  }
  ledger_.expect(ledger_.bound() + keys.count);
}

/// On the host: makes room for as many new keys as a sample lets expect, or, where the last batches' keys were there
/// and some of these surely fit, for none; and has memory ready in which the table can grow while the batch is
/// inserted, should there be more. False where that is not worth it, not allowed, or there is no memory for it.
template <class Key, class Value>
bool HashTable<Key, Value>::prepare_uncounted(Room& room, const KeyBatch& keys, const Control& control, Stream stream) {
  const std::int64_t size = ledger_.bound();
  const std::int64_t slots = storage_.capacity();
  const bool is_possible = context_->is_host() && !options_.has_rows();
  if (!is_possible || !growth().may_grow_beyond(slots) || !growth().may_hold(size + keys.count)) return false;
  const forecast::Uncounted batch{keys.count, slots};
  room.least_part = batch.least_part();
  const bool none_is_new =
      ledger_.expects_present() && batch.may_be_trusted() && growth().uncounted_limit(slots) - size >= room.least_part;
  if (!none_is_new && !batch.may_be_guessed()) return false;
  try {
    const std::int64_t added = batch.worth_room(none_is_new ? 0 : guess_new(keys, stream));
    if (size + added > current_limit()) {
      rebuild(growth().grown_ahead(size, added, slots), false, control, stream);
      room.slots_before = slots;
      room.size_before = size;
    }
    const std::int64_t free = growth().uncounted_limit(storage_.capacity()) - size;
    if (free < room.least_part) return false;
    if (free < keys.count) {
      const std::int64_t slots_for_all = growth().grown_for(size + keys.count, storage_.capacity());
      const std::int64_t twice_the_slots = growth().grown(storage_.capacity());
      std::optional<Storage> twice;
      if (twice_the_slots < slots_for_all) twice = make_storage(twice_the_slots, false, control, stream);
      room.next = make_storage(slots_for_all, false, control, stream);
      room.twice = std::move(twice);
    }
  } catch (const OutOfMemoryError&) {
    return false;
  }
  room.unchecked = true;
  if (!room.next) ledger_.expect(size + keys.count);
  return true;
}

/// Distinct keys of the batch that are not in the table, by a sample. On the host.
template <class Key, class Value>
std::int64_t HashTable<Key, Value>::guess_new(const KeyBatch& keys, Stream stream) {
  const std::int64_t distinct = forecast::estimate_distinct(*context_, keys, stream);
  if (ledger_.bound() == 0) return distinct;
  const forecast::Uncounted batch{keys.count, storage_.capacity()};
  const std::int64_t run_keys = std::min<std::int64_t>(tuning().sample_run_keys, keys.count);
  const std::int64_t runs = std::max<std::int64_t>(batch.runs(), 1);
  const Allocation listed(*context_, static_cast<std::size_t>(run_keys) * sizeof(Key), stream);
  std::int64_t absent = 0;
  for (std::int64_t run = 0; run < runs; ++run) {
    const KeyBatch part = slice(keys, keys.count / runs * run, run_keys);
    executor().list_absent(*context_, storage_.view(), part, listed.template as<Key>(), stream);
    absent += static_cast<std::int64_t>(storage_.view().control->absent);
  }
  return batch.new_keys(distinct, absent, runs * run_keys);
}

/// Calls run(part, its first key) for parts of the order, one after the other: of at most most_batch_keys, and of as
/// many as surely fit where nobody has counted the new ones. Where hardly any fit, the table takes a larger memory.
template <class Key, class Value>
template <class Order, class Run>
void HashTable<Key, Value>::for_each_part(const Order& order, Room& room, Stream stream, Run run) {
  const std::int64_t n = order.keys.count;
  for (std::int64_t from = 0; from < n;) {
    std::int64_t count = std::min<std::int64_t>(tuning().most_batch_keys, n - from);
    if (room.next) {
      const Control control = read_control(stream);
      const std::int64_t free = growth().uncounted_limit(storage_.capacity()) - ledger_.bound();
      if (free < std::min(count, room.least_part)) {
        room.slots_before = storage_.capacity();
        std::optional<Storage>& larger = room.twice ? room.twice : room.next;
        move_into(*std::exchange(larger, std::nullopt), false, control, stream);
        if (room.next) continue;  // the rest need not fit here, either
      } else {
        count = std::min(count, free);
      }
      ledger_.expect(ledger_.bound() + count);
    }
    Order part = part_of(order, from, count);
    Stop stop{count};
    const bool may_stop = count >= tuning().least_watched_keys && may_scatter(room);
    if (may_stop) part.stop = &stop;
    run(part, from);
    if (may_stop && storage_.view().control->far_keys >= kManyFarKeys) {
      scatter(room, static_cast<std::int64_t>(stop.left.size()), n - from - stop.done, stream);
      for_each_run(stop.left, [&](std::int64_t first, std::int64_t length) {
        run(part_of(order, from + first, length), from + first);
      });
    }
    from += stop.done;
  }
}

/// In the middle of an insertion: may the table take another seed if its keys seem picked to meet? Once.
template <class Key, class Value>
bool HashTable<Key, Value>::may_scatter(const Room& room) const {
  if (!context_->is_host() || room.scattered) return false;
  Control flooded{};
  flooded.far_keys = kManyFarKeys;
  return wants_seed(flooded);
}

/// Gives the table another seed, before `left` keys of this part come, and `rest` of the next ones.
template <class Key, class Value>
void HashTable<Key, Value>::scatter(Room& room, std::int64_t left, std::int64_t rest, Stream stream) {
  room.scattered = true;
  const std::optional<RoomMade> made = room_made_;  // as large as before, the table has it still
  try {
    rebuild(storage_.capacity(), false, read_control(stream), stream);
    room_made_ = made;
    for (std::optional<Storage>* const other : {&room.next, &room.twice})
      if (*other) (*other)->set_seeds(storage_.view().geometry.seeds);
  } catch (const OutOfMemoryError&) {
    // The table is whole as it is, and only slower.
  } catch (const Interrupted&) {  // heard at the next interruption point
  } catch (const std::exception&) {
    report_ignored_error("giving a hash table another seed in the middle of an insertion");
  }
  ledger_.expect(ledger_.bound() + left + (room.next ? 0 : rest));  // of parts, each expects its own
}

/// False where that is not worth it, not allowed, or there is no memory for it.
template <class Key, class Value>
template <class MakePlan>
bool HashTable<Key, Value>::make_room_for_all(Room& room, const KeyBatch& keys, const Control& control, Stream stream,
                                              MakePlan make_plan) {
  const std::int64_t slots = storage_.capacity();
  if (options_.has_rows() || !growth().may_make_room_for_all(keys.count, slots)) return false;
  try {
    if (forecast::estimate_distinct(*context_, keys, stream) < keys.count) return false;
    grow(room, growth().grown_for(ledger_.bound() + keys.count, slots), control, stream, make_plan);
  } catch (const OutOfMemoryError&) {
    return false;
  }
  return true;
}

/// Builds the table anew with `slots` slots, and plans the batch for it. A small table on a GPU in which there is
/// nothing yet gets new memory that a planned insertion makes a table of; until then the old one is in room.before. A
/// large one would take memory from the plan.
template <class Key, class Value>
template <class MakePlan>
void HashTable<Key, Value>::grow(Room& room, std::int64_t slots, const Control& control, Stream stream,
                                 MakePlan make_plan) {
  room.plan = nullptr;  // gives its memory back first
  const bool is_small = storage_.capacity() <= slots / 8;
  if (!ledger_.is_pristine() || !is_small || options_.has_rows() || context_->is_host()) {
    rebuild(slots, false, control, stream);
    room.plan = make_plan();
    return;
  }
  Storage before = std::exchange(storage_, make_storage(slots, false, control, stream));
  try {
    room.plan = make_plan();
    if (room.plan != nullptr)
      executor().begin_blank(*context_, storage_.view(), stream);
    else
      executor().clear(*context_, storage_.view(), stream);
  } catch (...) {
    room.plan = nullptr;
    storage_ = std::move(before);
    throw;
  }
  before.set_stream(stream);
  if (room.plan != nullptr) room.before = std::move(before);
  storage_.set_may_have_erased(order_.captured());
  room_made_.reset();
  ledger_.note_rebuilt(0);
  take_note(Control{});
}

/// Keys of the batch that are not in the table; too many only where that does no harm: all of them fit, or the table
/// grows for them a little early. Nobody is told that a table is full because of duplicates. Waits.
template <class Key, class Value>
std::int64_t HashTable<Key, Value>::count_new(const KeyBatch& keys, const Plan* plan, Stream stream) {
  const std::int64_t n = keys.count;
  const std::int64_t size = ledger_.bound();
  const std::int64_t limit = current_limit();
  const std::int64_t slots = storage_.capacity();
  const std::int64_t most = growth().most_new(size);
  if (plan != nullptr) {
    executor().count_absent(*context_, storage_.view(), *plan, ledger_.is_pristine(), stream);
    const Control counted = refresh(stream);
    const auto absent = static_cast<std::int64_t>(counted.absent);
    const std::int64_t at_most = std::min(n, absent + static_cast<std::int64_t>(counted.undecided));
    const bool grows_anyway = growth().may_grow_beyond(slots) && size + absent > limit && at_most <= most;
    if (size + at_most <= limit || grows_anyway) return at_most;
  }

  const bool distinct_fit = keys.distinct && n <= most;  // though some may come twice, after all
  if (distinct_fit && size == 0) return n;
  const std::int64_t room = std::min<std::int64_t>(n, tuning().listed_keys);
  Allocation listed;
  if (size != 0) listed = Allocation(*context_, static_cast<std::size_t>(room) * sizeof(Key), stream);
  TableOptions options;
  options.key_dtype = DType::kUInt32;
  options.key_elements = sizeof(Key) / sizeof(std::uint32_t);
  options.seed = random_seed();
  std::optional<HashTable<Key, NoValue>> seen;
  std::int64_t distinct = 0;
  for (std::int64_t from = 0; from < n && distinct <= most; from += room) {
    KeyBatch part = slice(keys, from, std::min(room, n - from));
    if (size != 0) {
      executor().list_absent(*context_, storage_.view(), part, listed.as<Key>(), stream);
      const auto absent = static_cast<std::int64_t>(refresh(stream).absent);
      const bool is_all = part.count == n;
      const bool few = growth().may_grow_early(absent, size, slots, limit);
      if (is_all && (size + absent <= limit || few)) return absent;
      if (distinct_fit) {
        distinct += absent;
        continue;
      }
      part = {listed.get(), absent, sizeof(Key)};
    }
    if (!seen) seen.emplace(options, context_);
    for (std::int64_t at = 0; at < part.count;) {
      const std::int64_t count =
          std::min<std::int64_t>(part.count - at, std::max<std::int64_t>(tuning().count_chunk_keys, distinct));
      seen->reserve(distinct + count, stream);
      seen->change({.keys = slice(part, at, count), .stream = stream});
      distinct = seen->size(stream);
      at += count;
    }
  }
  return distinct;
}

/// After an insertion: grows a table that keys nobody had counted filled beyond its limit, shrinks one that has far
/// more room than they need, and gives one that is flooded another seed. All keys are in, so nothing is thrown any
/// more; a table that cannot be rebuilt stays as it is. Waits where there is something to do.
template <class Key, class Value>
void HashTable<Key, Value>::finish_insertion(const Room& room, std::int64_t keys, Stream stream) {
  const bool looks_flooded = context_->is_host() && keys >= static_cast<std::int64_t>(kManyFarKeys) &&
                             storage_.view().control->far_keys >= kManyFarKeys;
  const bool is_overfull = room.most != 0 && ledger_.bound() > current_limit();
  if (!room.unchecked && room.slots_before == 0 && !looks_flooded && !is_overfull) return ask_for_size(keys, stream);
  try {
    const Control control = read_control(stream);
    if (const std::optional<std::int64_t> slots = growth().slots_afterwards(
            ledger_.bound(), storage_.capacity(), current_limit(), room.slots_before, room.size_before))
      rebuild(*slots, false, control, stream);
    else if (wants_seed(control)) {
      const std::optional<RoomMade> made = room_made_;  // for the batches behind this one
      rebuild(storage_.capacity(), false, control, stream);
      room_made_ = made;
    }
  } catch (const OutOfMemoryError&) {
    return;  // the table is whole as it is
  } catch (const Interrupted&) {
    return;  // likewise; whoever asked for it is heard once the call returns
  } catch (const std::exception&) {
    report_ignored_error("rebuilding a hash table after an insertion");
  }
}

/// Is it to take another seed when it is next built? Not where a CUDA graph holds the addresses of the present memory.
template <class Key, class Value>
bool HashTable<Key, Value>::wants_seed(const Control& control) const {
  return !order_.captured() && is_flooded(control, storage_.capacity(), ledger_.peak());
}

/// Insertions look after the table. Whatever else has waited for the counters leaves word in the ledger: a caller who
/// asks for the size after every batch would otherwise keep the bound below the limit, and this from being called.
template <class Key, class Value>
void HashTable<Key, Value>::maintain(const Control& control, Stream stream) {
  if (!ledger_.is_worn()) return;
  if (control.size == 0 && !options_.has_rows() && !wants_seed(control)) {
    executor().clear(*context_, storage_.view(), stream);
    return note_cleared();
  }
  try {
    rebuild(storage_.capacity(), false, control, stream);
  } catch (const OutOfMemoryError&) {
    ledger_.set_worn(false);  // The table is whole as it is, only slower; the next wait for its counters tries again.
  }
}

/// Builds the table anew with `slots` slots and swaps; all memory is allocated before any work. Rows that can grow
/// where they lie stay there, unless they are numbered anew or become fewer; should something fail after they have
/// grown, the table has the memory, and does not use it yet.
template <class Key, class Value>
void HashTable<Key, Value>::rebuild(std::int64_t slots, bool compact_rows, const Control& control, Stream stream) {
  move_into(make_storage(slots, compact_rows, control, stream), compact_rows, control, stream);
}

/// Memory for the table as it would be with `slots` slots.
template <class Key, class Value>
auto HashTable<Key, Value>::make_storage(std::int64_t slots, bool compact_rows, const Control& control, Stream stream)
    -> Storage {
  const Seeds seeds = wants_seed(control) ? Seeds{random_seed(), random_seed()} : storage_.view().geometry.seeds;
  const Geometry geometry = make_geometry<View>(slots, seeds);
  const std::int64_t used_rows = static_cast<std::int64_t>(compact_rows ? control.size : control.next_row);
  std::int64_t row_capacity = std::max(growth().key_limit(capacity_of<View>(geometry)), used_rows);
  // Also with a lower max_load_factor than before: a table that does not get smaller is not to move its rows.
  if (!compact_rows && slots >= storage_.capacity())
    row_capacity = std::max(row_capacity, storage_.view().rows.capacity);

  return Storage(*context_, geometry, row_capacity, row_bytes(), stream, compact_rows ? nullptr : &storage_);
}

/// Builds the table anew in memory of make_storage(), and swaps.
template <class Key, class Value>
void HashTable<Key, Value>::move_into(Storage next, bool compact_rows, const Control& control, Stream stream,
                                      RehashMemory memory) {
  room_made_.reset();
  const std::int64_t used_rows = static_cast<std::int64_t>(compact_rows ? control.size : control.next_row);
  if (options_.has_rows() && !compact_rows && used_rows > 0 && next.rows() != storage_.rows())
    context_->copy(next.view().rows.data, storage_.view().rows.data, static_cast<std::size_t>(used_rows * row_bytes()),
                   stream);
  executor().rehash(*context_, storage_.view(), next.view(), compact_rows, memory, stream);
  const Control rebuilt = ledger_.read(*context_, next.view().control, stream);  // the last thing that may fail
  storage_.set_stream(stream);
  if (order_.captured()) storage_.lend(context_);  // a replay may be reading it
  storage_ = std::move(next);
  storage_.set_may_have_erased(order_.captured());
  ledger_.note_rebuilt(rebuilt.filter_bits);
  take_note(rebuilt);
}

template <class Key, class Value>
std::int64_t HashTable<Key, Value>::size(Stream stream) {
  const Turn turn(order_, stream);
  return static_cast<std::int64_t>(refresh(stream).size);
}

template <class Key, class Value>
std::uint64_t HashTable<Key, Value>::seed() const {
  const auto lock = order_.lock();
  return storage_.view().geometry.seeds.hash;
}

template <class Key, class Value>
std::int64_t HashTable<Key, Value>::capacity() const {
  const auto lock = order_.lock();
  return storage_.capacity();
}

template <class Key, class Value>
std::int64_t HashTable<Key, Value>::nbytes() const {
  const auto lock = order_.lock();
  return storage_.nbytes();
}

template <class Key, class Value>
double HashTable<Key, Value>::max_load_factor() const {
  const auto lock = order_.lock();
  return options_.max_load_factor;
}

template <class Key, class Value>
void HashTable<Key, Value>::set_max_load_factor(double factor) {
  if (!(factor > 0 && factor <= 1))
    throw ShapeError("max_load_factor must lie in (0, 1], not " + std::to_string(factor));
  const auto lock = order_.lock();
  options_.max_load_factor = factor;
}

/// Calls run(turn) in the turn of all requests, if they have keys: for_each() then goes from one to the next. Those
/// without keys only make their steps.
template <class Key, class Value>
template <class Request, class Run>
void HashTable<Key, Value>::in_turn(Span<const Request> requests, Run run) {
  const auto first = std::ranges::find_if(requests, [](const Request& request) { return request.keys.count != 0; });
  if (first != requests.end()) {
    Turn turn(order_, first->stream);
    run(turn);
  }
  if constexpr (requires(const Request& request) { request.step; })
    for (const Request& request : requests)
      if (request.keys.count == 0) make_step(request);
}

template <class Key, class Value>
std::int64_t HashTable<Key, Value>::look_up(Span<const Lookup> requests) {
  for (const Lookup& request : requests) check_reads(options_, request.reads);
  std::int64_t missing = 0;
  in_turn(requests, [&](Turn& turn) {
    for_each_batch(turn, requests, [&](const Lookup& request) { missing += find_in(request); });
  });
  return missing;
}

/// Of the chain that a request belongs to, if it does.
template <class Key, class Value>
template <class Request>
void HashTable<Key, Value>::make_step(const Request& request) {
  if (request.step != nullptr && request.step->taken != nullptr) context_->advance(*request.step, request.stream);
}

/// In its turn: of some columns, or of the one value that a key has.
template <class Key, class Value>
std::int64_t HashTable<Key, Value>::find_in(const Lookup& request) {
  const KeyBatch& keys = request.keys;
  const Stream stream = request.stream;
  FindOrder order{};
  order.found = request.found;
  order.rows = request.rows;
  order.count_missing = request.count_missing;
  if (request.step != nullptr) order.step = *request.step;
  order.bytes = value_bytes_;
  const bool reads_columns = !options_.columns.empty() && !request.reads.empty();
  Allocation memory;
  if (reads_columns) {
    if (order.rows == nullptr) {
      memory = Allocation(*context_, static_cast<std::size_t>(keys.count) * sizeof(std::int64_t), stream);
      order.rows = memory.as<std::int64_t>();
    }
  } else if (!request.reads.empty()) {
    const Read& read = request.reads.front();
    order.values = read.values;
    order.fallback = read.fallback;
    order.fallback_per_key = read.fallback_per_key;
  }
  executor().find(*context_, storage_.view(), keys, order, stream);
  if (reads_columns)
    executor().read_columns(*context_, storage_.view(), order.rows, keys.count, columns_.reads(request.reads), stream);
  if (context_->is_host()) make_step(request);  // GPUs' kernels do
  return request.count_missing ? static_cast<std::int64_t>(refresh(stream).missing) : 0;
}

template <class Key, class Value>
void HashTable<Key, Value>::change(Span<const Change> requests) {
  for (const Change& request : requests) check_change(options_, request);
  in_turn(requests, [&](Turn& turn) {
    const auto is_rows = [&](const MemoryRange& memory) { return are_rows(memory); };
    const auto reads_rows = [&](const Change& request) { return any_input(request, options_, is_rows); };
    if (!has_rows_ || std::ranges::none_of(requests, reads_rows)) return change_all(turn, requests);
    const ApartChanges apart(requests, options_, *context_, is_rows, [&](Stream stream) { turn.go_on(stream); });
    change_all(turn, apart.get());
  });
}

/// Where several batches may not fit, their keys are put one behind the other first, so that all get their room at
/// once.
template <class Key, class Value>
void HashTable<Key, Value>::change_all(Turn& turn, Span<const Change> requests) {
  if (requests.size() == 1) return change_in(turn, requests.front());
  const auto change_each = [&](Span<const Change> changes) {
    for_each_batch(turn, changes, [&](const Change& request) { change_in(turn, request); });
  };
  std::int64_t count = 0;
  for (const Change& request : requests) count += request.keys.count;
  if (turn.capturing() || has_known_room(count)) return change_each(requests);
  const Stream stream = turn.stream();
  const std::uint32_t bytes = options_.key_bytes();
  const Allocation memory(*context_, static_cast<std::size_t>(count) * bytes, stream);
  std::vector<Change> gathered(requests.begin(), requests.end());
  auto* next = memory.as<char>();
  for_each_batch(turn, gathered, [&](Change& request) {
    const auto length = static_cast<std::size_t>(request.keys.count) * bytes;
    context_->copy(next, request.keys.data, length, request.stream);
    request.keys.data = std::exchange(next, next + length);
  });
  make_room_in({memory.get(), count, bytes}, true, turn.stream());
  try {
    change_each(gathered);
  } catch (...) {
    room_made_.reset();
    turn.go_on(stream);  // in whose order the memory goes back
    throw;
  }
  turn.go_on(stream);
}

/// In its turn, and with whatever it reads apart from the table's rows.
template <class Key, class Value>
void HashTable<Key, Value>::change_in(const Turn& turn, const Change& request) {
  if (options_.columns.empty()) return change_value_in(turn, request);
  const Stream stream = request.stream;
  ColumnsOrder order = columns_.order(request, options_.deterministic);
  Allocation rows;
  if (order.rows == nullptr && !request.reads.empty()) {
    rows = Allocation(*context_, static_cast<std::size_t>(request.keys.count) * sizeof(std::int64_t), stream);
    order.rows = rows.as<std::int64_t>();
  }
  change_columns_in(turn, order, stream);
  if (!request.reads.empty())
    executor().read_columns(*context_, storage_.view(), order.rows, request.keys.count, columns_.reads(request.reads),
                            stream);
  make_step(request);
}

/// Likewise, of the one value that a key has, or of a set.
template <class Key, class Value>
void HashTable<Key, Value>::change_value_in(const Turn& turn, const Change& request) {
  const Write* const write = request.writes.empty() ? nullptr : &request.writes.front();
  const bool applies = write != nullptr && combines(write->action);
  if (applies) {
    apply_value_in(turn, request, *write);
  } else if (write == nullptr && options_.value_dtype) {
    insert_initial_in(turn, request);
  } else {
    InsertOrder order = insertion_of(request);
    insert_in(turn, order, request.stream);
  }
  if (applies || context_->is_host()) make_step(request);                      // GPUs' insertions do
  const bool tells_rows = write == nullptr || write->action == Action::kKeep;  // all insertions that keep do
  if (!request.reads.empty() || (request.rows != nullptr && !tells_rows))
    find_in({.keys = request.keys,
             .reads = request.reads,
             .rows = tells_rows ? nullptr : request.rows,
             .stream = request.stream});
}

/// Of a set, or of a value that is kept or assigned.
template <class Key, class Value>
InsertOrder HashTable<Key, Value>::insertion_of(const Change& request) const {
  InsertOrder order{request.keys, {}, Action::kKeep, options_.deterministic, request.inserted};
  if (!request.writes.empty()) {
    const Write& write = request.writes.front();
    order.values = {write.values, value_bytes_, write.broadcast};
    order.action = write.action;
  }
  if (order.action == Action::kKeep) order.rows = request.rows;
  if (request.step != nullptr) order.step = *request.step;
  return order;
}

/// New keys of a table with rows get initial values.
template <class Key, class Value>
void HashTable<Key, Value>::insert_initial_in(const Turn& turn, const Change& request) {
  const InitialRows initial{options_.initializer.value_or(Initializer()), *options_.value_dtype,
                            options_.value_elements()};
  Allocation rows;
  InsertOrder order = insertion_of(request);
  order.initial = &initial;
  if (order.rows == nullptr) {
    rows = Allocation(*context_, static_cast<std::size_t>(request.keys.count) * sizeof(std::int64_t), request.stream);
    order.rows = rows.as<std::int64_t>();
  }
  insert_in(turn, order, request.stream);
}

/// Of the order, what only the table knows is still to be set.
template <class Key, class Value>
void HashTable<Key, Value>::insert_in(const Turn& turn, InsertOrder& order, Stream stream) {
  const bool plannable = !options_.deterministic && (!View::kHasValue || order.values.data != nullptr);
  Room room;
  if (turn.capturing())
    prepare_captured(order.keys);
  else
    room = prepare_room(order.keys, stream, [&]() -> std::unique_ptr<Plan> {
      if (!plannable) return nullptr;
      return executor().plan(*context_, storage_.view(), order.keys, order.values, order.inserted != nullptr, stream);
    });
  turn.change([&] {
    run_in(room, order, stream, [&](const InsertOrder& whole) {
      for_each_part(whole, room, stream, [&](InsertOrder part, std::int64_t from) {
        if (from != 0 || part.trial.again) part.step = {};  // it was made on the way
        if (order.rows != nullptr) part.rows = order.rows + from;
        part.slots = slots_for_insertion(room);
        part.expect_new = ledger_.is_pristine() || order.action == Action::kKeep;
        ledger_.note_change();
        executor().insert(*context_, storage_.view(), part, stream);
      });
    });
  });
  if (!turn.capturing()) finish_insertion(room, order.keys.count, stream);
}

template <class Key, class Value>
void HashTable<Key, Value>::restore_rows(const KeyBatch& keys, const std::int64_t* rows, Stream stream) {
  check_has_rows(options_);
  const Turn turn(order_, stream);
  const Control control = refresh(stream);
  if (control.size != 0)
    throw ShapeError("rows were to be restored in a table that has " + std::to_string(control.size) +
                     " keys: clear it before");
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(keys.count));
  if (keys.count != 0) context_->copy_to_host(numbers.data(), rows, numbers.size() * sizeof(std::int64_t), stream);
  const std::int64_t last = numbers.empty() ? -1 : *std::ranges::max_element(numbers);
  for (const std::int64_t number : numbers)  // before anything is as long as the last one says
    if (number < 0 || number >= kMostSlots)
      throw ShapeError("the row " + std::to_string(number) +
                       " was to be restored: there is none; a table has rows from 0 to less than " +
                       std::to_string(kMostSlots));
  if (last >= current_limit()) {
    need_movable(last + 1);
    rebuild(growth().grown_for(last + 1, storage_.capacity()), false, control, stream);
  }
  const std::vector<std::int64_t> free = rows_between(numbers, last + 1);

  View scalars = storage_.view();  // in which the numbers of rows are the values
  scalars.rows.bytes = 0;
  const InsertOrder order{keys, {rows, sizeof(std::int64_t), false}, Action::kKeep, false, nullptr};
  const std::uint64_t counts[] = {static_cast<std::uint64_t>(last + 1), free.size()};
  static_assert(offsetof(Control, free_rows) == offsetof(Control, next_row) + sizeof(std::uint64_t));
  const auto clear = [&] { turn.remake([&] { executor().clear(*context_, storage_.view(), stream); }); };
  clear();  // takes back rows that keys of before have left
  try {
    turn.change([&] {
      Room room;
      room.scattered = true;  // `scalars` is of the memory that there is
      for_each_part(order, room, stream, [&](const InsertOrder& part, std::int64_t) {
        executor().insert(*context_, scalars, part, stream);
      });
      context_->copy_from_host(&scalars.control->next_row, counts, sizeof counts, stream);
      if (!free.empty())
        context_->copy_from_host(scalars.rows.free, free.data(), free.size() * sizeof(std::int64_t), stream);
    });
    ledger_.note_change();
    const auto size = static_cast<std::int64_t>(read_control(stream).size);  // waits: what was copied may go
    if (size != keys.count)
      throw ShapeError("rows were to be restored of " + std::to_string(keys.count) + " keys, of which " +
                       std::to_string(keys.count - size) + " came twice");
  } catch (const std::exception&) {
    clear();
    read_control(stream);
    throw;
  }
}

template <class Key, class Value>
void HashTable<Key, Value>::apply_value_in(const Turn& turn, const Change& request, const Write& write) {
  const Stream stream = request.stream;
  const Action op = write.action;
  const ValueBatch values{write.values, value_bytes_, write.broadcast};
  ApplyOrder order{request.keys, values, op, *options_.value_dtype, options_.value_elements(), request.inserted};
  std::optional<WideBatch> wide;
  if (context_->is_host() && combines_in_float(order.dtype, op)) {
    wide.emplace(order.keys, stream);
    order.wide = wide->combine(values, op, order.dtype, order.elements);
  }
  if (turn.capturing() || !apply_counted(turn, order, stream)) apply_in(turn, order, stream);
}

template <class Key, class Value>
void HashTable<Key, Value>::apply_in(const Turn& turn, ApplyOrder& order, Stream stream) {
  Room room;
  if (turn.capturing())
    prepare_captured(order.keys);
  else
    room = prepare_room(
        order.keys, stream,
        [&]() -> std::unique_ptr<Plan> {
          if (options_.deterministic) return nullptr;
          return executor().plan_apply(*context_, storage_.view(), order, stream);
        },
        Grows::kWithin, &order);
  turn.change([&] {
    run_in(room, order, stream, [&](const ApplyOrder& whole) {
      for_each_part(whole, room, stream, [&](ApplyOrder part, std::int64_t) {
        part.slots = slots_for_insertion(room);
        ledger_.note_change();
        executor().apply(*context_, storage_.view(), part, stream);
      });
    });
  });
  if (!turn.capturing()) finish_insertion(room, order.keys.count, stream);
}

/// Counts the batch first, where that is faster. False: nothing has been done.
template <class Key, class Value>
bool HashTable<Key, Value>::apply_counted(const Turn& turn, ApplyOrder& order, Stream stream) {
  const std::int64_t n = order.keys.count;
  if (options_.has_rows() || !CountedBatch::may_be_made(*context_, order)) return false;
  if (room_made_ && room_made_->is_for(order.keys)) return false;  // the room is for these keys as they are
  const auto has_room = [&] {
    if (!has_known_room(n)) refresh(stream);
    return has_known_room(n);
  };
  const std::optional<CountedBatch> counted =
      CountedBatch::of(*context_, order, options_.deterministic, storage_.view().geometry.seeds.hash, has_room, stream);
  if (!counted) return false;
  ApplyOrder smaller = counted->order();
  begin_operation();  // a tenth of a second's work is done whole; an interruption of more leaves some keys, each whole
  apply_in(turn, smaller, stream);
  if (order.inserted != nullptr) counted->write_inserted(order.inserted);
  return true;
}

template <class Key, class Value>
void HashTable<Key, Value>::make_room(const KeyBatch& keys, bool expect_insertion, Stream stream) {
  if (keys.count == 0) return;
  const Turn turn(order_, stream);
  if (!turn.capturing()) make_room_in(keys, expect_insertion, stream);
}

template <class Key, class Value>
void HashTable<Key, Value>::make_room_in(const KeyBatch& keys, bool expect_insertion, Stream stream) {
  const std::int64_t bound = ledger_.bound();
  const Room room = prepare_room(keys, stream, [] { return std::unique_ptr<Plan>(); }, Grows::kBefore);
  if (expect_insertion && !room.unchecked) room_made_ = {keys.data, keys.count, ledger_.bound(), room.slots_before};
  ledger_.retract(bound);  // none of them is in yet
}

template <class Key, class Value>
bool HashTable<Key, Value>::has_room(std::int64_t keys) const {
  const auto lock = order_.lock();
  return has_known_room(keys);
}

/// As prepare_room(), for an insertion that runs whenever the captured graph is replayed.
template <class Key, class Value>
void HashTable<Key, Value>::prepare_captured(const KeyBatch& keys) {
  if (ledger_.bound() + keys.count > current_limit() && !fixed_)
    throw ShapeError("a batch of " + std::to_string(keys.count) +
                     " keys may not fit, and a table cannot grow while a " +
                     "CUDA graph is captured; call reserve() and len() before the capture");
  ledger_.expect(std::min(ledger_.bound() + keys.count, current_limit()));
  room_made_.reset();
  ledger_.note_captured_insertion();
  // When it is replayed: keys may have been erased before, or have been taken out again for want of a row.
  storage_.set_may_have_erased(true);
}

template <class Key, class Value>
std::int64_t HashTable<Key, Value>::erase(Span<const Erasure> requests) {
  for (const Erasure& request : requests) check_reads(options_, request.reads);
  std::int64_t missing = 0;
  in_turn(requests, [&](Turn& turn) {
    for_each_batch(turn, requests, [&](const Erasure& request) {
      if (!request.reads.empty() || request.all_or_none)
        missing += find_in({.keys = request.keys,
                            .reads = request.reads,
                            .count_missing = request.all_or_none,
                            .stream = request.stream});
    });
    if (missing == 0) for_each_batch(turn, requests, [&](const Erasure& request) { erase_in(turn, request); });
  });
  return missing;
}

template <class Key, class Value>
void HashTable<Key, Value>::erase_in(const Turn& turn, const Erasure& request) {
  storage_.set_may_have_erased(true);
  const KeyBatch& keys = request.keys;
  const Stream stream = request.stream;
  std::unique_ptr<Plan> plan;
  if (!turn.capturing())
    plan = executor().plan(*context_, storage_.view(), keys, ValueBatch{}, request.erased != nullptr, stream);
  turn.change([&] { executor().erase(*context_, storage_.view(), keys, request.erased, plan.get(), stream); });
}

template <class Key, class Value>
void HashTable<Key, Value>::clear(Stream stream) {
  const Turn turn(order_, stream, Turn::For::kClear);
  turn.remake([&] { executor().clear(*context_, storage_.view(), stream); });
  ledger_.note_change();
  if (turn.capturing()) return;  // nothing is cleared yet
  note_cleared();
}

/// All slots are as in a new table.
template <class Key, class Value>
void HashTable<Key, Value>::note_cleared() {
  ledger_.note_cleared();
  storage_.set_may_have_erased(order_.captured());  // a captured erasure may be replayed
}

template <class Key, class Value>
void HashTable<Key, Value>::reserve(std::int64_t keys, Stream stream) {
  if (keys < 0) throw ShapeError("reserve takes a number of keys, not " + std::to_string(keys));
  const Turn turn(order_, stream);
  const Control control = refresh(stream);
  if (keys <= current_limit()) return;
  need_movable(keys);
  rebuild(std::max(growth().slots_for(keys), storage_.capacity()), false, control, stream);
}

template <class Key, class Value>
void HashTable<Key, Value>::rehash(std::int64_t slots, bool compact_rows, Stream stream) {
  if (slots < 0) throw ShapeError("rehash takes a number of slots, not " + std::to_string(slots));
  const Turn turn(order_, stream);
  if (fixed_)
    throw ShapeError(
        "rehash was asked of a table whose memory compiled programs hold, so that it stays where it is: rehash a copy");
  const Control control = refresh(stream);
  const std::int64_t needed = growth().slots_for(static_cast<std::int64_t>(control.size));
  if (options_.max_capacity && slots > *options_.max_capacity)
    throw ShapeError("rehash to " + std::to_string(slots) + " slots was asked of a table whose max_capacity is " +
                     std::to_string(*options_.max_capacity));
  rebuild(std::max(slots, needed), compact_rows, control, stream);
}

template <class Key, class Value>
void HashTable<Key, Value>::fix_in_place(Stream stream) {
  const Turn turn(order_, stream);
  maintain(refresh(stream), stream);  // for the last time
  fixed_ = true;
  ledger_.set_worn(false);
  order_.expect_capture();
  storage_.lend(context_);  // a replay may be running when the table goes
  storage_.set_may_have_erased(true);
}

/// TableFullError where the table would have to be rebuilt for so many keys, and may not.
template <class Key, class Value>
void HashTable<Key, Value>::need_movable(std::int64_t keys) const {
  if (!fixed_) return;
  if (options_.max_capacity == storage_.capacity()) growth().slots_for(keys);  // throws where it could not grow anyway
  throw TableFullError("room for " + std::to_string(keys) + " keys was asked of a table that has some for " +
                       std::to_string(current_limit()) +
                       " and whose memory compiled programs hold, so that it stays where it is: erase keys, or use a "
                       "copy; reserve more before a program holds it");
}

template <class Key, class Value>
std::int64_t HashTable<Key, Value>::export_items(const Export& request) {
  check_reads(options_, request.reads);
  if (request.rows != nullptr) check_has_rows(options_);
  const Stream stream = request.stream;
  const Turn turn(order_, stream);
  const auto size = static_cast<std::int64_t>(refresh(stream).size);
  if (size > request.room || size == 0) return size;
  const bool reads_columns = !options_.columns.empty() && !request.reads.empty();
  Allocation memory;
  std::int64_t* rows = request.rows;
  if (reads_columns && rows == nullptr) {
    memory = Allocation(*context_, static_cast<std::size_t>(size) * sizeof(std::int64_t), stream);
    rows = memory.as<std::int64_t>();
  }
  void* const values = reads_columns || request.reads.empty() ? nullptr : request.reads.front().values;
  executor().export_items(*context_, storage_.view(), request.keys, options_.key_bytes(), values, value_bytes_, rows,
                          stream);
  if (reads_columns)
    executor().read_columns(*context_, storage_.view(), rows, size, columns_.reads(request.reads), stream);
  return size;
}

template <class Key, class Value>
RowStorage HashTable<Key, Value>::row_storage(Stream stream) {
  check_row_storage(options_);
  const Turn turn(order_, stream);
  const Control control = refresh(stream);
  storage_.rows()->lend(context_);
  const RowLayout layout = options_.columns.empty() ? RowLayout{{0}, row_bytes()} : place_columns(options_.columns);
  return {storage_.rows(), static_cast<std::int64_t>(control.next_row), storage_.view().rows.capacity, layout};
}

template <class Key, class Value>
void HashTable<Key, Value>::change_columns_in(const Turn& turn, const ColumnsOrder& order, Stream stream) {
  const KeyBatch& keys = order.keys;
  std::optional<WideBatch> wide_batch;
  std::vector<WideValues> wide(order.given.size());
  for (std::size_t c = 0; c < order.given.size(); ++c) {
    const ColumnChange& change = order.given[c];
    if (!context_->is_host() || !combines(change.action) || !combines_in_float(change.place.dtype, change.action))
      continue;
    if (!wide_batch) wide_batch.emplace(keys, stream);
    wide[c] = wide_batch->combine(change.values, change.action, change.place.dtype, change.place.elements);
  }
  Room room;
  if (turn.capturing())
    prepare_captured(keys);
  else
    room = prepare_room(keys, stream, [] { return std::unique_ptr<Plan>(); });
  ledger_.offer(keys.count);
  turn.change([&] {
    const auto change = [&](std::int64_t from, std::int64_t count, Stop* stop) {
      ColumnsOrder part = order;
      part.keys = slice(keys, from, count);
      part.drawn_from = slice(order.drawn_from, from, count);
      for (std::size_t c = 0; c < order.given.size(); ++c) {
        part.given[c].values = slice(order.given[c].values, from);
        part.given[c].wide = wide[c];
        part.given[c].wide.begin = from;
      }
      if (order.rows != nullptr) part.rows = order.rows + from;
      if (order.inserted != nullptr) part.inserted = order.inserted + from;
      part.stop = stop;
      ledger_.note_change();
      executor().change_columns(*context_, storage_.view(), part, stream);
    };
    for (std::int64_t from = 0; from < keys.count;) {
      Stop stop{std::min<std::int64_t>(tuning().most_batch_keys, keys.count - from)};
      const bool may_stop = stop.done >= tuning().least_watched_keys && may_scatter(room);
      change(from, stop.done, may_stop ? &stop : nullptr);
      if (may_stop && storage_.view().control->far_keys >= kManyFarKeys) {
        scatter(room, static_cast<std::int64_t>(stop.left.size()), keys.count - from - stop.done, stream);
        for_each_run(stop.left,
                     [&](std::int64_t first, std::int64_t length) { change(from + first, length, nullptr); });
      }
      from += stop.done;
    }
  });
  if (!turn.capturing()) finish_insertion(room, keys.count, stream);
}

template <class Key, class Value>
void HashTable<Key, Value>::read_rows(const std::int64_t* rows, std::int64_t count, Span<const Read> reads,
                                      Stream stream) {
  check_row_reads(options_, reads);
  if (count == 0) return;
  const Turn turn(order_, stream);
  executor().read_columns(*context_, storage_.view(), rows, count, columns_.reads(reads), stream);
}

template <class Key, class Value>
void HashTable<Key, Value>::pool_rows(const std::int64_t* rows, std::int64_t count, const Bags& bags, const Read& out,
                                      Stream stream) {
  check_pooled(options_, out);
  if (bags.count == 0) return;
  const Turn turn(order_, stream);
  context_->executors().row_optimizer->pool(*context_, storage_.view().rows,
                                            {rows, count, bags, columns_.reads(Span(&out, 1)).front()}, stream);
}

template <class Key, class Value>
void HashTable<Key, Value>::train(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
                                  const std::vector<std::size_t>& columns, const OptimizerStep& step, Stream stream) {
  check_trained(options_, columns, step, gradients);
  if (count == 0) return;
  const Turn turn(order_, stream);
  turn.change([&] {
    context_->executors().row_optimizer->train(*context_, storage_.view().rows,
                                               columns_.train_order(rows, count, gradients, columns, step), stream);
  });
}

template <class Key, class Value>
bool HashTable<Key, Value>::overlaps_rows(const MemoryRange& memory) const {
  if (!options_.has_rows()) return false;
  const auto lock = order_.lock();
  return are_rows(memory);
}

/// Under the lock, of a table with rows: is some of this memory its rows?
template <class Key, class Value>
bool HashTable<Key, Value>::are_rows(const MemoryRange& memory) const {
  return overlap(memory, {storage_.rows()->get(), static_cast<std::int64_t>(storage_.rows()->bytes())});
}

template <class Key, class Value>
std::shared_ptr<Table> HashTable<Key, Value>::clone(std::shared_ptr<DeviceContext> context, Stream stream) {
  const Turn turn(order_, stream);
  const Control control = refresh(stream);
  TableOptions options = options_;
  options.capacity = storage_.capacity();
  auto twin = std::make_shared<HashTable>(options, std::move(context), storage_.view().geometry);
  if (options_.has_rows() && twin->storage_.view().rows.capacity < storage_.view().rows.capacity) {
    twin->storage_.allocate_rows(*twin->context_, storage_.view().rows.capacity, row_bytes(), nullptr);
    twin->executor().clear(*twin->context_, twin->storage_.view(), nullptr);  // the new rows' tags, too
  }

  context_->synchronize(stream);
  DeviceContext& target = *twin->context_;
  const auto copy = [&](void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) target.copy_from(to, *context_, from, bytes, nullptr);
  };
  const View& from = storage_.view();
  const View& to = twin->storage_.view();
  copy(to.slots, from.slots, View::slot_bytes(from.geometry.bucket_count));
  copy(to.filters, from.filters, View::filter_bytes(from.geometry.bucket_count));
  copy(to.control, from.control, sizeof(Control));
  if (options_.has_rows()) {
    copy(to.rows.data, from.rows.data,
         static_cast<std::size_t>(control.next_row) * static_cast<std::size_t>(from.rows.bytes));
    copy(to.rows.free, from.rows.free, control.free_rows * sizeof(std::int64_t));
  }
  target.synchronize(nullptr);
  twin->order_.record(nullptr);
  twin->ledger_.note_copied(ledger_, static_cast<std::int64_t>(control.size));
  twin->storage_.set_may_have_erased(storage_.view().may_have_erased);
  return twin;
}

std::shared_ptr<Table> make_hash_table(const TableOptions& options, std::shared_ptr<DeviceContext> context) {
  // Beside a key lies its value or the number of its row.
  const std::size_t value_bytes =
      options.has_rows() ? sizeof(std::int64_t) : static_cast<std::size_t>(options.value_bytes());
  const bool has_values = options.value_dtype || !options.columns.empty();
  std::shared_ptr<Table> table;
  any_slot_type([&]<class Slot>(Slot) {
    if (!Slot::fits(options.key_bytes(), has_values ? &value_bytes : nullptr)) return false;
    table = std::make_shared<HashTable<typename Slot::Key, typename Slot::Value>>(options, std::move(context));
    return true;
  });
  return table;
}

}  // namespace gpuhash
