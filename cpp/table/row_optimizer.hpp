#pragma once

#include <array>
#include <cstdint>

#include <gpuhash/device_context.hpp>
#include <gpuhash/optimizer.hpp>
#include "shared/layout.hpp"
#include "table/orders.hpp"

namespace gpuhash {

/// A step of an optimizer on rows of storage.
struct TrainOrder {
  const std::int64_t* rows;  // [n], numbers; those that are no row's are passed over
  std::int64_t count;
  Gradients gradients;  // of one row's duplicates they are summed, in the order of the batch, or in another fixed one
  ColumnPlace weights;  // kFloat32 or kBFloat16
  std::array<ColumnPlace, 2> states;  // as state_columns() says: kFloat32, as many elements, or one
  OptimizerStep step;
};

/// Sums of rows by bags.
struct PoolOrder {
  const std::int64_t* rows;  // [n], numbers; for those that are no row's the fallback is added
  std::int64_t count;
  Bags bags;
  ColumnRead column;  // kFloat32 or kBFloat16; values [bags, elements], one fallback for all
};

/// Trains rows and sums them up, on one platform.
class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;
  /// Takes scratch memory before it changes anything.
  virtual void train(DeviceContext& context, const RowView& rows, const TrainOrder& order, Stream stream) const = 0;
  virtual void pool(DeviceContext& context, const RowView& rows, const PoolOrder& order, Stream stream) const = 0;
};

}  // namespace gpuhash
