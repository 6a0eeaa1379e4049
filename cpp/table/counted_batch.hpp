#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <gpuhash/device_context.hpp>
#include <gpuhash/factorization.hpp>
#include "table/orders.hpp"

namespace gpuhash {

/// On the host, where one value goes to a batch of rather few distinct keys: they are counted first, as unique() counts
/// them, and each comes to the table once, with the value as many times: roughly in the order of its buckets, or, in a
/// deterministic table, of first occurrence.
class CountedBatch {
 public:
  /// Of which batches there may be one; what is left is to look at their keys.
  static bool may_be_made(const DeviceContext& context, const ApplyOrder& order);

  /// Nothing where the batch goes to the table faster as it is, or there is no memory. The order's keys then have the
  /// estimate of distinct ones that was made. has_room(): does the table know that all keys have room? Asked once it
  /// matters. seed: the table's, in whose order the keys come, if it is not deterministic.
  static std::optional<CountedBatch> of(DeviceContext& context, ApplyOrder& order, bool deterministic,
                                        std::uint64_t seed, const std::function<bool()>& has_room, Stream stream);

  /// The smaller batch, for the table. Its `inserted` is null if the caller's is.
  const ApplyOrder& order() const { return order_; }
  /// Once the table has taken the smaller batch: which keys of the batch were new, at their first positions.
  void write_inserted(bool* inserted) const;

 private:
  CountedBatch(DeviceContext& context, const ApplyOrder& order, std::unique_ptr<Factorization> batch, Stream stream);

  ApplyOrder order_;
  std::int64_t count_;  // keys of the batch
  std::unique_ptr<Factorization> batch_;
  Allocation keys_, times_, firsts_, wide_values_, inserted_;
};

}  // namespace gpuhash
