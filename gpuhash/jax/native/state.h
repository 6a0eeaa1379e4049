// The states of tables, as programs carry them.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <gpuhash/call_chain.hpp>
#include <gpuhash/table.hpp>
#include "call.h"

namespace gpuhash::jax_ops {

/// What the u32 array of a state holds. Every call takes it and gives it back changed, which keeps calls in order. Its
/// owner is the table, by its handle, and its chain is of the states that came, call by call, from one from_table().
using Token = ChainState;

/// A new chain's first state.
Token begin_chain(std::int64_t handle);

/// How far each chain of states on the host has come: a call with an older state is an error, as it would be in no
/// order with those that came after. A table keeps its kChains chains that were used last, and states of older ones are
/// errors, too.
class Chains {
 public:
  static Chains& all();

  void begin(const Token& token);
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
};

/// The same on a GPU, whose memory the host does not read: the GPU counts and compares, in the order of its work, and
/// the next call on the table that the host hears of, and that is not being recorded, throws. The last kChains chains
/// of the device are looked after.
class GpuChains {
 public:
  static GpuChains& of(const Device& device);

  /// The step of a call on this table, to which `next` is the state after it.
  ChainStep step(std::int64_t handle, const void* taken, void* next) const;
  /// StateError, once, where a call has taken a state of this table that another one had taken before.
  void check(std::int64_t handle);

 private:
  explicit GpuChains(const Device& device);

  static constexpr std::uint64_t kChains = std::uint64_t{1} << 16;
  static constexpr std::size_t kMailboxes = 4096;  // of tables; two may have the same, which holds one's handle

  std::int64_t* mailbox(std::int64_t handle) const;

  std::shared_ptr<DeviceContext> context_;
  Allocation counters_;
  std::shared_ptr<void> mailboxes_;
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
  /// The step of a call on a GPU, for work that makes it on the way; none on the host.
  ChainStep hand_on_step();
  /// The call has done its work.
  void finish();

 private:
  Token token_{};  // on the host
  bool counted_ = false;
  bool finished_ = false;
  std::shared_ptr<Table> table_;
  // On a GPU:
  ChainStep step_;
  Stream stream_ = nullptr;
};

}  // namespace gpuhash::jax_ops
