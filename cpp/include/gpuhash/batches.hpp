#pragma once

#include <cstddef>
#include <cstdint>

#include <gpuhash/call_chain.hpp>
#include <gpuhash/dtype.hpp>

/// What a call hands down: pointers to dense arrays, in the table's memory space.
namespace gpuhash {

/// Keys as the caller has them: `count` of `bytes` each, dense, in the table's memory space. `bytes` is 1 to
/// sizeof(Key); shorter keys are stored with zero bytes above.
struct KeyBatch {
  const void* data;
  std::int64_t count;
  std::uint32_t bytes;
  bool distinct = false;      // no key comes twice, as far as is known
  std::int64_t expected = 0;  // distinct keys, as far as a sample tells; 0: none was taken
};

/// Values likewise: one per key, or one for all keys. data null: the caller gives none (sets).
struct ValueBatch {
  const void* data;
  std::int64_t bytes;  // per value: element size times elements
  bool broadcast;
};

/// What find writes; each pointer may be null.
struct FindOutput {
  void* values;           // [n, *value_shape]
  const void* fallback;   // one value, in the table's memory space: the value of absent keys; null: zeros
  bool* found;            // [n]
  std::int64_t* rows;     // [n], row numbers, -1 for absent keys
  bool count_missing;     // set control->missing
  bool fallback_per_key;  // fallback is [n, *value_shape]: each absent key has its own
  ChainStep step;
};

enum class InsertMode : std::uint8_t { kKeep, kAssign };

/// Arithmetic of insert_or_apply. Integers wrap, float minima and maxima pass NaN on (as numpy.minimum does), booleans
/// add as "or" and multiply as "and".
enum class ApplyOp : std::uint8_t { kAdd, kMultiply, kMin, kMax, kBitAnd, kBitOr, kBitXor };

constexpr bool is_bit_op(ApplyOp op) { return op >= ApplyOp::kBitAnd; }

/// Bit operations are of integers and booleans; complex numbers have no order.
inline bool has_op(DType dtype, ApplyOp op) {
  if (is_bit_op(op)) return is_integer(dtype) || dtype == DType::kBool;
  return !is_complex(dtype) || (op != ApplyOp::kMin && op != ApplyOp::kMax);
}

/// What a call reads of one column, of a table that has several.
struct ColumnOutput {
  std::size_t column;    // its number in TableOptions::columns
  void* values;          // [n, *shape], dense
  const void* fallback;  // as FindOutput's, of this column
  bool fallback_per_key;
};

/// What becomes of a column in rows that are there: it stays, is overwritten, or is combined with what is given.
enum class ColumnMode : std::uint8_t { kKeep, kAssign, kApply };

/// What a change is given for one column. In a new row it is the value itself, whatever the mode.
struct ColumnInput {
  std::size_t column;
  ValueBatch values;
  ColumnMode mode = ColumnMode::kAssign;
  ApplyOp op = ApplyOp::kAdd;  // of kApply
};

}  // namespace gpuhash
