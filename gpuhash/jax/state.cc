#include "state.h"

#include <cstring>
#include <string>

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

/// Never destroyed: XLA's threads may run when the process ends.
Chains& Chains::all() {
  static auto* chains = new Chains;
  return *chains;
}

Token Chains::begin(std::int64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (tables_.size() >= swept_size_) {
    for (auto each = tables_.begin(); each != tables_.end();)
      each = table_of(each->first) == nullptr ? tables_.erase(each) : std::next(each);
    swept_size_ = std::max<std::size_t>(64, 2 * tables_.size());
  }
  OfTable& table = tables_[handle];
  table.by_use.push_front({++last_, 0});
  table.by_number.emplace(last_, table.by_use.begin());
  if (table.by_use.size() > kChains) {
    table.by_number.erase(table.by_use.back().number);
    table.by_use.pop_back();
  }
  return {handle, last_, 0};
}

void Chains::advance(const Token& token) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto table = tables_.find(token.handle);
  if (table == tables_.end()) throw_outdated();
  OfTable& chains = table->second;
  const auto chain = chains.by_number.find(token.chain);
  if (chain == chains.by_number.end() || chain->second->version != token.version) throw_outdated();
  ++chain->second->version;
  chains.by_use.splice(chains.by_use.begin(), chains.by_use, chain->second);
}

void Chains::retreat(const Token& token) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto table = tables_.find(token.handle);
  if (table == tables_.end()) return;
  const auto chain = table->second.by_number.find(token.chain);
  if (chain != table->second.by_number.end() && chain->second->version == token.version + 1) --chain->second->version;
}

Use::Use(const Place& place, ffi::Span<const std::int64_t> handles, const Operand& token, Output& next) {
  if (token.size_bytes() != sizeof(Token) || next->size_bytes() != sizeof(Token))
    throw ShapeError("a state of " + std::to_string(token.size_bytes()) + " bytes was given, expected one of " +
                     std::to_string(sizeof(Token)) + ": give a state of one table, or call it in jax.shard_map");
  const bool on_host = place.device.platform == "cpu";
  if (on_host != (handles.size() == 0))
    throw ShapeError("the state is of a table on " + std::string(on_host ? "a GPU" : "the host") +
                     ", and the program runs on " + place.device.to_string() + ": run it where the table is");
  if (on_host) {
    std::memcpy(&token_, token.untyped_data(), sizeof token_);
    table_ = need_table(token_.handle);
  } else {
    for (const std::int64_t handle : handles) {
      std::shared_ptr<Table> table = need_table(handle);
      if (table->context().device() == place.device) table_ = std::move(table);
    }
  }
  if (table_ == nullptr || !(table_->context().device() == place.device))
    throw ShapeError("the program runs on " + place.device.to_string() + ", where the state has no table");
  if (!on_host) {
    if (next->untyped_data() != token.untyped_data())
      table_->context().copy(next->untyped_data(), token.untyped_data(), sizeof token_, place.stream);
    return;
  }
  Chains::all().advance(token_);
  counted_ = true;
  const Token after{token_.handle, token_.chain, token_.version + 1};
  std::memcpy(next->untyped_data(), &after, sizeof after);
}

Use::~Use() {
  if (counted_ && !finished_) Chains::all().retreat(token_);
}

}  // namespace gpuhash::jax_ops

/// The first state of a table's new chain: three 64-bit numbers, as in Token.
extern "C" __attribute__((visibility("default"))) void gpuhash_jax_begin(std::int64_t handle, void* token) {
  const gpuhash::jax_ops::Token first = gpuhash::jax_ops::Chains::all().begin(handle);
  std::memcpy(token, &first, sizeof first);
}
