// The states of tables, as programs carry them.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <gpuhash/table.hpp>
#include "call.h"

namespace gpuhash::jax_ops {

/// What the u32 array of a state holds. Every call takes it and gives it back changed, which keeps calls in order.
struct Token {
  std::int64_t handle;    // of the table
  std::uint64_t chain;    // of the states that came, call by call, from one from_table()
  std::uint64_t version;  // calls so far in that chain
};

/// How far each chain of states has come: a call with an older state is an error, as it would be in no order with those
/// that came after. A table keeps its kChains chains that were used last, and states of older ones are errors, too.
class Chains {
 public:
  static Chains& all();

  /// A new chain's first state.
  Token begin(std::int64_t handle);
  /// The call that takes this state begins. StateError unless it is the chain's last one.
  void advance(const Token& token);
  /// That call has failed, and its table is as it was.
  void retreat(const Token& token) noexcept;

 private:
  static constexpr std::size_t kChains = 4096;  // per table, of some 100 bytes each

  struct Chain {
    std::uint64_t number;
    std::uint64_t version;
  };
  struct OfTable {
    std::list<Chain> by_use;  // the last one in front
    std::unordered_map<std::uint64_t, std::list<Chain>::iterator> by_number;
  };

  std::mutex mutex_;
  std::unordered_map<std::int64_t, OfTable> tables_;
  std::size_t swept_size_ = 64;  // of tables_, at which those of freed tables are dropped next
  std::uint64_t last_ = 0;
};

/// One call's use of a state: finds the table, and hands the state on.
///
/// On the host the array says it all. A GPU's memory cannot be read without waiting for the GPU; there `handles`, which
/// the program has as a constant, names the table of each GPU that the program may run on.
class Use {
 public:
  Use(const Place& place, ffi::Span<const std::int64_t> handles, const Operand& token, Output& next);
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  Table& table() const { return *table_; }
  /// The call has done its work.
  void finish() { finished_ = true; }

 private:
  Token token_{};
  bool counted_ = false;
  bool finished_ = false;
  std::shared_ptr<Table> table_;
};

}  // namespace gpuhash::jax_ops
