#include "state.h"

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include <gpuhash/handles.hpp>

namespace gpuhash::jax_ops {
namespace {

[[noreturn]] void throw_outdated() {
  throw StateError(
      "this state of a table was used before, by a call whose result is another state: use the state that each call "
      "returns, once, or make a new one by gpuhash.jax.from_table(table)");
}

std::shared_ptr<Table> need_table(std::int64_t handle) {
  std::shared_ptr<Table> table = table_of(handle);
  if (table == nullptr)
    throw StateError(
        "the table of this state has been freed, or has given up its name: keep the table as long as its states, and "
        "make a new state by gpuhash.jax.from_table(table)");
  return table;
}

}  // namespace

Token begin_chain(std::int64_t handle) {
  static std::atomic<std::uint64_t> last{0};
  return {handle, ++last, 0};
}

/// Never destroyed: XLA's threads may run when the process ends.
Chains& Chains::all() {
  static auto* chains = new Chains;
  return *chains;
}

void Chains::begin(const Token& token) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (tables_.size() >= swept_size_) {
    for (auto each = tables_.begin(); each != tables_.end();)
      each = table_of(each->first) == nullptr ? tables_.erase(each) : std::next(each);
    swept_size_ = std::max<std::size_t>(64, 2 * tables_.size());
  }
  OfTable& table = tables_[token.owner];
  table.by_use.push_front({token.chain, token.version});
  table.by_number.emplace(token.chain, table.by_use.begin());
  if (table.by_use.size() > kChains) {
    table.by_number.erase(table.by_use.back().number);
    table.by_use.pop_back();
  }
}

void Chains::advance(const Token& token) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto table = tables_.find(token.owner);
  if (table == tables_.end()) throw_outdated();
  OfTable& chains = table->second;
  const auto chain = chains.by_number.find(token.chain);
  if (chain == chains.by_number.end() || chain->second->version != token.version) throw_outdated();
  ++chain->second->version;
  chains.by_use.splice(chains.by_use.begin(), chains.by_use, chain->second);
}

void Chains::retreat(const Token& token) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto table = tables_.find(token.owner);
  if (table == tables_.end()) return;
  const auto chain = table->second.by_number.find(token.chain);
  if (chain != table->second.by_number.end() && chain->second->version == token.version + 1) --chain->second->version;
}

/// Never destroyed, either.
GpuChains& GpuChains::of(const Device& device) {
  static std::mutex mutex;
  static auto* chains = new std::map<int, std::unique_ptr<GpuChains>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<GpuChains>& found = (*chains)[device.index];
  if (found == nullptr) found.reset(new GpuChains(device));
  return *found;
}

GpuChains::GpuChains(const Device& device)
    : context_(platform(device.platform).make_context(device.index, nullptr)),
      mailboxes_(context_->make_mailbox(kMailboxes * sizeof(std::int64_t))) {
  const Stream stream = context_->own_stream();
  counters_ = Allocation(*context_, kChains * sizeof(ChainCounter), stream);
  context_->fill(counters_.get(), 0, counters_.bytes(), stream);
  context_->synchronize(stream);
}

std::int64_t* GpuChains::mailbox(std::int64_t handle) const {
  return static_cast<std::int64_t*>(mailboxes_.get()) + static_cast<std::size_t>(handle) % kMailboxes;
}

ChainStep GpuChains::step(std::int64_t handle, const void* taken, void* next) const {
  ChainStep step;
  step.taken = static_cast<const Token*>(taken);
  step.next = static_cast<Token*>(next);
  step.counters = counters_.as<ChainCounter>();
  step.count = kChains;
  step.misused_by = mailbox(handle);
  return step;
}

void GpuChains::check(std::int64_t handle) {
  std::int64_t* const box = mailbox(handle);
  if (*static_cast<volatile std::int64_t*>(box) != handle) return;
  *static_cast<volatile std::int64_t*>(box) = 0;
  throw StateError(
      "a call that ran before has used a state of this table which another call had used already, so that the two were "
      "in no order: use the state that each call returns, once, and make a new one by gpuhash.jax.from_table(table)");
}

Use::Use(const Place& place, ffi::Span<const std::int64_t> handles, const Operand& token, Output& next) {
  if (token.size_bytes() != sizeof(Token) || next->size_bytes() != sizeof(Token))
    throw ShapeError("a state of " + std::to_string(token.size_bytes()) + " bytes was given, expected one of " +
                     std::to_string(sizeof(Token)) + ": give a state of one table, or call it in jax.shard_map");
  const bool on_host = place.device.platform == "cpu";
  std::int64_t mine = 0;
  if (on_host != (handles.size() == 0))
    throw ShapeError("the state is of a table on " + std::string(on_host ? "a GPU" : "the host") +
                     ", and the program runs on " + place.device.to_string() + ": run it where the table is");
  if (on_host) {
    std::memcpy(&token_, token.untyped_data(), sizeof token_);
    table_ = need_table(token_.owner);
  } else {
    for (const std::int64_t handle : handles) {
      std::shared_ptr<Table> table = need_table(handle);
      if (!(table->context().device() == place.device)) continue;
      table_ = std::move(table);
      mine = handle;
    }
  }
  if (table_ == nullptr || !(table_->context().device() == place.device))
    throw ShapeError("the program runs on " + place.device.to_string() + ", where the state has no table");
  if (on_host) {
    Chains::all().advance(token_);
    counted_ = true;
    const Token after{token_.owner, token_.chain, token_.version + 1};
    std::memcpy(next->untyped_data(), &after, sizeof after);
    return;
  }
  GpuChains& chains = GpuChains::of(place.device);
  // Not while XLA records a command buffer, whose recording must not fail: XLA takes the addresses of the arrays for
  // recorded before they are, and would replay what it had with addresses of an earlier run. Who asks next is told.
  if (!table_->context().is_capturing(place.stream)) chains.check(mine);
  step_ = chains.step(mine, token.untyped_data(), next->untyped_data());
  stream_ = place.stream;
}

ChainStep Use::hand_on_step() { return std::exchange(step_, {}); }

void Use::finish() {
  if (step_.taken != nullptr) table_->context().advance(step_, stream_);
  finished_ = true;
}

Use::~Use() {
  if (counted_ && !finished_) Chains::all().retreat(token_);
}

}  // namespace gpuhash::jax_ops

namespace {

/// Null, or the message of what was thrown, which the caller frees.
template <class Work>
char* message_of(Work&& work) {
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    return strdup(error.what());
  }
}

}  // namespace

/// The first state of a table's new chain: three 64-bit numbers, as in Token.
extern "C" __attribute__((visibility("default"))) char* gpuhash_jax_begin(std::int64_t handle, void* token) {
  using namespace gpuhash::jax_ops;
  return message_of([&] {
    const Token first = begin_chain(handle);
    if (need_table(handle)->context().is_host()) Chains::all().begin(first);
    std::memcpy(token, &first, sizeof first);
  });
}

/// Were the states of a table used once each, as far as is known?
extern "C" __attribute__((visibility("default"))) char* gpuhash_jax_check(std::int64_t handle) {
  using namespace gpuhash::jax_ops;
  return message_of([&] {
    const gpuhash::DeviceContext& context = need_table(handle)->context();
    if (!context.is_host()) GpuChains::of(context.device()).check(handle);
  });
}
