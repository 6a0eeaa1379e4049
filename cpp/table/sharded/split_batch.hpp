#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <gpuhash/device_context.hpp>
#include <gpuhash/requests.hpp>
#include <gpuhash/span.hpp>
#include "table/sharded/routes.hpp"
#include "table/splitter.hpp"

namespace gpuhash {

/// One batch of a call on its way: split, sent to the shards, answered, and back in the order of the keys.
///
/// What a shard works on lies in its own memory, and it works in the order of a stream on its device (`Routes`).
class SplitBatch {
 public:
  /// To be followed by expect(), begin() and send(). Nothing is enqueued before. The columns written are read in
  /// begin().
  SplitBatch(Routes& routes, const KeyBatch& keys, Span<const Write> writes, Stream stream);
  SplitBatch(const SplitBatch&) = delete;
  SplitBatch& operator=(const SplitBatch&) = delete;
  /// Memory goes back in the order of the stream that it is from. Where the call was broken off, others may be at it.
  ~SplitBatch();

  /// Answers of one kind: `bytes` for each key.
  struct Answers {
    std::int64_t bytes = 0;
    bool written_directly = false;
    Allocation origin;               // [n, bytes], in the owners' order
    std::vector<Allocation> remote;  // where the shard cannot write to `origin`
  };

  /// Before begin(). The batch keeps them: others may be writing to them when the call is broken off.
  Answers* expect(std::int64_t bytes, bool written_directly);
  /// Before begin(). Of a batch of `least` keys or more, of up to 16 bytes, all of one hot key may become one here.
  /// reduction: what the batch does to the values of a key, if it has any.
  void allow_merging(std::int64_t least, const std::optional<Reduction>& reduction = {});

  /// The keys are split. Waits until it is known which shard gets how many.
  void begin();
  /// Copies go to the shards that are elsewhere. They wait for nothing that was enqueued after begin().
  void send();
  /// The stream of the call follows what it has to: the work of all shards, where answers are expected, and else the
  /// copies that were sent. Answers that lie elsewhere are fetched.
  void finish();

  std::size_t shards() const { return parcels_.size(); }
  const Device& device(std::size_t shard) const { return routes_[shard].context->device(); }
  bool is_local(std::size_t shard) const { return routes_[shard].local; }
  Table& table(std::size_t shard) const { return *routes_[shard].shard; }
  Stream stream(std::size_t shard) const { return routes_[shard].stream(stream_); }
  Stream stream() const { return stream_; }

  /// These are known when the batch has begun, and where a shard finds what it works on, when the batch has been sent.
  const Split& split() const { return *split_; }
  std::int64_t count(std::size_t shard) const { return split_->counts()[shard]; }
  KeyBatch keys(std::size_t shard) const { return {parcels_[shard].keys, count(shard), keys_.bytes}; }
  std::vector<Write> writes(std::size_t shard) const;
  /// Where the shard writes its answers; null where none are expected.
  void* of(const Answers* answers, std::size_t shard) const;

  Routes& routes() const { return routes_; }
  const TableOptions& options() const { return routes_.shards()->options; }
  bool may_be_launched_apart() const { return !routes_.origin()->is_host() && routes_.origin()->is_shared(stream_); }
  /// The same keys once more, for what wants to know of each key; to be begun when this batch is done.
  SplitBatch again() const { return SplitBatch(routes_, keys_, {}, stream_); }

 private:
  struct Parcel {
    void* keys = nullptr;
    std::vector<void*> columns;      // the values of each column that is written
    std::vector<Allocation> memory;  // on the shard's device
  };

  /// Per value of the column that is written as the c-th.
  std::int64_t bytes(std::size_t c) const { return options().column_bytes(writes_[c].column); }
  /// Memory here, for n items.
  Allocation allocate(std::int64_t bytes) const {
    return Allocation(*routes_.origin(), static_cast<std::size_t>(keys_.count * bytes), stream_);
  }
  void* part_of(const Allocation& items, std::int64_t bytes, std::size_t shard) const {
    return items.as<char>() + split_->offsets()[shard] * bytes;
  }
  void keep_from_rows(std::size_t c);
  void* column_of(std::size_t c, std::size_t shard) const;
  void* deliver(std::size_t shard, void* from, std::int64_t bytes);

  const int exceptions_ = std::uncaught_exceptions();
  Routes& routes_;
  KeyBatch keys_;
  std::vector<Write> writes_;
  Stream stream_;
  std::int64_t least_to_merge_ = std::numeric_limits<std::int64_t>::max();
  std::optional<Reduction> reduction_;
  Allocation sorted_keys_;                  // [n, bytes], in the owners' order
  std::vector<Allocation> sorted_columns_;  // likewise, where each key has a value
  std::unique_ptr<Split> split_;
  std::vector<Parcel> parcels_;
  std::deque<Answers> answers_;
};

}  // namespace gpuhash
