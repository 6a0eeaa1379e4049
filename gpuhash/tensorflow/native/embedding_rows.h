// The rows of a HashEmbedding as a TensorFlow resource.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gpuhash/table.hpp>
#include "context.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace gpuhash::tensorflow_ops {

using tensorflow::Tensor;

/// A table whose first column are weights and whose others are the optimizer's, and how the next step is made.
class EmbeddingRows final : public tensorflow::ResourceBase {
 public:
  /// fallback: the weights of ids without a row, in the table's memory; empty for zeros.
  EmbeddingRows(std::shared_ptr<Table> table, Optimizer optimizer, Tensor fallback)
      : table_(std::move(table)), fallback_(std::move(fallback)) {
    step_.optimizer = optimizer;
    step_.number = 0;
  }

  const std::shared_ptr<Table>& table() const { return table_; }
  const Column& weights() const { return table_->options().columns.front(); }
  std::int64_t dim() const { return weights().elements(); }
  std::string DebugString() const override {
    return "The rows of a gpuhash embedding on " + table_->context().device().to_string();
  }

  /// Weights and rows of ids, new rows for those that have none if `insert`. Returns the generation of the rows, which
  /// train() asks for.
  std::int64_t look_up(const KeyBatch& ids, void* weights, std::int64_t* rows, bool insert, Stream stream) {
    const std::shared_lock<std::shared_mutex> staying(replacing_);
    const void* const fallback = fallback_.NumElements() == 0 ? nullptr : fallback_.data();
    const Read read{.values = weights, .fallback = fallback};
    if (insert)
      table_->change({.keys = ids, .reads = {&read, 1}, .rows = rows, .stream = stream});
    else
      table_->look_up({.keys = ids, .reads = {&read, 1}, .rows = rows, .stream = stream});
    return generation_;
  }

  /// The learning rate of one step, as the schedule of that number gave it; schedule 0: there is none.
  struct Rate {
    double rate;
    std::int64_t schedule;
  };

  /// A step on rows that look_up() has given. Counts it, unless it throws.
  void train(const std::int64_t* rows, std::int64_t count, std::int64_t generation, const Gradients& gradients,
             const Rate& given, Stream stream) {
    const std::shared_lock<std::shared_mutex> staying(replacing_);
    if (generation != generation_)
      throw std::invalid_argument(
          "the layer has loaded a state between a call and its gradient: the rows of that call are not there any more; "
          "take the gradient before");
    const std::lock_guard<std::mutex> counting(counting_);
    std::vector<std::size_t> columns(table_->options().columns.size());
    std::iota(columns.begin(), columns.end(), std::size_t{0});
    OptimizerStep step = step_;
    ++step.number;
    if (schedule_ != 0) step.learning_rate = scheduled(given);
    table_->train(rows, count, gradients, columns, step, stream);
    step_ = step;
  }

  /// From the next step on.
  void set_optimizer(const double* numbers, bool stochastic_rounding, std::uint64_t seed, std::int64_t schedule) {
    const std::lock_guard<std::mutex> counting(counting_);
    step_.learning_rate = numbers[0];
    step_.beta1 = numbers[1];
    step_.beta2 = numbers[2];
    step_.epsilon = numbers[3];
    step_.weight_decay = numbers[4];
    step_.stochastic_rounding = stochastic_rounding;
    step_.seed = seed;
    schedule_ = schedule;
  }

  std::int64_t steps() {
    const std::lock_guard<std::mutex> counting(counting_);
    return step_.number;
  }

  /// In the place of all rows that are there. Where there is no room for them, all is as it was.
  void replace(const KeyBatch& ids, const std::vector<Write>& writes, std::int64_t steps, Stream stream) {
    const std::unique_lock<std::shared_mutex> alone(replacing_);
    table_->reserve(ids.count, stream);
    ++generation_;
    table_->clear(stream);
    table_->change({.keys = ids, .writes = writes, .stream = stream});
    const std::lock_guard<std::mutex> counting(counting_);
    step_.number = steps;
  }

 private:
  /// A graph holds the schedule that there was when it was traced, which may be another one by now.
  double scheduled(const Rate& given) const {
    if (given.schedule != schedule_)
      throw std::invalid_argument(
          "optimizer.lr was set to a schedule after the function was traced, and the function knows the rate of "
          "before: "
          "set the schedule before, or trace the function again, as compile() of a Keras model does");
    if (!(given.rate >= 0 && std::isfinite(given.rate)))
      throw std::invalid_argument("the schedule gave the learning rate " + std::to_string(given.rate) +
                                  ", expected a number that is 0 or more");
    return given.rate;
  }

  const std::shared_ptr<Table> table_;
  const Tensor fallback_;
  std::shared_mutex replacing_;  // shared by all who need the row numbers to stay
  std::int64_t generation_ = 0;  // how often the rows were replaced
  std::mutex counting_;          // for step_
  OptimizerStep step_;           // the last one; its number is how many there were
  std::int64_t schedule_ = 0;    // the number of what gives its rate; 0: nothing does
};

}  // namespace gpuhash::tensorflow_ops
