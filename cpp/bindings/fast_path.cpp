#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"
#include "bindings.hpp"
#include "plain_tensor.hpp"
#include "table.hpp"

namespace gpuhash::bindings {

namespace {

/// The calls of one face of a table that need nothing explained or converted: all arrays are plain, of one framework,
/// of the table's dtypes and on its device. Small batches are served in a fifth of the time that the general path
/// takes, which is Python. Whatever is not so is answered NotImplemented, before anything is changed, and the caller
/// goes on to the general path, the only one that knows how to say what is wrong.
class FastPath {
 public:
  FastPath(std::shared_ptr<Table> table, std::vector<std::int64_t> key_shape)
      : table_(std::move(table)),
        options_(table_->options()),
        device_(table_->context().device()),
        key_shape_(std::move(key_shape)) {}

  void set_fallback(const Array* fallback) {
    if (fallback != nullptr && (fallback->bytes() != options_.value_bytes() || !(fallback->device == device_)))
      throw std::invalid_argument("the fallback is no value in the table's memory");
    fallback_ = fallback == nullptr ? nullptr : std::make_shared<Array>(*fallback);
  }

  /// Also NotImplemented where keys are absent and there is no fallback: the general path names them.
  py::object values(py::handle given) const {
    if (!options_.value_dtype) return declined();
    const std::optional<Keys> keys = take(given);
    if (!keys) return declined();
    const std::optional<Output> values = output(*keys, *options_.value_dtype, options_.value_shape, Py_None);
    if (!values) return declined();
    FindOutput out{};
    out.values = values->data;
    const bool complete = find(*keys, out, fallback_ == nullptr);
    return complete ? values->tensor : declined();
  }

  py::object find(py::handle given, py::handle out_pair) const {
    const bool has_out = !out_pair.is_none();
    if (has_out && (PyTuple_CheckExact(out_pair.ptr()) == 0 || PyTuple_GET_SIZE(out_pair.ptr()) != 2))
      return declined();
    if (!options_.value_dtype) return declined();
    const std::optional<Keys> keys = take(given);
    if (!keys) return declined();
    const auto out_at = [&](Py_ssize_t i) { return has_out ? PyTuple_GET_ITEM(out_pair.ptr(), i) : Py_None; };
    const std::optional<Output> values = output(*keys, *options_.value_dtype, options_.value_shape, out_at(0));
    if (!values) return declined();
    const std::optional<Output> found = output(*keys, DType::kBool, {}, out_at(1));
    if (!found) return declined();
    FindOutput out{};
    out.values = values->data;
    out.found = static_cast<bool*>(found->data);
    find(*keys, out, false);
    return pair(values->tensor, found->tensor);
  }

  py::object contains(py::handle given, py::handle given_out) const {
    const std::optional<Keys> keys = take(given);
    if (!keys) return declined();
    const std::optional<Output> found = output(*keys, DType::kBool, {}, given_out);
    if (!found) return declined();
    FindOutput out{};
    out.found = static_cast<bool*>(found->data);
    find(*keys, out, false);
    return found->tensor;
  }

  py::object erase(py::handle given, py::handle out) const {
    const std::optional<Keys> keys = take(given);
    if (!keys) return declined();
    const std::optional<Output> erased = output(*keys, DType::kBool, {}, out);
    if (!erased) return declined();
    {
      const py::gil_scoped_release unlocked;
      table_->erase(keys->batch, static_cast<bool*>(erased->data), keys->stream);
    }
    return erased->tensor;
  }

  /// Without a mask. False for NotImplemented, True otherwise.
  bool assign(py::handle given, py::handle given_values) const {
    const std::optional<Keys> keys = take(given);
    if (!keys) return false;
    const std::optional<ValueBatch> values = take_values(*keys, given_values);
    if (!values) return false;
    insert(*keys, *values, InsertMode::kAssign, nullptr);
    return true;
  }

  py::object insert(py::handle given, py::handle given_values, bool assign, py::handle out) const {
    const std::optional<Keys> keys = take(given);
    if (!keys) return declined();
    const std::optional<ValueBatch> values = take_values(*keys, given_values);
    if (!values) return declined();
    const std::optional<Output> inserted = output(*keys, DType::kBool, {}, out);
    if (!inserted) return declined();
    insert(*keys, *values, assign ? InsertMode::kAssign : InsertMode::kKeep, static_cast<bool*>(inserted->data));
    return inserted->tensor;
  }

 private:
  struct Keys {
    const PlainFramework* framework;
    PyObject* tensor;  // the caller's
    PlainTensor plain;
    std::size_t batch_dims;
    KeyBatch batch;
    Stream stream;

    Lengths batch_shape() const { return plain.shape().first(batch_dims); }
  };

  struct Output {
    py::object tensor;
    void* data;
  };

  static py::object declined() { return py::reinterpret_borrow<py::object>(Py_NotImplemented); }

  static py::object pair(const py::object& first, const py::object& second) {
    auto both = py::reinterpret_steal<py::object>(PyTuple_Pack(2, first.ptr(), second.ptr()));
    if (!both) throw py::error_already_set();
    return both;
  }

  /// Empty batches go the general way as well: their arrays have no memory.
  std::optional<Keys> take(py::handle given) const {
    Keys keys{};
    keys.tensor = given.ptr();
    keys.framework = plain_framework_of(keys.tensor);
    if (keys.framework == nullptr ||
        !keys.framework->read(keys.tensor, options_.key_dtype, device_, Access::kRead, keys.plain) ||
        !keys.framework->current_stream(device_, keys.stream))
      return std::nullopt;
    const Lengths whole = keys.plain.shape();
    if (whole.size() < key_shape_.size()) return std::nullopt;
    keys.batch_dims = whole.size() - key_shape_.size();
    if (!std::ranges::equal(whole.last(key_shape_.size()), key_shape_)) return std::nullopt;
    std::int64_t count = 1;
    for (const std::int64_t length : keys.batch_shape()) count *= length;
    if (count == 0) return std::nullopt;
    keys.batch = {keys.plain.data, count, options_.key_bytes()};
    return keys;
  }

  /// [*batch, *item_shape]; false where those are too many dimensions.
  static bool full_shape(const Keys& keys, Lengths item_shape, PlainTensor& out) {
    out.ndim = keys.batch_dims + item_shape.size();
    if (out.ndim > PlainTensor::kMaxDims) return false;
    std::ranges::copy(item_shape, std::ranges::copy(keys.batch_shape(), out.lengths.begin()).out);
    return true;
  }

  std::optional<Output> output(const Keys& keys, DType dtype, Lengths item_shape, py::handle given) const {
    PlainTensor wanted;
    if (!full_shape(keys, item_shape, wanted)) return std::nullopt;
    PlainTensor plain;
    if (given.is_none()) {
      py::object made = keys.framework->make(keys.tensor, dtype, wanted.shape(), device_, plain);
      if (!made) return std::nullopt;
      return Output{std::move(made), plain.data};
    }
    if (plain_framework_of(given.ptr()) != keys.framework ||
        !keys.framework->read(given.ptr(), dtype, device_, Access::kWrite, plain) ||
        !std::ranges::equal(plain.shape(), wanted.shape()))
      return std::nullopt;
    return Output{py::reinterpret_borrow<py::object>(given), plain.data};
  }

  std::optional<ValueBatch> take_values(const Keys& keys, py::handle given) const {
    if (!options_.value_dtype) return given.is_none() ? std::optional<ValueBatch>(ValueBatch{}) : std::nullopt;
    PlainTensor plain;
    PlainTensor wanted;
    if (plain_framework_of(given.ptr()) != keys.framework ||
        !keys.framework->read(given.ptr(), *options_.value_dtype, device_, Access::kRead, plain) ||
        !full_shape(keys, options_.value_shape, wanted))
      return std::nullopt;
    const bool one_each = std::ranges::equal(plain.shape(), wanted.shape());
    if (!one_each && !std::ranges::equal(plain.shape(), options_.value_shape)) return std::nullopt;
    return ValueBatch{plain.data, options_.value_bytes(), !one_each};
  }

  /// Were all keys there? True where nobody asks, and then nobody waits.
  bool find(const Keys& keys, FindOutput out, bool count_missing) const {
    const std::shared_ptr<const Array> fallback = fallback_;  // given back with the GIL
    out.bytes = options_.value_bytes();
    out.fallback = fallback == nullptr ? nullptr : fallback->data;
    out.count_missing = count_missing;
    const py::gil_scoped_release unlocked;
    return table_->find(keys.batch, out, keys.stream) == 0;
  }

  void insert(const Keys& keys, const ValueBatch& values, InsertMode mode, bool* inserted) const {
    const py::gil_scoped_release unlocked;
    table_->insert({keys.batch, values, mode, options_.deterministic, inserted}, keys.stream);
  }

  std::shared_ptr<Table> table_;
  TableOptions options_;
  Device device_;
  std::vector<std::int64_t> key_shape_;
  std::shared_ptr<const Array> fallback_;
};

}  // namespace

void bind_fast_path(py::module_& module) {
  const auto keys = py::arg("keys");
  const auto values = py::arg("values");
  const auto out = py::arg("out");
  py::class_<FastPath>(module, "FastPath", py::is_final(), "The calls on plain arrays that need no conversion.")
      .def(py::init<std::shared_ptr<Table>, std::vector<std::int64_t>>(), py::arg("table"), py::arg("key_shape"))
      .def("set_fallback", &FastPath::set_fallback, py::arg("fallback"))
      .def("values", &FastPath::values, keys)
      .def("find", py::overload_cast<py::handle, py::handle>(&FastPath::find, py::const_), keys, out)
      .def("contains", &FastPath::contains, keys, out)
      .def("erase", &FastPath::erase, keys, out)
      .def("assign", &FastPath::assign, keys, values)
      .def("insert", py::overload_cast<py::handle, py::handle, bool, py::handle>(&FastPath::insert, py::const_), keys,
           values, py::arg("assign"), out);
  module.def("use_framework", &use_framework, py::arg("name"), py::arg("module"));
}

}  // namespace gpuhash::bindings
