#pragma once

#include <cstdint>
#include <memory>

#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include <gpuhash/export.hpp>
#include <gpuhash/factorization.hpp>
#include <gpuhash/span.hpp>

namespace gpuhash {

/// What is made of the values of a group.
enum class Aggregate : std::uint8_t {
  kCount,
  kSum,
  kMean,
  kVar,
  kStd,
  kTotal,    // the sum as a float: what kMean divides
  kSquares,  // the sum of the squares of the distances from the mean: var times (count - ddof)
  kMin,
  kMax,
  kFirst,
  kLast,
  kAny,
  kAll
};

inline constexpr int kAggregateCount = 13;

/// Complex numbers have no order, and no variance here.
GPUHASH_API bool has_aggregate(Aggregate op, DType dtype) noexcept;
/// The dtype of the results. Those of kSum, kMean, kVar and kStd may have the other of a dtype and its
/// wide_dtype() instead.
GPUHASH_API DType aggregate_dtype(Aggregate op, DType dtype) noexcept;
/// That in which such results are summed up: with 64 bits per number.
GPUHASH_API DType wide_dtype(DType result) noexcept;

/// The groups of rows.
struct GroupedRows {
  const std::int64_t* codes = nullptr;  // [count], each in [-1, groups); rows of -1 are left out
  std::int64_t count = 0;
  std::int64_t groups = 0;
};

/// One aggregate of one column. All memory is the context's.
///
/// Integers wrap. Sums of floats and means are summed up in float64. Minima and maxima of floats pass NaN on, and -0 is
/// less than +0, as minimum and maximum of IEEE 754-2019 have it. All numbers but zeros are true. A group without
/// values has a count and sum of 0, any() of false and all() of true; NaN in the other aggregates of floats, in others
/// what changes no minimum or maximum, and 0 as first and last.
struct AggregateRequest {
  Aggregate op = Aggregate::kCount;
  const void* values = nullptr;  // [count]; null: kCount counts rows
  DType dtype = DType::kInt64;
  const bool* valid = nullptr;  // [count]; null: all values are
  void* out = nullptr;          // [groups]
  DType result = DType::kInt64;
  double ddof = 1;  // of kVar and kStd, which divide by count - ddof
  /// Of kMean, kVar, kStd and kSquares, or null: value i, of dtype float64, is the sum of this many values.
  const std::int64_t* part_counts = nullptr;  // [count]
  /// And of all but kMean: what kSquares is of these.
  const double* part_squares = nullptr;  // [count]
};

/// Keys whose groups have been found, and whose values have been folded meanwhile. Refers to the values.
class GPUHASH_API FoldedGroups {
 public:
  virtual ~FoldedGroups() = default;
  /// Groups, in order of their keys' first occurrence.
  virtual std::int64_t count() const = 0;
  /// firsts [count()]: positions of the keys' first occurrence. outs: [count()] for each request, in its place of
  /// `out`.
  virtual void write(std::int64_t* firsts, Span<void* const> outs) = 0;
};

/// Aggregates by group, with nothing that outlives the call.
class GPUHASH_API Aggregator {
 public:
  virtual ~Aggregator() = default;
  /// That of the context's platform.
  static const Aggregator& of(const DeviceContext& context);
  /// All of them in one pass over the rows; kVar, kStd and kSquares take a second one over theirs. Does not wait for a
  /// GPU. Only the last bits of sums of floats may depend on timing there, and on the host on the number of threads.
  virtual void aggregate(DeviceContext&, const GroupedRows&, Span<const AggregateRequest>, Stream) const = 0;
  /// Finds the groups of keys and aggregates them in the same pass. Null where that is not faster, or cannot be done:
  /// on a GPU, for long keys, for requests with a second pass, and where groups turn out to be many.
  virtual std::unique_ptr<FoldedGroups> fold(DeviceContext&, const NumberKeys&, Span<const AggregateRequest>,
                                             Stream) const {
    return nullptr;
  }
  /// One code for two: pairs[i] is codes[i] * kinds + others[i], with others[i] < kinds; or -1, where one of them is
  /// negative or the row not valid. valid: [count], or null: all are.
  virtual void pair_codes(DeviceContext&, const std::int64_t* codes, const std::int64_t* others, std::int64_t kinds,
                          const bool* valid, std::int64_t count, std::int64_t* pairs, Stream) const = 0;
  /// The codes of pairs; -1 of -1. `codes` may be `pairs`.
  virtual void split_pairs(DeviceContext&, const std::int64_t* pairs, std::int64_t kinds, std::int64_t count,
                           std::int64_t* codes, Stream) const = 0;
};

}  // namespace gpuhash
