#pragma once

#include <cstdint>
#include <span>

#include <gpuhash/device_context.hpp>
#include <gpuhash/requests.hpp>
#include "shared/layout.hpp"
#include "shared/wide_key.hpp"
#include "table/orders.hpp"

namespace gpuhash {

/// Instead of a row's number, of a key that is not in the table.
inline constexpr std::int64_t kAbsentRow = -1;  // nobody has the slot
inline constexpr std::int64_t kTakenRow = -2;   // another key has the slot

/// Keys as they lie in rows.
struct StoredKeys {
  RowView rows;
  std::int64_t offset;  // in each row, in bytes
};

/// What a batch is searched for, and what the slot of an absent key shall be.
enum class Search : std::uint8_t {
  kFind,   // of no matter
  kErase,  // kNoFingerprint
  kPlace,  // the first of its fingerprints that no key has; if there is none, the one after those that were tried
};

/// What lies under one fingerprint of each key, and what was found under those before.
struct Attempt {
  const std::uint64_t* tried;  // [n], fingerprints
  const std::int64_t* met;     // [n], the rows that have them, or -1
  std::int64_t* rows;          // [n], the key's; may be `met`
  std::uint64_t* slots;        // [n], its fingerprint there; may be `tried`, and null with kFind
  Search search;
  bool first;  // rows and slots hold nothing yet

  GPUHASH_HD bool is_open(std::int64_t i) const { return first || rows[i] < 0; }
  /// Of a key that is open: does the row that was met hold it?
  GPUHASH_HD void settle(std::int64_t i, bool is_there) const {
    const std::int64_t row = met[i];
    const std::uint64_t print = tried[i];
    if (is_there) {
      rows[i] = row;
      if (slots != nullptr) slots[i] = print;
    } else if (search != Search::kPlace) {
      rows[i] = kAbsentRow;
      if (search == Search::kErase) slots[i] = kNoFingerprint;
    } else if (first || rows[i] == kTakenRow) {
      rows[i] = row < 0 ? kAbsentRow : kTakenRow;
      slots[i] = row < 0 ? print : print + 1;
    }
  }
};

/// Some keys of a batch, numbered by their slots.
struct NumberedKeys {
  const std::int64_t* positions;  // [count], in the batch; null: all, in order
  const std::int64_t* codes;      // [count]
  const std::int64_t* firsts;     // the first of each number
  std::int64_t count;
};

struct AbsentKeys {
  std::int64_t count = 0;  // kTakenRow ones among them
  std::int64_t taken = 0;
};

/// A dense column of `count` items of `bytes`, and where they are parts of rows.
struct PackedColumn {
  void* column;         // [count, bytes]
  void* rows;           // the first row's part
  std::int64_t stride;  // bytes from a row to the next
  std::int64_t count;
  std::int64_t bytes;
};

/// What a table of wide keys needs beside the inner table, on one platform. Arrays are of the context's memory. Work is
/// enqueued on the stream; what returns a number waits.
class WideKeys {
 public:
  virtual ~WideKeys() = default;

  /// out [n]: the fingerprint of each key, plus `attempt`.
  virtual void fingerprint(DeviceContext&, const KeyBatch&, const Fingerprints&, std::uint64_t attempt,
                           std::uint64_t* out, Stream) const = 0;
  /// out [n]: digest_words().
  virtual void digest(DeviceContext&, const KeyBatch&, Uint128* out, Stream) const = 0;
  /// Compares each key that is not found yet with the one that has its fingerprint, and reads the rows of those that
  /// are found after it.
  virtual void match(DeviceContext&, const KeyBatch&, const StoredKeys&, const Attempt&, std::span<const ColumnRead>,
                     Stream) const = 0;
  /// found [n]: is there a row?
  virtual void write_found(DeviceContext&, const std::int64_t* rows, std::int64_t count, bool* found, Stream) const = 0;
  virtual AbsentKeys count_absent(DeviceContext&, const std::int64_t* rows, std::int64_t count, Stream) const = 0;
  /// The positions of absent keys, in any order, and their slots.
  virtual void list_absent(DeviceContext&, const std::int64_t* rows, const std::uint64_t* slots, std::int64_t count,
                           std::int64_t* positions, std::uint64_t* listed, Stream) const = 0;
  /// Of absent keys with one slot, those that differ from the first of them get kTakenRow and the next slot. Returns
  /// how many.
  virtual std::int64_t part(DeviceContext&, const KeyBatch&, const NumberedKeys&, std::int64_t* rows,
                            std::uint64_t* slots, Stream) const = 0;
  /// met [n]: the rows that have the slots. Keys with kTakenRow get kAbsentRow, or the next slot where there is a row.
  /// Returns how many get that.
  virtual std::int64_t move_on(DeviceContext&, const std::int64_t* met, std::int64_t count, std::int64_t* rows,
                               std::uint64_t* slots, Stream) const = 0;
  /// The most that a slot lies behind its key's first fingerprint.
  virtual std::uint64_t most_attempts(DeviceContext&, const std::uint64_t* prints, const std::uint64_t* slots,
                                      std::int64_t count, Stream) const = 0;

  /// Into the rows, or out of them.
  virtual void pack(DeviceContext&, const PackedColumn&, Stream) const = 0;
  virtual void unpack(DeviceContext&, const PackedColumn&, Stream) const = 0;
};

}  // namespace gpuhash
