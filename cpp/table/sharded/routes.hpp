#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gpuhash/device_context.hpp>
#include <gpuhash/table.hpp>
#include "core/fork_safe_mutex.hpp"
#include "table/splitter.hpp"

namespace gpuhash {

/// What all views of one sharded table share.
struct Shards {
  std::vector<std::shared_ptr<Table>> tables;
  std::vector<std::shared_ptr<DeviceContext>> contexts;  // of each shard
  TableOptions options;                                  // of the whole
  std::uint64_t seed = 0;                                // of the owners
  ForkSafeMutex mutex;                                   // one call after the other, in one order on all shards
};

/// How one device gets to a shard.
struct Route {
  Table* shard;
  DeviceContext* context;
  bool local;                        // the shard is on this device
  bool direct;                       // work on the shard's device can write to the memory here
  std::unique_ptr<Fence> returning;  // recorded there, for streams here; null where it is local

  /// Where the shard's work for a call goes, whose own stream is given.
  Stream stream(Stream call) const { return local ? call : context->own_stream(); }
};

/// The routes from one device to all shards and back. This device is the *origin* of calls: their arrays lie there.
/// Work at a shard on the origin is in the order of the call's stream. Work at any other shard is in the order of the
/// stream of that shard's device, which follows the call's stream, and the call's stream follows it.
class Routes {
 public:
  Routes(std::shared_ptr<Shards> shards, std::shared_ptr<DeviceContext> origin);

  const std::shared_ptr<Shards>& shards() const { return shards_; }
  const std::shared_ptr<DeviceContext>& origin() const { return origin_; }

  std::size_t size() const { return routes_.size(); }
  const Route& operator[](std::size_t shard) const { return routes_[shard]; }

  /// The shards' streams follow that of the call.
  void leave(Stream call) const;
  /// The stream of the call follows all that the shards' streams have to do.
  void come_back(Stream call) const;
  /// The stream of the call follows what the shards' streams had to do when each `returning` was recorded.
  void follow(Stream call) const;
  /// Calls body(route, stream, number) for one shard after the other. Each has the call's work before it, and the call
  /// goes on after it.
  template <class Body>
  void in_order(Stream call, Body body) const;

  /// Where the origin's device says how many keys each shard gets, and what a sample of the keys showed. They serve one
  /// call at a time.
  CountsMailbox& counts() { return counts_; }
  CountsMailbox& samples() { return samples_; }

 private:
  std::shared_ptr<Shards> shards_;
  std::shared_ptr<DeviceContext> origin_;
  CountsMailbox counts_;
  CountsMailbox samples_;
  std::unique_ptr<Fence> leaving_;  // recorded here, for the shards' streams; null where all are local
  std::vector<Route> routes_;
};

template <class Body>
void Routes::in_order(Stream call, Body body) const {
  for (std::size_t number = 0; number < routes_.size(); ++number) {
    const Route& route = routes_[number];
    const Stream there = route.stream(call);
    if (!route.local) {
      leaving_->record(call);
      leaving_->wait_on(route.context->device(), there);
    }
    body(route, there, number);
    if (!route.local) {
      route.returning->record(there);
      route.returning->wait_on(origin_->device(), call);
    }
  }
}

}  // namespace gpuhash
