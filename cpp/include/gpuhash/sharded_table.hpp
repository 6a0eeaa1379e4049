#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <gpuhash/export.hpp>
#include <gpuhash/table.hpp>

namespace gpuhash {

/// One table over several devices of a platform: a table of its own on each, its *shard*, and each key in the one that
/// a hash of it picks. Row numbers have the shard's number above their 40 lower bits.
///
/// A ShardedTable is the table as seen from one of its devices: that is where a call's arrays lie. at() gives it as
/// seen from another one. Calls are ordered across all of them; what is done with a shard by itself is no call of the
/// whole table, and may come in the middle of one. The calls of Table differ in this:
///
///   - Calls on GPUs wait until it is known how many of the keys belong to each shard.
///   - Each shard grows alone, and is full alone: of capacity, max_capacity and reserve() each has an equal part.
///   - Before an insertion each shard makes room for its keys. What fails after that, such as a launch, or memory for
///     scratch, may leave the keys of some shards inserted; so may what fails while values are read afterwards.
///   - Requests may lie on several devices of the table (their `view`), which then work side by side. Of a key that
///     comes several times one whole value stays, in a deterministic table that of the last (the first) request.
///   - They cannot be captured into CUDA graphs, nor fixed in place, and the rows of one shard are that table's.
class GPUHASH_API ShardedTable : public Table {
 public:
  /// One shard per context; the arrays of calls lie on the device of the first. Throws ShapeError for no contexts, too
  /// many, and contexts of several platforms.
  static std::shared_ptr<ShardedTable> make(const TableOptions& options,
                                            std::vector<std::shared_ptr<DeviceContext>> contexts);

  virtual const std::vector<std::shared_ptr<Table>>& shards() const = 0;
  /// Of the hash that picks each key's shard.
  virtual std::uint64_t owner_seed() const = 0;
  /// The same table for arrays on another of its devices. Throws ShapeError where no shard is there.
  virtual std::shared_ptr<ShardedTable> at(const Device& device) = 0;
};

}  // namespace gpuhash
