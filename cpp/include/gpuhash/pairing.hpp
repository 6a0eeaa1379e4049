#pragma once

#include <cstdint>
#include <memory>

#include <gpuhash/device_context.hpp>
#include <gpuhash/export.hpp>
#include <gpuhash/factorization.hpp>

namespace gpuhash {

/// The left rows of a join, as the groups of partners that they belong to. All arrays lie in the context's memory, and
/// nobody checks the numbers in them.
struct PairSides {
  const std::int64_t* codes;     // [count], the group of each left row; negative: it has no partner
  std::int64_t count;            // of left rows
  const std::int64_t* offsets;   // [groups + 1], where in `partners` each group begins, of one partner or more; null:
                                 // group g is partner g alone
  const std::int64_t* partners;  // [sum of groups], the right rows by group; null: the numbers from 0
};

/// Which pairs there are, in the order of the left rows; those of one row in the order of its group.
enum class PairKind : std::uint8_t {
  kInner,  // each left row with each of its partners
  kLeft,   // likewise, and those without a partner with -1
  kSemi,   // left rows that have a partner, once each, with -1
  kAnti    // left rows that have none, with -1
};

/// Pairs that have been counted. Refers to the arrays of its sides, which must stay until it is destroyed.
class GPUHASH_API Pairs {
 public:
  virtual ~Pairs() = default;
  std::int64_t count() const noexcept { return count_; }
  /// Pairs [begin, end) to left [end - begin] and right [end - begin], each of which may be null. On the stream that
  /// pair() was called with; does not wait.
  virtual void write(std::int64_t begin, std::int64_t end, std::int64_t* left, std::int64_t* right) const = 0;

 protected:
  std::int64_t count_ = 0;
};

/// Sets and lists of positions, all in int64: what joins are made of once keys have numbers.
class GPUHASH_API Pairing {
 public:
  virtual ~Pairing() = default;
  /// That of the context's platform.
  static const Pairing& of(const DeviceContext& context);

  /// The positions of each group, ascending: `order` [count] has those of group g at [offsets[g], offsets[g + 1]).
  /// Negative codes are of no group. `offsets` [groups + 1]. Does not wait.
  virtual void group_positions(DeviceContext&, const std::int64_t* codes, std::int64_t count, std::int64_t groups,
                               std::int64_t* offsets, std::int64_t* order, Stream) const = 0;
  /// Counts the pairs, whose number may be beyond all memory. Waits.
  virtual std::unique_ptr<Pairs> pair(DeviceContext&, const PairSides&, PairKind, Stream) const = 0;
  /// The same of keys that have no numbers yet, of one dtype and as many elements on both sides; fewer than 2^32 - 1 on
  /// the right. They are not looked at again. Waits. Null on the host, where keys get numbers first.
  virtual std::unique_ptr<Pairs> pair_keys(DeviceContext&, [[maybe_unused]] const NumberKeys& left,
                                           [[maybe_unused]] const NumberKeys& right, PairKind, Stream) const {
    return nullptr;
  }
  /// kept[i] = codes[i] if that is among `others` [other_count], and -1 otherwise. All are below `groups`. Does not
  /// wait.
  virtual void keep_common(DeviceContext&, const std::int64_t* codes, std::int64_t count, const std::int64_t* others,
                           std::int64_t other_count, std::int64_t groups, std::int64_t* kept, Stream) const = 0;
};

}  // namespace gpuhash
