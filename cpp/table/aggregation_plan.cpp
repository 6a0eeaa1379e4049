#include "table/aggregation_plan.hpp"

#include <algorithm>

#include "table/executor.hpp"

namespace gpuhash {

const Aggregator& Aggregator::of(const DeviceContext& context) { return *context.executors().aggregator; }

bool has_aggregate(Aggregate op, DType dtype) noexcept {
  if (!is_complex(dtype)) return true;
  switch (op) {
    case Aggregate::kVar:
    case Aggregate::kStd:
    case Aggregate::kSquares:
    case Aggregate::kMin:
    case Aggregate::kMax:
      return false;
    default:
      return true;
  }
}

DType aggregate_dtype(Aggregate op, DType dtype) noexcept {
  const bool is_float = dtype >= DType::kFloat16;
  switch (op) {
    case Aggregate::kCount:
      return DType::kInt64;
    case Aggregate::kSum:
      if (!is_float) return dtype >= DType::kUInt8 && dtype <= DType::kUInt64 ? DType::kUInt64 : DType::kInt64;
      [[fallthrough]];
    case Aggregate::kMean:
    case Aggregate::kVar:
    case Aggregate::kStd:
      if (dtype == DType::kFloat16 || dtype == DType::kBFloat16) return DType::kFloat32;
      return is_float ? dtype : DType::kFloat64;
    case Aggregate::kTotal:
      return is_complex(dtype) ? DType::kComplex128 : DType::kFloat64;
    case Aggregate::kSquares:
      return DType::kFloat64;
    case Aggregate::kAny:
    case Aggregate::kAll:
      return DType::kBool;
    default:
      return dtype;
  }
}

DType wide_dtype(DType result) noexcept {
  if (result == DType::kFloat32) return DType::kFloat64;
  return result == DType::kComplex64 ? DType::kComplex128 : result;
}

int AggregationPlan::word_of(const Fold& fold) {
  const auto known = std::ranges::find(folds, fold);
  if (known == folds.end()) {
    folds.push_back(fold);
    return static_cast<int>(folds.size()) - 1;
  }
  return static_cast<int>(known - folds.begin());
}

int AggregationPlan::sum_of(const AggregateRequest& request, bool in_floats) {
  Fold fold{in_floats ? FoldKind::kAddFloats : FoldKind::kAddIntegers, request.dtype, 1, request.values, request.valid};
  if (!is_complex(request.dtype)) return word_of(fold);
  fold.dtype = request.dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat64;
  fold.step = 2;
  const auto known = std::ranges::find(folds, fold);
  if (known != folds.end()) return static_cast<int>(known - folds.begin());
  const int word = word_of(fold);
  fold.values = static_cast<const char*>(fold.values) + itemsize(fold.dtype);
  folds.push_back(fold);  // the imaginary parts, right behind
  return word;
}

int AggregationPlan::count_of(const AggregateRequest& request) {
  if (request.part_counts == nullptr) return word_of({.kind = FoldKind::kCount, .valid = request.valid});
  return word_of({FoldKind::kAddIntegers, DType::kInt64, 1, request.part_counts, request.valid});
}

AggregationPlan::AggregationPlan(Span<const AggregateRequest> requests) {
  for (const AggregateRequest& request : requests) {
    GroupResult result{request.op, request.dtype, request.result, request.values, request.out, request.ddof};
    const auto fold_values = [&](FoldKind kind) {
      return word_of({kind, request.dtype, 1, request.values, request.valid});
    };
    switch (request.op) {
      case Aggregate::kCount:
        result.word = count_of(request);
        break;
      case Aggregate::kSum:
        result.word = sum_of(request, request.dtype >= DType::kFloat16);
        break;
      case Aggregate::kTotal:
        result.word = sum_of(request, true);
        break;
      case Aggregate::kMean:
        result.word = sum_of(request, true);
        result.count_word = count_of(request);
        break;
      case Aggregate::kVar:
      case Aggregate::kStd:
      case Aggregate::kSquares: {
        const bool of_parts = request.part_counts != nullptr;
        const Squares column{{of_parts ? FoldKind::kPartSquares : FoldKind::kSquares, request.dtype, 1, request.values,
                              request.valid, request.part_counts, request.part_squares},
                             sum_of(request, true),
                             count_of(request)};
        const auto known = std::ranges::find(squares, column);
        result.squares_word = 2 * static_cast<int>(known - squares.begin()) + 1;
        if (known == squares.end()) squares.push_back(column);
        result.count_word = column.count_word;
        break;
      }
      case Aggregate::kMin:
        result.word = fold_values(FoldKind::kMin);
        break;
      case Aggregate::kMax:
        result.word = fold_values(FoldKind::kMax);
        break;
      case Aggregate::kFirst:
        result.word = word_of({.kind = FoldKind::kFirst, .valid = request.valid});
        break;
      case Aggregate::kLast:
        result.word = word_of({.kind = FoldKind::kLast, .valid = request.valid});
        break;
      case Aggregate::kAny:
        result.word = fold_values(FoldKind::kAnyTrue);
        break;
      case Aggregate::kAll:
        result.word = fold_values(FoldKind::kAnyFalse);
        break;
    }
    results.push_back(result);
  }
}

}  // namespace gpuhash
