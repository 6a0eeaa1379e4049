#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include <gpuhash/sharded_table.hpp>
#include <gpuhash/table.hpp>
#include "bindings/array.hpp"
#include "bindings/fast/plain_tensor.hpp"

namespace gpuhash::bindings {

/// Values converted from Python numbers: one, or a list of them.
struct Number {
  alignas(16) std::array<std::byte, 16> bytes{};
  Allocation uploaded;  // the same on a GPU, where the table does not keep it
  std::unique_ptr<std::byte[]> list;
};

/// The calls of one face of a table that need nothing explained: all arrays are plain, of one framework, of the table's
/// dtypes and on its device; or keys and values are Python's and NumPy's numbers or flat lists of them. Whatever is not
/// so is declined, by a null object and no error, before anything is changed; then the general path has its turn, which
/// is Python and takes ten times as long, and which alone knows how to convert and how to say what is wrong.
///
/// The functions take the arguments of the Python methods that they serve, in that order; None for those not given.
/// Keys may be a list of batches where the table has several shards.
class FastPath {
 public:
  using Arguments = PyObject* const*;  // borrowed

  FastPath(std::shared_ptr<Table> table, std::vector<std::int64_t> key_shape);

  /// The value of absent keys, in the table's memory; null: none.
  void set_fallback(const Array* fallback);
  /// The table as seen from its other devices, for batches that lie there.
  void set_views(std::vector<std::shared_ptr<FastPath>> views);
  /// How many calls may have changed which keys there are.
  std::uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }

  py::object getitem(Arguments given);           // keys; declined where keys are absent: the general path names them
  py::object get(Arguments given);               // keys, default, out
  py::object find(Arguments given);              // keys, default, out
  py::object contains(Arguments given);          // keys, out
  py::object rows(Arguments given);              // keys, out
  py::object contains_one(Arguments given);      // key: is it there? Declined for batches
  py::object setitem(Arguments given);           // keys, values
  py::object insert(Arguments given);            // keys, values, out
  py::object insert_or_assign(Arguments given);  // keys, values, out
  py::object insert_or_apply(Arguments given);   // keys, values, op, out
  py::object find_or_insert(Arguments given);    // keys, values, out
  py::object add(Arguments given);               // keys, out
  py::object erase(Arguments given);             // keys, out
  py::object erase_present(Arguments given);     // keys; declined where some are absent
  py::object discard(Arguments given);           // keys
  py::object pop(Arguments given);               // key, default, out; declined for batches
  py::object setdefault(Arguments given);        // keys, default, out

 private:
  struct Keys {
    const PlainFramework* framework;
    PyObject* tensor;  // the caller's
    PlainTensor plain;
    std::size_t batch_dims;
    KeyBatch batch;
    Stream stream;
    std::unique_ptr<std::byte[]> numbers;  // the keys, where they were Python's
    bool is_single;                        // a number or a tuple: so are the answers

    Lengths batch_shape() const { return plain.shape().first(batch_dims); }
    MemoryRange memory() const { return {batch.data, batch.count * batch.bytes}; }
  };

  struct Output {
    py::object tensor;
    MemoryRange memory;
    bool given;      // by the caller
    bool is_number;  // one element, to be handed over as a Python number
    DType dtype;
    alignas(16) std::array<std::byte, 16> number;

    template <class T = void>
    T* data() const {
      return static_cast<T*>(const_cast<void*>(is_number ? number.data() : memory.data));
    }
  };

  /// One batch of a list.
  struct Item {
    py::object tensor;  // the list may lose it meanwhile
    FastPath* path;     // of the device that it is on
    Keys keys;
  };

  /// The values of a change.
  struct Given {
    Number number;
    std::optional<Write> write;  // none of a set; may point to the number

    Span<const Write> writes() const { return write ? Span<const Write>(&*write, 1) : Span<const Write>(); }
  };

  struct Fallback {
    std::shared_ptr<const Array> array;
    Number number;
    const void* data = nullptr;
  };

  std::optional<Keys> take_keys(PyObject* given) const;
  std::optional<Keys> take_python_keys(PyObject* given) const;
  bool take_values(const Keys& keys, PyObject* given, Action action, Given& out) const;
  bool take_fallback(const Keys& keys, PyObject* given, Fallback& out);
  bool full_shape(const Keys& keys, Lengths item_shape, PlainTensor& out) const;
  std::optional<Output> take_output(const Keys& keys, DType dtype, Lengths item_shape, PyObject* given) const;
  std::optional<Output> take_mask(const Keys& keys, PyObject* given) const;
  std::optional<Output> take_value_output(const Keys& keys, PyObject* given) const;
  bool encode(PyObject* given, Number& out) const;
  bool encode_list(const Keys& keys, PyObject* given, Number& out) const;
  const void* upload(Number& number, Stream stream) const;

  bool is_apart(std::initializer_list<MemoryRange> read, std::initializer_list<const Output*> written) const;
  MemoryRange memory_of(const Keys& keys, const Given& values) const;
  static py::object hand_over(const Keys& keys, const Output& written);

  std::optional<std::int64_t> look_up(const Keys& keys, Lookup&& request,
                                      std::initializer_list<const Output*> written) const;
  bool change(const Keys& keys, const Given& values, Change&& request, std::initializer_list<const Output*> written);
  py::object hand_over_pair(const Keys& keys, PyObject* pair, const Output& first, const Output& second);
  py::object get_one(const Keys& key, PyObject* default_value) const;
  bool find_and_erase(const Keys& keys, Span<const Read> reads);
  py::object put(const Keys& keys, PyObject* values, Action action, PyObject* out);

  std::vector<Item> take_batches(PyObject* given);
  py::object look_up_batches(PyObject* keys, PyObject* default_value, bool values, bool found);
  py::object put_batches(PyObject* keys, PyObject* values, Action action, bool mask);
  py::object erase_batches(PyObject* keys);
  ShardedTable& sharded() const { return static_cast<ShardedTable&>(*table_); }

  std::shared_ptr<Table> table_;
  TableOptions options_;
  std::int64_t value_bytes_;
  Device device_;
  bool on_host_;
  std::vector<std::int64_t> key_shape_;
  std::shared_ptr<const Array> fallback_;
  std::vector<std::shared_ptr<FastPath>> views_;
  bool is_sharded_;
  std::atomic<std::uint64_t> changes_{0};
};

}  // namespace gpuhash::bindings
