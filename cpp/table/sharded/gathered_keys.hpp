#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <gpuhash/device_context.hpp>
#include <gpuhash/requests.hpp>
#include "table/sharded/split_batch.hpp"

namespace gpuhash {

/// The keys of several batches that belong to one shard, one batch's behind the other's, in the shard's memory.
class GatheredKeys {
 public:
  GatheredKeys(const std::deque<SplitBatch>& batches, std::size_t shard);
  ~GatheredKeys();
  GatheredKeys(const GatheredKeys&) = delete;
  GatheredKeys& operator=(const GatheredKeys&) = delete;

  Stream stream() const { return context_.own_stream(); }
  const KeyBatch& all() const { return all_; }
  /// Those of one batch, which are `count`.
  KeyBatch of(std::size_t batch, std::int64_t count) const {
    return {static_cast<const char*>(all_.data) + firsts_[batch] * all_.bytes, count, all_.bytes};
  }

 private:
  void follow_readers();

  DeviceContext& context_;
  std::vector<std::int64_t> firsts_;  // [batches]
  Allocation memory_;
  KeyBatch all_{};
  std::unique_ptr<Fence> fence_;
  std::vector<Stream> readers_;  // of the batches
};

}  // namespace gpuhash
