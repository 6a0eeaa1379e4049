#pragma once

#include <cmath>
#include <cstdint>

#include <gpuhash/optimizer.hpp>
#include "shared/hash.hpp"
#include "shared/host_device.hpp"
#include "shared/philox.hpp"
#include "shared/short_floats.hpp"

/// What optimizers do to one weight, one definition for host and device. In float, whatever the weights' dtype.
namespace gpuhash {

/// What a step comes to for all weights.
struct StepNumbers {
  Optimizer optimizer;
  float learning_rate;
  float rest1;  // 1 - beta1
  float rest2;
  float epsilon;
  float weight_decay;
  float correction1;  // 1 / (1 - beta1^t): kLamb divides the means by what they can be after t steps at most
  float correction2;
  float step_size;  // of kAdam: the learning rate, corrected likewise

  explicit StepNumbers(const OptimizerStep& step)
      : optimizer(step.optimizer),
        learning_rate(static_cast<float>(step.learning_rate)),
        rest1(static_cast<float>(1 - step.beta1)),
        rest2(static_cast<float>(1 - step.beta2)),
        epsilon(static_cast<float>(step.epsilon)),
        weight_decay(static_cast<float>(step.weight_decay)) {
    const auto number = static_cast<double>(step.number);
    const double bias1 = 1 - std::pow(step.beta1, number);
    const double bias2 = 1 - std::pow(step.beta2, number);
    correction1 = static_cast<float>(1 / bias1);
    correction2 = static_cast<float>(1 / bias2);
    step_size = static_cast<float>(step.learning_rate * std::sqrt(bias2) / bias1);
  }
};

/// The gradient with that of an L2 penalty, `weight_decay / 2` times the weight's square: as `weight_decay` of
/// PyTorch's optimizers. Not of kLamb, which adds the decay to its direction. Without a decay the weight, which may be
/// infinite, is not asked.
GPUHASH_HD float with_decay(const StepNumbers& numbers, float gradient, float weight) {
  return numbers.weight_decay == 0 ? gradient : gradient + numbers.weight_decay * weight;
}

/// J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", JMLR
/// 12, 2011; diagonal. `sum` has the gradient's square already.
GPUHASH_HD float adagrad_step(const StepNumbers& numbers, float sum, float gradient) {
  return numbers.learning_rate * gradient / (rounded_root(sum) + numbers.epsilon);
}

/// The running means of a gradient and its square.
GPUHASH_HD void add_to_means(const StepNumbers& numbers, float& mean, float& square, float gradient) {
  mean += (gradient - mean) * numbers.rest1;
  square += (gradient * gradient - square) * numbers.rest2;
}

/// D. P. Kingma, J. L. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015; the order of computation at the end
/// of section 2, as in PyTorch's SparseAdam.
GPUHASH_HD float adam_step(const StepNumbers& numbers, float mean, float square) {
  return numbers.step_size * mean / (rounded_root(square) + numbers.epsilon);
}

/// Y. You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020, algorithm 2,
/// with a row of the table as a layer: the step before it is scaled to the weights' norm.
GPUHASH_HD float lamb_direction(const StepNumbers& numbers, float mean, float square, float weight) {
  return mean * numbers.correction1 / (rounded_root(square * numbers.correction2) + numbers.epsilon) +
         numbers.weight_decay * weight;
}
/// By which that is multiplied: the squares are sums over the row.
GPUHASH_HD float lamb_rate(const StepNumbers& numbers, float weight_square, float direction_square) {
  const bool scales = weight_square > 0 && direction_square > 0;
  return numbers.learning_rate * (scales ? rounded_root(weight_square) / rounded_root(direction_square) : 1.0f);
}

/// Rounds weights to bfloat16, four by each block of random numbers. These are a function of the seed, the step, the
/// elements' place in the row and the weights themselves, and not of the row's number: so a model that goes on from a
/// file, in which rows have other numbers, goes on as it would have.
class StochasticRounding {
 public:
  GPUHASH_HD explicit StochasticRounding(const OptimizerStep& step)
      : key_(hash_key(static_cast<std::uint64_t>(step.number), step.seed)) {}

  /// Of elements 4 * number to 4 * number + 3, and zeros where a row ends before.
  GPUHASH_HD PhiloxBlock block(std::uint64_t number, const float (&weights)[4]) const {
    const auto bits = [&](int i) { return std::uint64_t{cast_bits<std::uint32_t>(weights[i])}; };
    const std::uint64_t mixed = hash_key(bits(0) << 32 | bits(1), bits(2) << 32 | bits(3));
    return philox({{static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32),
                    static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32)}},
                  static_cast<std::uint32_t>(key_), static_cast<std::uint32_t>(key_ >> 32));
  }

  GPUHASH_HD static BFloat16 round(float value, std::uint32_t random) {
    const auto word = cast_bits<std::uint32_t>(value);
    if ((word & 0x7f800000u) == 0x7f800000u) return BFloat16::from_float(value);  // infinite, or no number
    return {static_cast<std::uint16_t>((word + (random & 0xffffu)) >> 16)};
  }

 private:
  std::uint64_t key_;
};

}  // namespace gpuhash
