#pragma once

#include <cstdint>
#include <vector>

#include <gpuhash/action.hpp>
#include <gpuhash/initializer.hpp>
#include <gpuhash/requests.hpp>

/// What a table tells its executor: what the caller wants, and what the table alone knows.
namespace gpuhash {

/// A large batch that an executor has put in the order in which it can work it off faster. Good for one table of the
/// geometry that it was made for, and for one insertion or erasure.
class Plan {
 public:
  virtual ~Plan() = default;
};

/// Values of one column: one per key, or one for all keys. data null: there are none.
struct ValueBatch {
  const void* data;
  std::int64_t bytes;  // per value: element size times elements
  bool broadcast;
};

/// What a lookup writes; each pointer may be null.
struct FindOrder {
  void* values;           // [n, bytes]
  const void* fallback;   // one value: that of absent keys; null: zeros
  bool* found;            // [n]
  std::int64_t* rows;     // [n], row numbers, -1 for absent keys
  bool count_missing;     // set control->missing
  bool fallback_per_key;  // fallback is [n, bytes]: each absent key has its own
  ChainStep step;
  std::int64_t bytes;  // per value
};

/// What the rows of new keys get that are given no value.
struct InitialRows {
  Initializer initializer;
  DType dtype;
  std::int64_t elements;  // per row
};

/// An insertion for which nobody knows whether it fits.
struct Trial {
  /// The table's size, at most, when it is done: keys for which no slot is left by that are left out, and counted in
  /// control->left. 0: no trial, there is room for all.
  std::uint64_t most = 0;
  /// The batch has been tried before, and this is for what was left out: of the mask, `inserted`, nothing is taken
  /// back.
  bool again = false;
  /// Of a trial that lists them: positions of the keys that were left out [n], and then, again, how many there are.
  std::uint32_t* left = nullptr;
  std::int64_t left_count = 0;
};

/// What an insertion finds in the table's memory.
enum class Slots : std::uint8_t {
  kFilled,
  kEmpty,  // and nothing else since clear()
  kBlank,  // whatever was there: Executor::begin_blank() has made it a table, but for what lies in regions
};

/// Where an insertion has stopped in the middle of a batch, as its keys seem picked to meet (is_flooded): the table is
/// to take another seed, and then the other keys.
struct Stop {
  std::int64_t done;                 // the first keys that have had their turn, but
  std::vector<std::int64_t> left{};  // these positions among them, ascending
};

/// Of a batch of 16-bit floats on the host: what all values of a key come to, in float. See WideBatch.
struct WideValues {
  const float* combined = nullptr;       // [distinct, elements]; null: each value goes in as it is
  const std::int64_t* codes = nullptr;   // [n] of the whole batch: the number of each position's key
  const std::int64_t* firsts = nullptr;  // [distinct]: the position at which the key comes first, and gets it all
  std::int64_t begin = 0;                // the order's first position in the whole batch

  /// Of position i of the order, which has `elements` numbers; null: the key has had them.
  const float* at(std::int64_t i, std::int64_t elements) const {
    const std::int64_t code = codes[begin + i];
    return firsts[code] == begin + i ? combined + code * elements : nullptr;
  }
};

struct InsertOrder {
  KeyBatch keys;
  ValueBatch values;
  Action action;               // kKeep or kAssign
  bool deterministic;          // of a key's values in the batch: the last when assigning, the first when keeping
  bool* inserted;              // [n] or null: was the key new; true for exactly one of a new key's duplicates
  const Plan* plan = nullptr;  // of these keys and values, or null
  Slots slots = Slots::kFilled;
  bool expect_new = true;  // most keys are new, as far as anyone can tell
  ChainStep step = {};
  std::int64_t* rows = nullptr;  // [n] or null: gets the number of each key's row; of an order that keeps, without plan
  const InitialRows* initial = nullptr;  // of an order with rows and without values; read while the order is enqueued
  Trial trial = {};                      // of an order without plan, if Executor::tries() it
  Stop* stop = nullptr;                  // not null, on the host: it may stop
};

/// Where a column lies in each row, and what it is.
struct ColumnPlace {
  std::int64_t offset;  // bytes
  DType dtype;
  std::int64_t elements;

  std::int64_t bytes() const { return static_cast<std::int64_t>(itemsize(dtype)) * elements; }
};

/// A column of rows whose numbers are known.
struct ColumnRead {
  ColumnPlace place;
  void* values;          // [n, bytes]
  const void* fallback;  // one value; null: zeros
  bool fallback_per_key;
};

struct ColumnChange {
  ColumnPlace place;
  ValueBatch values;
  Action action;
  WideValues wide = {};
};

/// What a column of a new row gets that is given no value.
struct ColumnInitial {
  std::int64_t offset;  // bytes
  InitialRows rows;
};

/// A change of a table with columns.
struct ColumnsOrder {
  KeyBatch keys;
  KeyBatch drawn_from;  // [n]: mostly the keys
  std::vector<ColumnChange> given;
  std::vector<ColumnInitial> initial;  // of the other columns
  bool deterministic;                  // as InsertOrder's, for all columns together
  std::int64_t* rows;                  // [n] or null
  bool* inserted;                      // [n] or null
  Stop* stop = nullptr;                // as InsertOrder's
};

struct ApplyOrder {
  KeyBatch keys;
  ValueBatch values;
  Action op;  // one that combines()
  DType dtype;
  std::int64_t elements;       // per value
  bool* inserted;              // [n] or null, as above
  const Plan* plan = nullptr;  // made for this order by plan_apply(), or null
  Slots slots = Slots::kFilled;
  Trial trial = {};  // as above; where keys are left out and not listed, no value is applied
  WideValues wide = {};
  Stop* stop = nullptr;  // as InsertOrder's
};

}  // namespace gpuhash
