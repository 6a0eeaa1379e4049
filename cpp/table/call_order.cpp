#include "table/call_order.hpp"

#include <utility>

#include "core/interruption.hpp"

namespace gpuhash {

Stream CallOrder::stream_after_all() {
  if (unfenced_) context_.synchronize_all();
  const Stream stream = context_.own_stream();
  fence_->wait(stream);
  return stream;
}

std::unique_lock<ForkSafeMutex> CallOrder::Turn::lock(const CallOrder& order) {
  let_fork_pass();
  return order.lock();
}

CallOrder::Turn::Turn(CallOrder& order, Stream stream, For call)
    : order_(order), lock_(lock(order)), stream_(stream), capturing_(order.context_.is_capturing(stream)) {
  begin_operation();
  if (order.broken_ && call != For::kClear)
    throw CudaError(
        "a CUDA error has broken off an earlier change of this table, so what it holds is not known; clear() it and "
        "insert again");
  // A capturing stream cannot wait for work outside its graph; whoever captures synchronizes before (torch does).
  if (capturing_) {
    order.captured_ = true;
    return;
  }
  if (std::exchange(order.unfenced_, false)) order.context_.synchronize_all();
  const std::uint64_t id = order.context_.stream_id(stream);
  if (order.last_stream_ != id) order.fence_->wait(stream);
  order.last_stream_ = id;
}

void CallOrder::Turn::go_on(Stream stream) {
  if (stream == stream_) return;
  if (capturing_ || order_.context_.is_capturing(stream))
    throw ShapeError(
        "a call with batches on several streams was made while a CUDA graph is captured; give all of them on one "
        "stream");
  order_.fence_->record(stream_);
  order_.fence_->wait(stream);
  order_.last_stream_ = order_.context_.stream_id(stream);
  stream_ = stream;
}

CallOrder::Turn::~Turn() {
  if (capturing_) return;
  try {
    order_.fence_->record(stream_);
  } catch (const CudaError&) {
    // A stream that no longer takes work fails every later call in the open, too; a destructor cannot. The next call
    // waits for all that may have got through.
    order_.last_stream_.reset();
    order_.unfenced_ = true;
  }
}

}  // namespace gpuhash
