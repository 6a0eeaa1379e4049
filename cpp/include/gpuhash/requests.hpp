#pragma once

#include <cstddef>
#include <cstdint>

#include <gpuhash/action.hpp>
#include <gpuhash/call_chain.hpp>
#include <gpuhash/device_context.hpp>
#include <gpuhash/span.hpp>

/// What callers ask of a table: for one batch of keys each, what to read and what to write. Arrays are dense and in the
/// table's memory space; n is the number of keys. What is not set is not asked for.
///
/// A table has columns. The single value of a table without named ones is column 0, and a set has none.
namespace gpuhash {

class ShardedTable;

/// Keys as the caller has them: `count` of `bytes` each. `bytes` is 1 to sizeof(Key); shorter keys are stored with zero
/// bytes above.
struct KeyBatch {
  const void* data;
  std::int64_t count;
  std::uint32_t bytes;
  bool distinct = false;      // no key comes twice, as far as is known
  std::int64_t expected = 0;  // distinct keys, as far as a sample tells; 0: none was taken
};

/// A column that is read.
struct Read {
  std::size_t column = 0;          // its number
  void* values = nullptr;          // [n, *shape]
  const void* fallback = nullptr;  // one value, which absent keys get; null: zeros
  bool fallback_per_key = false;   // fallback is [n, *shape]: each absent key has its own
};

/// A column that is written. A new key gets the value itself, whatever the action.
struct Write {
  std::size_t column = 0;
  const void* values = nullptr;  // [n, *shape]
  bool broadcast = false;        // values is [*shape]: one for all keys
  Action action = Action::kAssign;
};

struct Lookup {
  KeyBatch keys = {};
  Span<const Read> reads = {};   // of named columns: takes scratch memory, 8 bytes per key, unless rows are given
  bool* found = nullptr;         // [n]
  std::int64_t* rows = nullptr;  // [n], row numbers, -1 for absent keys
  bool count_missing = false;    // waits
  Stream stream = nullptr;
  ShardedTable* view = nullptr;     // that on whose device the arrays lie; null: the table that is asked
  const ChainStep* step = nullptr;  // made on the way
};

/// An insertion of the keys that are not there, and a change of those that are. Columns of a new row that are not given
/// get what their initializers say, or else zeros.
struct Change {
  KeyBatch keys = {};
  Span<const Write> writes = {};
  Span<const Read> reads = {};  // what is there afterwards
  /// [n, 16 bytes]: what the initial rows of new keys are drawn from, instead of the keys. For tables in tables.
  const void* drawn_from = nullptr;
  bool* inserted = nullptr;      // [n]: was the key new? True for exactly one of a new key's duplicates
  std::int64_t* rows = nullptr;  // [n], row numbers, -1 where a replayed CUDA graph has found no room
  Stream stream = nullptr;
  ShardedTable* view = nullptr;     // as Lookup's
  const ChainStep* step = nullptr;  // made on the way
};

struct Erasure {
  KeyBatch keys = {};
  Span<const Read> reads = {};  // what was there before
  bool* erased = nullptr;       // [n]: true for exactly one of an erased key's duplicates
  bool all_or_none = false;     // waits; if keys of the call are absent, none is erased
  Stream stream = nullptr;
  ShardedTable* view = nullptr;  // as Lookup's
};

/// Of all keys, in the order of their slots.
struct Export {
  void* keys = nullptr;          // [room]
  Span<const Read> reads = {};   // [room, *shape]; fallbacks are not looked at
  std::int64_t* rows = nullptr;  // [room]
  std::int64_t room = 0;         // keys that the arrays have room for
  Stream stream = nullptr;
};

}  // namespace gpuhash
