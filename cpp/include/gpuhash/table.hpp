#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gpuhash/column.hpp>
#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include <gpuhash/export.hpp>
#include <gpuhash/initializer.hpp>
#include <gpuhash/memory_range.hpp>
#include <gpuhash/optimizer.hpp>
#include <gpuhash/requests.hpp>
#include <gpuhash/span.hpp>

namespace gpuhash {

class Constants;

/// One of several integers that are a key together.
struct KeyField {
  std::string name;
  DType dtype = DType::kInt64;
};

/// What a table is made for; fixed for its life, but for the load factors.
struct GPUHASH_API TableOptions {
  DType key_dtype = DType::kInt64;
  std::int64_t key_elements = 1;  // integers per key
  /// What a key looks like to callers, of key_elements in all; empty: one integer, or a vector.
  std::vector<std::int64_t> key_shape;
  /// What callers take a key of bytes apart into: integers side by side, without gaps. Empty: it is one key as it is.
  std::vector<KeyField> key_columns;
  std::optional<DType> value_dtype;  // nullopt: a set
  std::vector<std::int64_t> value_shape;
  std::int64_t capacity = 0;                 // slots to begin with
  std::optional<std::int64_t> max_capacity;  // slots; a table at its maximum fills to the last slot
  double max_load_factor = 0.8;              // in (0, 1]: the table grows before size passes this part of its slots
  bool deterministic = false;
  /// Of the hash function. nullopt: that of all tables which are given none, so that their keys lie in the same order.
  std::optional<std::uint64_t> seed;
  /// Of the rows of new keys. It has to have rows; numbers are drawn for real floating values alone.
  std::optional<Initializer> initializer;
  /// Several values per key instead of one: then there is no value_dtype. They lie in rows, whatever their size.
  std::vector<Column> columns;

  std::int64_t value_elements() const;
  std::uint32_t key_bytes() const;   // of the caller's keys
  std::int64_t value_bytes() const;  // of the caller's values; 0 for a set, and where there are columns
  /// Values that are not scalars of up to 8 bytes lie in row storage.
  bool has_rows() const;
  std::int64_t row_bytes() const;  // in row storage; 0 where there is none

  /// A single value is column 0.
  std::size_t column_count() const { return columns.empty() ? (value_dtype ? 1 : 0) : columns.size(); }
  DType column_dtype(std::size_t column) const { return columns.empty() ? *value_dtype : columns[column].dtype; }
  std::int64_t column_bytes(std::size_t column) const {
    return columns.empty() ? value_bytes() : columns[column].bytes();
  }
};

/// The zero-copy view of a table's rows: [row_count, layout.bytes]; stays valid memory while held, also where the table
/// moves its rows into another one.
struct RowStorage {
  std::shared_ptr<Allocation> memory;
  std::int64_t row_count = 0;  // rows handed out so far, erased ones among them
  std::int64_t capacity = 0;   // rows that there is memory for
  RowLayout layout;            // where the columns lie, of which a single value is one
};

/// A hash table with its dtypes erased. Every call is ordered after the calls before it, whatever their streams and
/// threads. A call that throws has changed nothing, but for what is said of calls with several requests.
///
/// look_up(), change() and erase() take one request for each of several batches, as one call: no other thread's call
/// comes in between. Throws ShapeError for columns that there are not, or that are given twice, and DTypeError for
/// values that the table has not.
///
/// "Waits": the call returns only when the device has done all work before it. All calls wait when the table has to
/// grow.
class GPUHASH_API Table {
 public:
  static std::shared_ptr<Table> make(const TableOptions& options, std::shared_ptr<DeviceContext> context);
  virtual ~Table() = default;

  virtual const TableOptions& options() const = 0;
  virtual DeviceContext& context() const = 0;
  /// Of the hash function now: a table that meets keys which were picked to collide takes another one by itself.
  virtual std::uint64_t seed() const = 0;

  /// Waits. Live keys.
  virtual std::int64_t size(Stream stream) = 0;
  virtual std::int64_t capacity() const = 0;
  virtual std::int64_t nbytes() const = 0;
  virtual double max_load_factor() const = 0;
  virtual void set_max_load_factor(double factor) = 0;

  /// Does not wait, unless keys are counted: then it returns the number of absent keys, otherwise 0.
  virtual std::int64_t look_up(Span<const Lookup> requests) = 0;
  /// Does not wait while there is room for all keys as if they were new. The keys of all requests have room before
  /// those of the first one go in; what fails after that, such as memory for scratch, may leave some requests done.
  ///
  /// Of several values of a new key, columns that are kept get that of the one that `inserted` tells of. Of the values
  /// that are assigned to one key, those of one position of the batch stay in all columns; in a deterministic table the
  /// last ones. What the request reads besides, keys and values, may lie in the table's own rows: it is copied then.
  /// Throws DTypeError where has_op() is false, and where no values, or row numbers, are asked of a table without rows.
  virtual void change(Span<const Change> requests) = 0;
  /// Returns the number of absent keys where all_or_none is asked: if there are any, nothing is erased.
  virtual std::int64_t erase(Span<const Erasure> requests) = 0;
  /// Waits. Returns how many keys there are: where they are more than there is `room` for, because another thread has
  /// inserted some since the caller asked, nothing was written. Row numbers are scratch memory where columns are read
  /// without them, 8 bytes per key.
  virtual std::int64_t export_items(const Export& request) = 0;

  std::int64_t look_up(const Lookup& request) { return look_up(Span(&request, 1)); }
  void change(const Change& request) { change(Span(&request, 1)); }
  std::int64_t erase(const Erasure& request) { return erase(Span(&request, 1)); }

  /// Waits. For an empty table with row storage: from now on it has these keys, each with the row of that number ([n]),
  /// and new keys get other rows. What lies in the rows stays as it is. Throws ShapeError where keys or rows are given
  /// twice or rows are negative, and TableFullError where they are too many; the table is empty then.
  virtual void restore_rows(const KeyBatch& keys, const std::int64_t* rows, Stream stream) = 0;
  /// Makes room for the keys of the batch that are not there, as an insertion of it would first: afterwards that fails
  /// for want of room only if others have inserted in between. expect_insertion: the next insertion of so many keys at
  /// this address is the batch's, and need not look again, unless forget_room() comes before it.
  virtual void make_room(const KeyBatch& keys, bool expect_insertion, Stream stream) = 0;
  virtual void forget_room() = 0;
  /// Is it known, without waiting, that so many more keys fit? Then make_room() would have nothing to do.
  virtual bool has_room(std::int64_t keys) const = 0;
  virtual void clear(Stream stream) = 0;

  /// Waits. Makes room for `keys` keys in all, so that no insertion up to there grows the table.
  virtual void reserve(std::int64_t keys, Stream stream) = 0;
  /// Waits. At least `slots` slots, and as many as the keys need; row numbers stay unless compact_rows.
  virtual void rehash(std::int64_t slots, bool compact_rows, Stream stream) = 0;
  /// Waits. From now on the table's memory stays where it is, for CUDA graphs that others capture, replay and forget
  /// without asking: what would move it throws TableFullError or ShapeError. A captured insertion of more keys than
  /// may fit is no error then; those that a replay finds no room for are counted, and the next call that waits throws.
  virtual void fix_in_place(Stream stream) = 0;
  virtual RowStorage row_storage(Stream stream) = 0;

  /// Values of rows by number: [n]; -1, and what is beyond the capacity, gets the fallback. Does not wait.
  virtual void read_rows(const std::int64_t* rows, std::int64_t count, Span<const Read> reads, Stream stream) = 0;
  /// Sums over the rows of each bag, of a column of kFloat32 or kBFloat16: out.values is [bags, elements]; positions of
  /// no row count as its fallback, one for all. Added up in float, in the order of the batch. Does not wait.
  virtual void pool_rows(const std::int64_t* rows, std::int64_t count, const Bags& bags, const Read& out,
                         Stream stream) = 0;
  /// One step of an optimizer on the rows of a batch: [n] numbers, of which those that are no row's are passed over;
  /// gradients of one row are summed first. `columns`: the weights, of kFloat32 or kBFloat16, and what the optimizer
  /// keeps beside them. Takes scratch memory; does not wait.
  virtual void train(const std::int64_t* rows, std::int64_t count, const Gradients& gradients,
                     const std::vector<std::size_t>& columns, const OptimizerStep& step, Stream stream) = 0;
  /// Is some of this memory the table's own rows, as they lie now? A call writes them while it reads its batch.
  virtual bool overlaps_rows(const MemoryRange& memory) const = 0;
  /// Is this thread, or the one that it works for, in the middle of a call on the table? Does not wait.
  virtual bool is_in_call_here() const noexcept = 0;
  /// Single values in the table's memory, for Read::fallback and Write::broadcast.
  virtual Constants& constants() = 0;
  /// Waits. The same table, slot for slot, in another context.
  virtual std::shared_ptr<Table> clone(std::shared_ptr<DeviceContext> context, Stream stream) = 0;
};

}  // namespace gpuhash
