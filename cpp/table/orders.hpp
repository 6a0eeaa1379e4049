#pragma once

#include <cstdint>

#include <gpuhash/batches.hpp>
#include <gpuhash/initializer.hpp>

/// What a table tells its executor: what the caller wants, and what the table alone knows.
namespace gpuhash {

/// A large batch that an executor has put in the order in which it can work it off faster. Good for one table of the
/// geometry that it was made for, and for one insertion or erasure.
class Plan {
 public:
  virtual ~Plan() = default;
};

struct FindOrder : FindOutput {
  std::int64_t bytes = 0;  // per value
};

/// What the rows of new keys get that are given no value.
struct InitialRows {
  Initializer initializer;
  DType dtype;
  std::int64_t elements;  // per row
};

struct InsertOrder {
  KeyBatch keys;
  ValueBatch values;
  InsertMode mode;
  bool deterministic;          // of a key's values in the batch: the last when assigning, the first when keeping
  bool* inserted;              // [n] or null: was the key new; true for exactly one of a new key's duplicates
  const Plan* plan = nullptr;  // of these keys and values, or null
  bool into_empty = false;     // the table has been empty since clear()
  bool expect_new = true;      // most keys are new, as far as anyone can tell
  ChainStep step = {};
  std::int64_t* rows = nullptr;  // [n] or null: gets the number of each key's row; of an order that keeps, without plan
  const InitialRows* initial = nullptr;  // of an order with rows and without values; read while the order is enqueued
};

struct ApplyOrder {
  KeyBatch keys;
  ValueBatch values;
  ApplyOp op;
  DType dtype;
  std::int64_t elements;       // per value
  bool* inserted;              // [n] or null, as above
  const Plan* plan = nullptr;  // made for this order by plan_apply(), or null
  bool into_empty = false;     // as above
};

}  // namespace gpuhash
