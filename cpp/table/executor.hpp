#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <tuple>

#include <gpuhash/device_context.hpp>
#include "shared/layout.hpp"
#include "table/orders.hpp"
#include "table/slot_types.hpp"

namespace gpuhash {

class Aggregator;
class ColumnKeys;
class Factorizer;
class Hasher;
class Pairing;
class RowOptimizer;
class RunChains;
class Splitter;
class WideKeys;

/// May a rehash ask for scratch memory of the device, which makes it faster? With kNone it does not fail for want of
/// it.
enum class RehashMemory { kAsNeeded, kNone };

/// The algorithms over one slot type, for one platform. Work is enqueued on the stream; pointers are of the device's
/// memory space. Insertions need room for all new keys (and their rows): the caller has made sure of it, and the caller
/// checks arguments. Scratch memory is allocated before anything is changed.
template <class Key, class Value>
class Executor {
 public:
  using View = TableView<Key, Value>;
  virtual ~Executor() = default;

  /// Makes slots, filters and control those of an empty table.
  virtual void clear(DeviceContext&, const View&, Stream) const = 0;
  /// A part of clear(): of a table without rows, into which a planned insertion follows, which makes the rest.
  virtual void begin_blank(DeviceContext& context, const View& view, Stream stream) const {
    clear(context, view, stream);
  }
  virtual void find(DeviceContext&, const View&, const KeyBatch&, const FindOrder&, Stream) const = 0;
  /// Null where a plan would not pay, or there is no memory for one. with_mask: of a batch whose `inserted` or `erased`
  /// is not null.
  virtual std::unique_ptr<Plan> plan(DeviceContext&, const View&, const KeyBatch&, const ValueBatch&,
                                     [[maybe_unused]] bool with_mask, Stream) const {
    return nullptr;
  }
  /// As plan(), for apply() of this batch.
  virtual std::unique_ptr<Plan> plan_apply(DeviceContext&, const View&, const ApplyOrder&, Stream) const {
    return nullptr;
  }
  /// Is a batch of so many keys best inserted as a trial, where nobody knows whether it fits, and most of its keys are
  /// thought to be there? False: it must not be.
  virtual bool tries(const View&, [[maybe_unused]] std::int64_t keys) const { return false; }
  /// Of an apply() that is tried: does it list the keys that it leaves out, having worked off all others?
  virtual bool lists_left(DeviceContext&, const View&, const ApplyOrder&) const { return false; }
  /// Sets control->absent to a number of distinct keys of the planned batch that are not in the table, and
  /// control->undecided to that of keys of which it cannot say, few in most batches.
  virtual void count_absent(DeviceContext&, const View&, const Plan&, [[maybe_unused]] bool table_is_empty,
                            Stream) const {}
  virtual void insert(DeviceContext&, const View&, const InsertOrder&, Stream) const = 0;
  virtual void apply(DeviceContext&, const View&, const ApplyOrder&, Stream) const = 0;
  /// Of tables with columns: values of rows [count]; negative numbers stand for absent keys.
  virtual void read_columns(DeviceContext&, const View&, [[maybe_unused]] const std::int64_t* rows,
                            [[maybe_unused]] std::int64_t count, std::span<const ColumnRead>, Stream) const {}
  /// Likewise.
  virtual void change_columns(DeviceContext&, const View&, const ColumnsOrder&, Stream) const {}
  /// erased: [n] or null; true for exactly one of an erased key's duplicates. plan: of these keys, or null.
  virtual void erase(DeviceContext&, const View&, const KeyBatch&, bool* erased, const Plan* plan, Stream) const = 0;
  /// Appends the keys that are not in the table, duplicates and all, in any order, to out [n]; their number goes to
  /// control->absent.
  virtual void list_absent(DeviceContext&, const View&, const KeyBatch&, Key* out, Stream) const = 0;
  /// Makes `to`, whose memory holds nothing yet and has room, a table of all of `from`. Row numbers stay; with
  /// compact_rows they are dealt out anew from 0 and the rows copied to to.rows.
  virtual void rehash(DeviceContext&, const View& from, const View& to, bool compact_rows, RehashMemory,
                      Stream) const = 0;
  /// Writes keys [size], values [size, value_bytes] and row numbers [size], each in the order of the slots; each may be
  /// null.
  virtual void export_items(DeviceContext&, const View&, void* keys, std::uint32_t key_bytes, void* values,
                            std::int64_t value_bytes, std::int64_t* rows, Stream) const = 0;
};

/// What a platform has: an executor for each slot type, and one object for each of the other algorithms. Narrow keys
/// and values are widened to one of the slot types.
struct Executors {
  template <class Types>
  struct Pointers;
  template <class... Types>
  struct Pointers<TypeList<Types...>> {
    using Tuple = std::tuple<const Executor<typename Types::Key, typename Types::Value>*...>;

    template <class Platform>
    static Tuple of() {
      return {&Platform::template executor<typename Types::Key, typename Types::Value>()...};
    }
  };

  /// Platform::executor<Key, Value>() gives the executor of a slot type.
  template <class Platform>
  static Executors of() {
    return {Pointers<SlotTypes>::of<Platform>(),
            &Platform::factorizer(),
            &Platform::hasher(),
            &Platform::aggregator(),
            &Platform::splitter(),
            &Platform::row_optimizer(),
            &Platform::pairing(),
            &Platform::run_chains(),
            &Platform::column_keys(),
            &Platform::wide_keys()};
  }

  template <class Key, class Value>
  const Executor<Key, Value>& get() const {
    return *std::get<const Executor<Key, Value>*>(all);
  }

  Pointers<SlotTypes>::Tuple all;
  const Factorizer* factorizer;
  const Hasher* hasher;
  const Aggregator* aggregator;
  const Splitter* splitter;
  const RowOptimizer* row_optimizer;
  const Pairing* pairing;
  const RunChains* run_chains;
  const ColumnKeys* column_keys;
  const WideKeys* wide_keys;
};

}  // namespace gpuhash
