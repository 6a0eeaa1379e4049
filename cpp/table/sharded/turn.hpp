#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <gpuhash/device_context.hpp>
#include "core/fork_safe_mutex.hpp"
#include "table/call_order.hpp"
#include "table/sharded/routes.hpp"

namespace gpuhash {

/// One call's turn at a sharded table, as seen from one device and at all shards.
class ShardedTurn {
 public:
  /// The order is that of calls from the routes' origin.
  ShardedTurn(CallOrder& order, const Routes& routes, Stream stream);
  ~ShardedTurn();
  ShardedTurn(const ShardedTurn&) = delete;
  ShardedTurn& operator=(const ShardedTurn&) = delete;

  /// The call has work on this stream, too.
  void join(Stream stream);
  /// To be called once, in one of the turns of a call, when the turns from all devices that take part have begun.
  void lock_all() { all_.lock(); }

 private:
  void follow(Stream stream, Stream other);

  CallOrder::Turn here_;
  std::unique_lock<ForkSafeMutex> all_;
  DeviceContext& origin_;
  Stream stream_;
  std::unique_ptr<Fence> fence_;  // null: there is but one stream
  std::vector<Stream> others_;
};

}  // namespace gpuhash
