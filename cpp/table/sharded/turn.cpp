#include "table/sharded/turn.hpp"

#include <algorithm>

#include <gpuhash/error.hpp>

namespace gpuhash {
namespace {

/// A call waits for those of the shards. It must not wait within one of them: another thread's may wait for that one.
CallOrder& checked(CallOrder& order, const Routes& routes) {
  if (locks_held() != 0)
    for (const auto& shard : routes.shards()->tables)
      if (shard->is_in_call_here()) throw_in_call();
  return order;
}

void check_capture(bool capturing) {
  if (capturing)
    throw ShapeError(
        "a call on a table of several shards was made while a CUDA graph is captured: it waits to learn how many "
        "keys belong to each shard, which a graph cannot; call it outside of the capture");
}

}  // namespace

ShardedTurn::ShardedTurn(CallOrder& order, const Routes& routes, Stream stream)
    : here_(checked(order, routes), stream),
      all_(routes.shards()->mutex, std::defer_lock),
      origin_(*routes.origin()),
      stream_(stream) {
  check_capture(here_.capturing());
}

ShardedTurn::~ShardedTurn() {
  try {
    for (const Stream other : others_) follow(stream_, other);
  } catch (const CudaError&) {
    report_ignored_error("ending a call on a table of several shards");
  }
}

void ShardedTurn::join(Stream stream) {
  if (stream == stream_ || std::ranges::find(others_, stream) != others_.end()) return;
  check_capture(origin_.is_capturing(stream));
  if (fence_ == nullptr) fence_ = origin_.make_fence();
  follow(stream, stream_);
  others_.push_back(stream);
}

void ShardedTurn::follow(Stream stream, Stream other) {
  fence_->record(other);
  fence_->wait(stream);
}

}  // namespace gpuhash
