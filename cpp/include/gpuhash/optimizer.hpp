#pragma once

#include <cstddef>
#include <cstdint>

#include <gpuhash/dtype.hpp>

/// Training rows of a table: what an optimizer makes of gradients, and bags of rows.
namespace gpuhash {

/// Each keeps what it needs beside the weights, in columns of float32:
enum class Optimizer : std::uint8_t {
  kSgd,             // nothing
  kAdagrad,         // of each weight the sum of its squared gradients
  kRowWiseAdagrad,  // of each row the sum over its gradients' mean squares
  kAdam,            // of each weight the running means of its gradient and of its square
  kLamb,            // likewise
};

/// Columns beside the weights.
constexpr std::size_t state_columns(Optimizer optimizer) {
  return optimizer == Optimizer::kSgd ? 0 : optimizer >= Optimizer::kAdam ? 2 : 1;
}

/// Weights that a row may have for optimizers that look at whole rows, kRowWiseAdagrad and kLamb.
inline constexpr std::int64_t kMostOfRow = 1024;

/// One step on the rows of a batch. All other rows stay as they are: as those of PyTorch's optimizers with sparse
/// gradients, running means only move in rows that have a gradient.
struct OptimizerStep {
  Optimizer optimizer = Optimizer::kSgd;
  double learning_rate = 0;
  double beta1 = 0;  // how much of the running means stays
  double beta2 = 0;
  double epsilon = 0;       // beside the root that a step is divided by
  double weight_decay = 0;  // times the weight is added to its gradient, by kLamb to its direction
  std::int64_t number = 1;  // of the step, from 1: means begin at zero, and are corrected for that
  /// Weights of bfloat16 are rounded up as often as they lie near the upper neighbour, by numbers drawn with this seed
  /// for this step; otherwise to the nearest.
  bool stochastic_rounding = false;
  std::uint64_t seed = 0;
};

/// Positions of a batch whose rows are summed up: bag b has [offsets[b], offsets[b + 1]).
struct Bags {
  const std::int64_t* offsets;  // [count + 1], ascending from 0 to the batch's positions
  std::int64_t count;
  const float* factors;  // [n]: by which each row is multiplied; null: 1
};

/// Gradients of the rows of a batch.
struct Gradients {
  const void* data;             // [items, elements of a row's weights], dense
  DType dtype;                  // kFloat32 or kBFloat16
  const std::int64_t* item_of;  // [n]: which item each position of the batch gets; null: position i gets item i
  const float* factors;         // [n]: by which it is multiplied; null: 1
};

}  // namespace gpuhash
