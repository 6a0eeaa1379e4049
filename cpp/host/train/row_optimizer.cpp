#include "table/row_optimizer.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "host/executor.hpp"
#include "host/parallel.hpp"
#include "shared/optimizer_step.hpp"

/// Training rows. Positions are sorted by row; then each thread has a part of the rows, sums up the gradients of each,
/// and makes the step. Of a row that comes very often, all threads have summed up pieces before: of one length, so that
/// the sum has the same bits for any number of threads.
namespace gpuhash::host {
namespace {

/// Positions of a batch in the order of their rows, those of one row in the order of the batch, and without those of no
/// row.
class SortedBatch {
 public:
  SortedBatch(const std::int64_t* rows, std::int64_t count, std::int64_t capacity)
      : entries_(uninitialised<Entry>(count)), spare_(uninitialised<Entry>(count)) {
    for (std::int64_t i = 0; i < count; ++i)
      if (rows[i] >= 0 && rows[i] < capacity) entries_[count_++] = {rows[i], i};
    const int bits = std::bit_width(static_cast<std::uint64_t>(capacity));
    for (int bit = 0; bit < bits; bit += kDigit) sort_by_digit(bit);
  }

  std::int64_t count() const { return count_; }
  std::int64_t row(std::int64_t i) const { return entries_[i].row; }
  std::int64_t position(std::int64_t i) const { return entries_[i].position; }
  /// The first entry from i on that is of another row than the one before it. In steps that double, and then halve: a
  /// row may have most of the batch, and is asked for its end once for each piece of it.
  std::int64_t next_row(std::int64_t i) const {
    if (i == 0 || i >= count_ || row(i) != row(i - 1)) return std::min(i, count_);
    std::int64_t step = 1;
    while (i + step < count_ && row(i + step) == row(i)) {
      i += step;
      step *= 2;
    }
    for (; step != 0; step /= 2)
      if (i + step < count_ && row(i + step) == row(i)) i += step;
    return i + 1;
  }

 private:
  struct Entry {
    std::int64_t row;
    std::int64_t position;
  };
  static constexpr int kDigit = 11;

  void sort_by_digit(int bit) {
    constexpr std::int64_t kDigits = 1 << kDigit;
    std::int64_t begins[kDigits] = {};
    const auto digit = [&](const Entry& entry) { return entry.row >> bit & (kDigits - 1); };
    for (std::int64_t i = 0; i < count_; ++i) ++begins[digit(entries_[i])];
    if (std::ranges::find(begins, count_) != std::end(begins)) return;  // all have one
    for (std::int64_t sum = 0; std::int64_t& begin : begins) sum += std::exchange(begin, sum);
    for (std::int64_t i = 0; i < count_; ++i) spare_[begins[digit(entries_[i])]++] = entries_[i];
    std::swap(entries_, spare_);
  }

  std::unique_ptr<Entry[]> entries_;
  std::unique_ptr<Entry[]> spare_;
  std::int64_t count_ = 0;
};

/// Entries of a row that are summed up apart, and how many a row has at least for that.
constexpr std::int64_t kSummedApart = std::int64_t{1} << 13;
constexpr std::int64_t kLongRow = 4 * kSummedApart;

float load(const float& value) { return value; }
float load(const BFloat16& value) { return value.to_float(); }
void store(float& to, float value) { to = value; }
void store(BFloat16& to, float value) { to = BFloat16::from_float(value); }

template <class Gradient>
void sum_gradients_as(const SortedBatch& batch, const TrainOrder& order, std::int64_t begin, std::int64_t end,
                      float* sums) {
  const Gradients& given = order.gradients;
  const std::int64_t elements = order.weights.elements;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t position = batch.position(i);
    const std::int64_t item = given.item_of == nullptr ? position : given.item_of[position];
    const float factor = given.factors == nullptr ? 1 : given.factors[position];
    const Gradient* const from = static_cast<const Gradient*>(given.data) + item * elements;
    if (i == begin)
      for (std::int64_t e = 0; e < elements; ++e) sums[e] = factor * load(from[e]);
    else
      for (std::int64_t e = 0; e < elements; ++e) sums[e] += factor * load(from[e]);
  }
}

/// Those of entries [begin, end), one after the other.
void sum_gradients(const SortedBatch& batch, const TrainOrder& order, std::int64_t begin, std::int64_t end,
                   float* sums) {
  if (order.gradients.dtype == DType::kFloat32)
    sum_gradients_as<float>(batch, order, begin, end, sums);
  else
    sum_gradients_as<BFloat16>(batch, order, begin, end, sums);
}

/// The gradients of the rows of at least kLongRow entries, summed up by pieces on all threads.
class LongRows {
 public:
  LongRows(const SortedBatch& batch, const TrainOrder& order) : elements_(order.weights.elements) {
    // Such a row is the one of the entries at which a piece begins, and of those at which the next one does.
    for (std::int64_t i = kSummedApart; i < batch.count(); i += kSummedApart) {
      if (batch.row(i - kSummedApart) != batch.row(i)) continue;
      const std::int64_t begin = first_of_row(batch, i - kSummedApart);
      const std::int64_t end = batch.next_row(i + 1);
      if (end - begin >= kLongRow)
        for (std::int64_t from = begin; from < end; from += kSummedApart)
          pieces_.push_back({from, std::min(end, from + kSummedApart)});
      i = std::max(i, (end - 1) / kSummedApart * kSummedApart);
    }
    const auto count = static_cast<std::int64_t>(pieces_.size());
    if (count == 0) return;
    sums_ = uninitialised<float>(count * elements_);
    const int parts = static_cast<int>(std::min<std::int64_t>(count, thread_count()));
    for_each_part(count, parts, [&](int, std::int64_t first, std::int64_t last) {
      in_pieces(first, last, 1, [&](std::int64_t piece, std::int64_t) {
        const Piece& summed = pieces_[static_cast<std::size_t>(piece)];
        sum_gradients(batch, order, summed.begin, summed.end, sums_.get() + piece * elements_);
      });
    });
  }

  /// Of the row whose entries begin there. False where it is no long one.
  bool sum(std::int64_t begin, std::int64_t end, float* sums) const {
    if (end - begin < kLongRow) return false;
    const auto first = std::ranges::lower_bound(pieces_, begin, {}, &Piece::begin);
    const float* from = sums_.get() + (first - pieces_.begin()) * elements_;
    std::copy_n(from, elements_, sums);
    for (auto piece = first + 1; piece != pieces_.end() && piece->end <= end; ++piece) {
      from += elements_;
      for (std::int64_t e = 0; e < elements_; ++e) sums[e] += from[e];
    }
    return true;
  }

 private:
  struct Piece {
    std::int64_t begin;
    std::int64_t end;
  };

  /// The first entry of the row of entry i, which is not far after it.
  static std::int64_t first_of_row(const SortedBatch& batch, std::int64_t i) {
    while (i != 0 && batch.row(i - 1) == batch.row(i)) --i;
    return i;
  }

  std::int64_t elements_;
  std::vector<Piece> pieces_;      // ascending
  std::unique_ptr<float[]> sums_;  // [pieces, elements]
};

/// What one thread trains rows with.
class Trainer {
 public:
  Trainer(const RowView& rows, const TrainOrder& order, const LongRows& long_rows)
      : rows_(rows),
        order_(order),
        long_rows_(long_rows),
        numbers_(order.step),
        elements_(order.weights.elements),
        gradient_(scratch<float>(elements_)),
        weights_(scratch<float>(elements_)),
        direction_(scratch<float>(order.step.optimizer == Optimizer::kLamb ? elements_ : 0)) {}

  /// Of entries [begin, end) of one row.
  void train(const SortedBatch& batch, std::int64_t begin, std::int64_t end) {
    if (!long_rows_.sum(begin, end, gradient_.data())) sum_gradients(batch, order_, begin, end, gradient_.data());
    const std::int64_t row = batch.row(begin);
    std::byte* const data = rows_.data + row * rows_.bytes;
    const auto column = [&](const ColumnPlace& place) { return reinterpret_cast<float*>(data + place.offset); };
    float* const states[2] = {column(order_.states[0]), column(order_.states[1])};
    if (order_.weights.dtype == DType::kFloat32) return make_step(column(order_.weights), states[0], states[1]);
    auto* const stored = reinterpret_cast<BFloat16*>(data + order_.weights.offset);
    for (std::int64_t e = 0; e < elements_; ++e) weights_[static_cast<std::size_t>(e)] = stored[e].to_float();
    make_step(weights_.data(), states[0], states[1]);
    round(stored);
  }

 private:
  void make_step(float* weights, float* first, float* second) {
    float* const gradient = gradient_.data();
    const auto rate = numbers_.learning_rate;
    if (numbers_.weight_decay != 0 && numbers_.optimizer != Optimizer::kLamb)
      for (std::int64_t e = 0; e < elements_; ++e) gradient[e] = with_decay(numbers_, gradient[e], weights[e]);
    switch (numbers_.optimizer) {
      case Optimizer::kSgd:
        for (std::int64_t e = 0; e < elements_; ++e) weights[e] -= rate * gradient[e];
        return;
      case Optimizer::kAdagrad:
        for (std::int64_t e = 0; e < elements_; ++e) {
          first[e] += gradient[e] * gradient[e];
          weights[e] -= adagrad_step(numbers_, first[e], gradient[e]);
        }
        return;
      case Optimizer::kRowWiseAdagrad: {
        float square = 0;
        for (std::int64_t e = 0; e < elements_; ++e) square += gradient[e] * gradient[e];
        *first += square / static_cast<float>(elements_);
        for (std::int64_t e = 0; e < elements_; ++e) weights[e] -= adagrad_step(numbers_, *first, gradient[e]);
        return;
      }
      case Optimizer::kAdam:
        for (std::int64_t e = 0; e < elements_; ++e) {
          add_to_means(numbers_, first[e], second[e], gradient[e]);
          weights[e] -= adam_step(numbers_, first[e], second[e]);
        }
        return;
      case Optimizer::kLamb: {
        float weight_square = 0;
        float direction_square = 0;
        float* const direction = direction_.data();
        for (std::int64_t e = 0; e < elements_; ++e) {
          add_to_means(numbers_, first[e], second[e], gradient[e]);
          direction[e] = lamb_direction(numbers_, first[e], second[e], weights[e]);
          weight_square += weights[e] * weights[e];
          direction_square += direction[e] * direction[e];
        }
        const float scaled = lamb_rate(numbers_, weight_square, direction_square);
        for (std::int64_t e = 0; e < elements_; ++e) weights[e] -= scaled * direction[e];
        return;
      }
    }
  }

  void round(BFloat16* stored) const {
    const float* const weights = weights_.data();
    if (!order_.step.stochastic_rounding) {
      for (std::int64_t e = 0; e < elements_; ++e) stored[e] = BFloat16::from_float(weights[e]);
      return;
    }
    const StochasticRounding rounding(order_.step);
    for (std::int64_t first = 0; first < elements_; first += 4) {
      float four[4] = {};
      const std::int64_t count = std::min<std::int64_t>(4, elements_ - first);
      std::copy_n(weights + first, count, four);
      const PhiloxBlock random = rounding.block(static_cast<std::uint64_t>(first / 4), four);
      for (std::int64_t k = 0; k < count; ++k) stored[first + k] = StochasticRounding::round(four[k], random.words[k]);
    }
  }

  const RowView& rows_;
  const TrainOrder& order_;
  const LongRows& long_rows_;
  StepNumbers numbers_;
  std::int64_t elements_;
  std::vector<float> gradient_;   // of one row, summed up
  std::vector<float> weights_;    // those of bfloat16 in float
  std::vector<float> direction_;  // of kLamb
};

class HostRowOptimizer final : public RowOptimizer {
 public:
  void train(DeviceContext&, const RowView& rows, const TrainOrder& order, Stream) const override {
    const SortedBatch batch(order.rows, order.count, rows.capacity);
    const int parts = reader_parts(batch.count() * kGradientsPerKey);
    std::vector<Trainer> trainers;  // whose memory is there before anything changes
    trainers.reserve(static_cast<std::size_t>(parts));
    const LongRows long_rows(batch, order);
    for (int part = 0; part < parts; ++part) trainers.emplace_back(rows, order, long_rows);
    for_each_part(batch.count(), parts, [&](int part, std::int64_t first, std::int64_t last) {
      Trainer& trainer = trainers[static_cast<std::size_t>(part)];
      last = batch.next_row(last);
      in_pieces(batch.next_row(first), last, kGradientsPerPiece, [&](std::int64_t begin, std::int64_t end) {
        end = batch.next_row(end);
        for (begin = batch.next_row(begin); begin < end;) {
          const std::int64_t next = batch.next_row(begin + 1);
          trainer.train(batch, begin, next);
          begin = next;
        }
      });
    });
  }

  void pool(DeviceContext&, const RowView& rows, const PoolOrder& order, Stream) const override {
    if (order.column.place.dtype == DType::kFloat32)
      pool_as<float>(rows, order);
    else
      pool_as<BFloat16>(rows, order);
  }

 private:
  template <class Weight>
  static void pool_as(const RowView& rows, const PoolOrder& order) {
    const ColumnPlace& place = order.column.place;
    const auto* const fallback = static_cast<const Weight*>(order.column.fallback);
    for_each_part(order.bags.count, reader_parts(order.count * kGradientsPerKey),
                  [&](int, std::int64_t first, std::int64_t last) {
                    std::vector<float> sum = scratch<float>(place.elements);
                    in_pieces(first, last, kGradientsPerPiece, [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t bag = begin; bag < end; ++bag) {
                        std::ranges::fill(sum, 0.0f);
                        const std::int64_t bag_end = std::min(order.bags.offsets[bag + 1], order.count);
                        for (std::int64_t i = std::max<std::int64_t>(order.bags.offsets[bag], 0); i < bag_end; ++i) {
                          const std::int64_t row = order.rows[i];
                          const bool is_row = row >= 0 && row < rows.capacity;
                          const Weight* const from =
                              is_row ? reinterpret_cast<const Weight*>(rows.data + row * rows.bytes + place.offset)
                                     : fallback;
                          if (from == nullptr) continue;
                          const float factor = order.bags.factors == nullptr ? 1 : order.bags.factors[i];
                          for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += factor * load(from[e]);
                        }
                        auto* const to = static_cast<Weight*>(order.column.values) + bag * place.elements;
                        for (std::size_t e = 0; e < sum.size(); ++e) store(to[e], sum[e]);
                      }
                    });
                  });
  }

  /// A gradient takes about as long as so many keys.
  static constexpr std::int64_t kGradientsPerKey = 16;
  static constexpr std::int64_t kGradientsPerPiece = kKeysPerPiece / kGradientsPerKey;
};

}  // namespace

const RowOptimizer& HostAlgorithms::row_optimizer() {
  static const auto& optimizer = *new HostRowOptimizer;  // never destroyed: threads may work at exit
  return optimizer;
}

}  // namespace gpuhash::host
