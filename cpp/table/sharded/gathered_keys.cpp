#include "table/sharded/gathered_keys.hpp"

#include <gpuhash/error.hpp>

namespace gpuhash {

GatheredKeys::GatheredKeys(const std::deque<SplitBatch>& batches, std::size_t shard)
    : context_(batches.front().table(shard).context()) {
  std::int64_t count = 0;
  for (const SplitBatch& batch : batches) {
    firsts_.push_back(count);
    count += batch.count(shard);
  }
  const KeyBatch first = batches.front().keys(shard);
  memory_ = Allocation(context_, static_cast<std::size_t>(count * first.bytes), stream());
  all_ = {memory_.get(), count, first.bytes};
  fence_ = context_.make_fence();
  fence_->record(stream());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const KeyBatch keys = batches[i].keys(shard);
    if (keys.count == 0) continue;
    const Stream there = batches[i].stream(shard);
    fence_->wait(there);
    readers_.push_back(there);
    context_.copy(const_cast<void*>(of(i, keys.count).data), keys.data,
                  static_cast<std::size_t>(keys.count * keys.bytes), there);
  }
  follow_readers();
}

GatheredKeys::~GatheredKeys() {
  try {
    follow_readers();  // the memory goes back in the order of its stream
  } catch (const CudaError&) {
    report_ignored_error("ending a call on a table of several shards");
  }
}

void GatheredKeys::follow_readers() {
  for (const Stream reader : readers_) {
    fence_->record(reader);
    fence_->wait(stream());
  }
}

}  // namespace gpuhash
