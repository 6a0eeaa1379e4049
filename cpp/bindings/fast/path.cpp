#include "bindings/fast/path.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <gpuhash/names.hpp>
#include "bindings/fast/python_numbers.hpp"
#include "bindings/gil.hpp"
#include "core/constants.hpp"
#include "core/float_mode.hpp"

namespace gpuhash::bindings {

namespace {

py::object borrowed(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

bool is_list(PyObject* object) { return PyList_CheckExact(object) != 0; }

/// The object, or a copy of a list, which keeps its items whatever others do to the list meanwhile.
py::object held_items(PyObject* given) {
  if (!is_list(given)) return borrowed(given);
  auto copy = py::reinterpret_steal<py::object>(PyList_GetSlice(given, 0, PyList_GET_SIZE(given)));
  if (!copy) throw py::error_already_set();
  return copy;
}

}  // namespace

FastPath::FastPath(std::shared_ptr<Table> table, std::vector<std::int64_t> key_shape)
    : table_(std::move(table)),
      options_(table_->options()),
      value_bytes_(options_.value_bytes()),
      device_(table_->context().device()),
      on_host_(device_.platform == "cpu"),
      key_shape_(std::move(key_shape)),
      is_sharded_(dynamic_cast<ShardedTable*>(table_.get()) != nullptr) {}

void FastPath::set_fallback(const Array* fallback) {
  if (fallback != nullptr && (fallback->bytes() != options_.value_bytes() || !(fallback->device == device_)))
    throw std::invalid_argument("the fallback is no value in the table's memory");
  fallback_ = fallback == nullptr ? nullptr : std::make_shared<Array>(*fallback);
}

void FastPath::set_views(std::vector<std::shared_ptr<FastPath>> views) {
  for (const auto& view : views)
    if (!view->is_sharded_ || !is_sharded_) throw std::invalid_argument("a table without shards has no views");
  views_ = std::move(views);
}

// Arguments -----------------------------------------------------------------------------------------------------------

/// Empty batches are declined as well: their arrays have no memory.
std::optional<FastPath::Keys> FastPath::take_keys(PyObject* given) const {
  Keys keys{};
  keys.tensor = given;
  keys.framework = plain_framework_of(given);
  if (keys.framework == nullptr) return take_python_keys(given);
  if (!keys.framework->read(given, options_.key_dtype, device_, Access::kRead, keys.plain) ||
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

/// A single key, as an integer or as a tuple for a key vector, or a flat list of integers. For tables on the host: on
/// a GPU such keys are copied there first.
std::optional<FastPath::Keys> FastPath::take_python_keys(PyObject* given) const {
  const bool is_batch = is_list(given) && key_shape_.empty();
  const bool is_vector = PyTuple_CheckExact(given) != 0 && key_shape_.size() == 1;
  if (!on_host_ || is_sharded_ || (!is_batch && !is_vector && !key_shape_.empty())) return std::nullopt;
  Keys keys{};
  keys.framework = numpy_framework();  // of the answers
  keys.tensor = given;
  keys.is_single = !is_batch;
  std::int64_t count = 1;
  if (is_batch || is_vector) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(given);
    if (keys.framework == nullptr || size == 0 || (is_vector && size != key_shape_[0])) return std::nullopt;
    keys.batch_dims = is_batch ? 1 : 0;
    keys.plain.ndim = 1;
    keys.plain.lengths[0] = size;
    if (is_batch) count = size;
  }
  keys.numbers = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(count) * options_.key_bytes());
  std::byte* const data = keys.numbers.get();
  if (!(is_batch || is_vector ? read_numbers(given, options_.key_dtype, data)
                              : read_number(given, options_.key_dtype, data)))
    return std::nullopt;
  keys.plain.data = data;
  keys.batch = {data, count, options_.key_bytes()};
  return keys;
}

/// A Python number as a value, where it needs no more than a conversion in C.
bool FastPath::encode(PyObject* given, Number& out) const {
  if (!options_.value_dtype || !options_.value_shape.empty()) return false;
  const DefaultFloatMode float_mode;  // a small number is not to become 0
  return read_number(given, *options_.value_dtype, out.bytes.data());
}

/// A flat list with a number for each key, for tables on the host.
bool FastPath::encode_list(const Keys& keys, PyObject* given, Number& out) const {
  if (!on_host_ || !options_.value_shape.empty() || keys.batch_dims != 1 || !is_list(given)) return false;
  if (PyList_GET_SIZE(given) != keys.batch.count) return false;
  out.list =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(keys.batch.count * options_.value_bytes()));
  const DefaultFloatMode float_mode;
  return read_numbers(given, *options_.value_dtype, out.list.get());
}

/// The number in the table's memory: where it is, on the host. Null where it cannot be brought there now, under
/// capture.
const void* FastPath::upload(Number& number, Stream stream) const {
  if (on_host_) return number.bytes.data();
  const std::string_view bytes(reinterpret_cast<const char*>(number.bytes.data()),
                               static_cast<std::size_t>(options_.value_bytes()));
  const GilRelease unlocked;
  return table_->constants().upload(bytes, stream, number.uploaded);
}

/// False where they are for the general path. A set is given None.
bool FastPath::take_values(const Keys& keys, PyObject* given, Action action, Given& out) const {
  if (!options_.columns.empty()) return false;
  if (!options_.value_dtype) return given == Py_None;
  Write& write = out.write.emplace();
  write.action = action;
  if (encode(given, out.number)) {
    write.values = upload(out.number, keys.stream);
    write.broadcast = true;
    return write.values != nullptr;
  }
  if (encode_list(keys, given, out.number)) {
    write.values = out.number.list.get();
    return true;
  }
  PlainTensor plain;
  PlainTensor wanted;
  if (plain_framework_of(given) != keys.framework ||
      !keys.framework->read(given, *options_.value_dtype, device_, Access::kRead, plain) ||
      !full_shape(keys, options_.value_shape, wanted))
    return false;
  write.values = plain.data;
  write.broadcast = !std::ranges::equal(plain.shape(), wanted.shape());
  return !write.broadcast || std::ranges::equal(plain.shape(), options_.value_shape);
}

/// The value of absent keys: a Python number, or for None the table's own, if it has one.
bool FastPath::take_fallback(const Keys& keys, PyObject* given, Fallback& out) {
  if (given == Py_None) {
    out.array = fallback_;
    out.data = out.array == nullptr ? nullptr : out.array->data;
    return true;
  }
  if (!encode(given, out.number)) return false;
  out.data = upload(out.number, keys.stream);
  return out.data != nullptr;
}

/// [*batch, *item_shape]; false where those are too many dimensions.
bool FastPath::full_shape(const Keys& keys, Lengths item_shape, PlainTensor& out) const {
  out.ndim = keys.batch_dims + item_shape.size();
  if (out.ndim > PlainTensor::kMaxDims) return false;
  std::ranges::copy(item_shape, std::ranges::copy(keys.batch_shape(), out.lengths.begin()).out);
  return true;
}

/// The caller's own array, or for None a new one, or of a single key a number.
std::optional<FastPath::Output> FastPath::take_output(const Keys& keys, DType dtype, Lengths item_shape,
                                                      PyObject* given) const {
  PlainTensor wanted;
  if (!full_shape(keys, item_shape, wanted)) return std::nullopt;
  PlainTensor plain;
  std::int64_t bytes = keys.batch.count * static_cast<std::int64_t>(itemsize(dtype));
  for (const std::int64_t length : item_shape) bytes *= length;
  if (given == Py_None && keys.is_single && item_shape.empty()) return Output{{}, {}, false, true, dtype, {}};
  if (given == Py_None) {
    py::object made = keys.framework->make(keys.tensor, dtype, wanted.shape(), device_, plain);
    if (!made) return std::nullopt;
    return Output{std::move(made), {plain.data, bytes}, false, false, dtype, {}};
  }
  if (plain_framework_of(given) != keys.framework ||
      !keys.framework->read(given, dtype, device_, Access::kWrite, plain) ||
      !std::ranges::equal(plain.shape(), wanted.shape()))
    return std::nullopt;
  return Output{borrowed(given), {plain.data, bytes}, true, false, dtype, {}};
}

std::optional<FastPath::Output> FastPath::take_mask(const Keys& keys, PyObject* given) const {
  return take_output(keys, DType::kBool, {}, given);
}

std::optional<FastPath::Output> FastPath::take_value_output(const Keys& keys, PyObject* given) const {
  return options_.value_dtype ? take_output(keys, *options_.value_dtype, options_.value_shape, given) : std::nullopt;
}

// Calls: a table is never waited for with the GIL held, as its memory resource may want it ----------------------------

/// Is what the caller wants written apart from what is read, from each other and from the table's rows? To be called
/// without the GIL.
bool FastPath::is_apart(std::initializer_list<MemoryRange> read, std::initializer_list<const Output*> written) const {
  for (const Output* const output : written) {
    if (!output->given) continue;
    for (const MemoryRange& input : read)
      if (overlap(output->memory, input)) return false;
    for (const Output* const other : written)
      if (other != output && overlap(output->memory, other->memory)) return false;
    if (options_.has_rows() && table_->overlaps_rows(output->memory)) return false;
  }
  return true;
}

MemoryRange FastPath::memory_of(const Keys& keys, const Given& values) const {
  if (!values.write) return {};
  return {values.write->values, (values.write->broadcast ? 1 : keys.batch.count) * value_bytes_};
}

/// The filled array, or the number; the caller's own array is known to have changed from now on.
py::object FastPath::hand_over(const Keys& keys, const Output& written) {
  if (written.is_number) return to_number(written.dtype, written.number.data());
  if (written.given) keys.framework->note_write(written.tensor.ptr());
  return written.tensor;
}

/// Two answers; `pair` is the caller's own, or None.
py::object FastPath::hand_over_pair(const Keys& keys, PyObject* pair, const Output& first, const Output& second) {
  if (first.given && second.given) {
    keys.framework->note_write(pair);
    return borrowed(pair);
  }
  auto both =
      py::reinterpret_steal<py::object>(PyTuple_Pack(2, hand_over(keys, first).ptr(), hand_over(keys, second).ptr()));
  if (!both) throw py::error_already_set();
  return both;
}

/// Of these keys. Nothing where it is for the general path.
std::optional<std::int64_t> FastPath::look_up(const Keys& keys, Lookup&& request,
                                              std::initializer_list<const Output*> written) const {
  const GilRelease unlocked;
  if (!is_apart({keys.memory()}, written)) return std::nullopt;
  request.keys = keys.batch;
  request.stream = keys.stream;
  return table_->look_up(request);
}

/// Likewise; false where it is for the general path.
bool FastPath::change(const Keys& keys, const Given& values, Change&& request,
                      std::initializer_list<const Output*> written) {
  const GilRelease unlocked;
  if (!is_apart({keys.memory(), memory_of(keys, values)}, written)) return false;
  ++changes_;
  request.keys = keys.batch;
  request.writes = values.writes();
  request.stream = keys.stream;
  table_->change(request);
  return true;
}

py::object FastPath::getitem(Arguments given) {
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys) return {};
  const std::optional<Output> values = take_value_output(*keys, Py_None);
  if (!values) return {};
  Fallback fallback;
  take_fallback(*keys, Py_None, fallback);
  const Read read{.values = values->data(), .fallback = fallback.data};
  return look_up(*keys, {.reads = {&read, 1}, .count_missing = fallback.data == nullptr}, {}) == 0
             ? hand_over(*keys, *values)
             : py::object();
}

py::object FastPath::get(Arguments given) {
  if (is_sharded_ && is_list(given[0]) && given[2] == Py_None) return look_up_batches(given[0], given[1], true, false);
  const std::optional<Keys> keys = take_keys(given[0]);
  if (keys && keys->is_single && given[2] == Py_None) return get_one(*keys, given[1]);
  Fallback fallback;
  if (!keys || !take_fallback(*keys, given[1], fallback) || fallback.data == nullptr) return {};
  const std::optional<Output> values = take_value_output(*keys, given[2]);
  if (!values) return {};
  const Read read{.values = values->data(), .fallback = fallback.data};
  return look_up(*keys, {.reads = {&read, 1}}, {&*values}) ? hand_over(*keys, *values) : py::object();
}

/// Of a single key that is absent the default is whatever object the caller gives.
py::object FastPath::get_one(const Keys& key, PyObject* default_value) const {
  const std::optional<Output> value = take_value_output(key, Py_None);
  if (!value) return {};
  const Read read{.values = value->data()};
  if (look_up(key, {.reads = {&read, 1}, .count_missing = true}, {}) == 0) return hand_over(key, *value);
  if (default_value != Py_None) return borrowed(default_value);
  if (fallback_ == nullptr) return py::none();
  return value->is_number ? to_number(value->dtype, fallback_->data) : py::object();
}

py::object FastPath::find(Arguments given) {
  PyObject* const pair = given[2];
  const bool new_outputs = pair == Py_None;
  if (is_sharded_ && is_list(given[0]) && new_outputs) return look_up_batches(given[0], given[1], true, true);
  if (!new_outputs && (PyTuple_CheckExact(pair) == 0 || PyTuple_GET_SIZE(pair) != 2)) return {};
  const std::optional<Keys> keys = take_keys(given[0]);
  Fallback fallback;
  if (!keys || !take_fallback(*keys, given[1], fallback)) return {};
  const std::optional<Output> values = take_value_output(*keys, new_outputs ? Py_None : PyTuple_GET_ITEM(pair, 0));
  if (!values) return {};
  const std::optional<Output> found = take_mask(*keys, new_outputs ? Py_None : PyTuple_GET_ITEM(pair, 1));
  if (!found) return {};
  const Read read{.values = values->data(), .fallback = fallback.data};
  if (!look_up(*keys, {.reads = {&read, 1}, .found = found->data<bool>()}, {&*values, &*found})) return {};
  return hand_over_pair(*keys, pair, *values, *found);
}

py::object FastPath::contains(Arguments given) {
  if (is_sharded_ && is_list(given[0]) && given[1] == Py_None) return look_up_batches(given[0], Py_None, false, true);
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys) return {};
  const std::optional<Output> found = take_mask(*keys, given[1]);
  if (!found) return {};
  return look_up(*keys, {.found = found->data<bool>()}, {&*found}) ? hand_over(*keys, *found) : py::object();
}

py::object FastPath::contains_one(Arguments given) {
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys || keys->batch_dims != 0) return {};
  return py::bool_(look_up(*keys, {.count_missing = true}, {}) == 0);
}

py::object FastPath::rows(Arguments given) {
  if (!options_.has_rows()) return {};
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys) return {};
  const std::optional<Output> numbers = take_output(*keys, DType::kInt64, {}, given[1]);
  if (!numbers) return {};
  return look_up(*keys, {.rows = numbers->data<std::int64_t>()}, {&*numbers}) ? hand_over(*keys, *numbers)
                                                                              : py::object();
}

py::object FastPath::setitem(Arguments given) {
  if (is_sharded_ && is_list(given[0])) return put_batches(given[0], given[1], Action::kAssign, false);
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys) return {};
  Given values;
  if (!take_values(*keys, given[1], Action::kAssign, values)) return {};
  return change(*keys, values, {}, {}) ? py::none() : py::object();
}

py::object FastPath::put(const Keys& keys, PyObject* given_values, Action action, PyObject* out) {
  Given values;
  if (!take_values(keys, given_values, action, values)) return {};
  const std::optional<Output> inserted = take_mask(keys, out);
  if (!inserted || !change(keys, values, {.inserted = inserted->data<bool>()}, {&*inserted})) return {};
  return hand_over(keys, *inserted);
}

py::object FastPath::insert(Arguments given) {
  if (is_sharded_ && is_list(given[0]) && given[2] == Py_None)
    return put_batches(given[0], given[1], Action::kKeep, true);
  const std::optional<Keys> keys = take_keys(given[0]);
  return keys ? put(*keys, given[1], Action::kKeep, given[2]) : py::object();
}

py::object FastPath::insert_or_assign(Arguments given) {
  if (is_sharded_ && is_list(given[0]) && given[2] == Py_None)
    return put_batches(given[0], given[1], Action::kAssign, true);
  const std::optional<Keys> keys = take_keys(given[0]);
  return keys ? put(*keys, given[1], Action::kAssign, given[2]) : py::object();
}

py::object FastPath::find_or_insert(Arguments given) {
  PyObject* const pair = given[2];
  const bool new_outputs = pair == Py_None;
  if (!options_.has_rows()) return {};
  if (!new_outputs && (PyTuple_CheckExact(pair) == 0 || PyTuple_GET_SIZE(pair) != 2)) return {};
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys) return {};
  Given values;
  const std::shared_ptr<const Array> fallback = options_.initializer ? nullptr : fallback_;
  if (given[1] != Py_None) {
    if (!take_values(*keys, given[1], Action::kKeep, values)) return {};
  } else if (fallback != nullptr) {
    values.write = {.values = fallback->data, .broadcast = true, .action = Action::kKeep};
  }
  const std::optional<Output> rows =
      take_output(*keys, DType::kInt64, {}, new_outputs ? Py_None : PyTuple_GET_ITEM(pair, 0));
  if (!rows) return {};
  const std::optional<Output> inserted = take_mask(*keys, new_outputs ? Py_None : PyTuple_GET_ITEM(pair, 1));
  if (!inserted) return {};
  if (!change(*keys, values, {.inserted = inserted->data<bool>(), .rows = rows->data<std::int64_t>()},
              {&*rows, &*inserted}))
    return {};
  return hand_over_pair(*keys, pair, *rows, *inserted);
}

py::object FastPath::add(Arguments given) {
  if (is_sharded_ && is_list(given[0]) && given[1] == Py_None)
    return put_batches(given[0], Py_None, Action::kKeep, true);
  const std::optional<Keys> keys = take_keys(given[0]);
  return keys ? put(*keys, Py_None, Action::kKeep, given[1]) : py::object();
}

py::object FastPath::insert_or_apply(Arguments given) {
  if (PyUnicode_CheckExact(given[2]) == 0 || !options_.value_dtype) return {};
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(given[2], &length);
  if (text == nullptr) {
    PyErr_Clear();  // no name of an operation
    return {};
  }
  const std::optional<Action> op = find_named(kActions, {text, static_cast<std::size_t>(length)});
  if (!op || !combines(*op) || !has_op(*options_.value_dtype, *op)) return {};
  if (is_sharded_ && is_list(given[0]) && given[3] == Py_None) return put_batches(given[0], given[1], *op, true);
  const std::optional<Keys> keys = take_keys(given[0]);
  return keys ? put(*keys, given[1], *op, given[3]) : py::object();
}

py::object FastPath::erase(Arguments given) {
  if (is_sharded_ && is_list(given[0]) && given[1] == Py_None) return erase_batches(given[0]);
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys) return {};
  const std::optional<Output> erased = take_mask(*keys, given[1]);
  if (!erased) return {};
  {
    const GilRelease unlocked;
    if (!is_apart({keys->memory()}, {&*erased})) return {};
    ++changes_;
    table_->erase({.keys = keys->batch, .erased = erased->data<bool>(), .stream = keys->stream});
  }
  return hand_over(*keys, *erased);
}

/// Declined where keys are absent: the general path names them.
py::object FastPath::erase_present(Arguments given) {
  const std::optional<Keys> keys = take_keys(given[0]);
  return keys && find_and_erase(*keys, {}) ? py::none() : py::object();
}

py::object FastPath::discard(Arguments given) {
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys) return {};
  {
    const GilRelease unlocked;
    ++changes_;
    table_->erase({.keys = keys->batch, .stream = keys->stream});
  }
  return py::none();
}

/// Of a single key. Here no default looks like None, which makes no difference where the key is there.
py::object FastPath::pop(Arguments given) {
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys || !keys->is_single || given[2] != Py_None) return {};
  const std::optional<Output> value = take_value_output(*keys, Py_None);
  if (!value) return {};
  const Read read{.values = value->data()};
  if (find_and_erase(*keys, {&read, 1})) return hand_over(*keys, *value);
  return given[1] != Py_None ? borrowed(given[1]) : py::object();
}

/// False where keys are absent: then nothing is erased.
bool FastPath::find_and_erase(const Keys& keys, Span<const Read> reads) {
  const GilRelease unlocked;
  const Erasure erasure{.keys = keys.batch, .reads = reads, .all_or_none = true, .stream = keys.stream};
  if (table_->erase(erasure) != 0) return false;
  ++changes_;
  return true;
}

/// With a default that is given here.
py::object FastPath::setdefault(Arguments given) {
  if (!options_.value_dtype || given[1] == Py_None || given[2] != Py_None) return {};
  const std::optional<Keys> keys = take_keys(given[0]);
  if (!keys) return {};
  Given defaults;
  if (!take_values(*keys, given[1], Action::kKeep, defaults)) return {};
  const std::optional<Output> values = take_value_output(*keys, Py_None);
  if (!values) return {};
  const Read read{
      .values = values->data(), .fallback = defaults.write->values, .fallback_per_key = !defaults.write->broadcast};
  return change(*keys, defaults, {.reads = {&read, 1}}, {}) ? hand_over(*keys, *values) : py::object();
}

// Lists of batches ----------------------------------------------------------------------------------------------------

/// Nothing where one of them is for the general path, as lists of numbers are.
std::vector<FastPath::Item> FastPath::take_batches(PyObject* given) {
  std::vector<Item> items;
  if (!is_sharded_) return items;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(given); ++i) {
    py::object tensor = borrowed(PyList_GET_ITEM(given, i));
    FastPath* path = this;
    std::optional<Keys> keys = take_keys(tensor.ptr());
    for (auto view = views_.begin(); !keys && view != views_.end(); ++view) {
      path = view->get();
      keys = path->take_keys(tensor.ptr());
    }
    if (!keys || keys->batch_dims == 0) return {};
    items.push_back({std::move(tensor), path, std::move(*keys)});
  }
  return items;
}

py::object FastPath::look_up_batches(PyObject* keys, PyObject* default_value, bool values, bool found) {
  const std::vector<Item> items = take_batches(keys);
  if (items.empty()) return {};
  std::vector<Fallback> fallbacks(items.size());
  std::vector<Read> reads(items.size());
  std::vector<Lookup> requests;
  py::list all_values;
  py::list all_found;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& [tensor, path, batch] = items[i];
    Lookup& request = requests.emplace_back();
    request.keys = batch.batch;
    request.stream = batch.stream;
    request.view = &path->sharded();
    if (values) {
      if (!path->take_fallback(batch, default_value, fallbacks[i])) return {};
      if (!found && fallbacks[i].data == nullptr) return {};
      const std::optional<Output> made = path->take_value_output(batch, Py_None);
      if (!made) return {};
      reads[i] = {.values = made->data(), .fallback = fallbacks[i].data};
      request.reads = {&reads[i], 1};
      all_values.append(made->tensor);
    }
    if (found) {
      const std::optional<Output> made = path->take_mask(batch, Py_None);
      if (!made) return {};
      request.found = made->data<bool>();
      all_found.append(made->tensor);
    }
  }
  {
    const GilRelease unlocked;
    table_->look_up(requests);
  }
  if (values && found) return py::make_tuple(all_values, all_found);
  return values ? all_values : all_found;
}

/// `given_values` are an array for each batch, or the same number for all; None of sets.
py::object FastPath::put_batches(PyObject* keys, PyObject* given_values, Action action, bool mask) {
  const std::vector<Item> items = take_batches(keys);
  if (items.empty()) return {};
  const py::object held = held_items(given_values);
  const bool one_each = is_list(held.ptr());
  if (one_each && static_cast<std::size_t>(PyList_GET_SIZE(held.ptr())) != items.size()) return {};
  std::vector<Given> values(items.size());
  std::vector<Change> requests;
  py::list masks;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& [tensor, path, batch] = items[i];
    PyObject* const given = one_each ? PyList_GET_ITEM(held.ptr(), static_cast<Py_ssize_t>(i)) : held.ptr();
    if (!path->take_values(batch, given, action, values[i])) return {};
    if (one_each && values[i].write && values[i].write->broadcast) return {};
    Change& request = requests.emplace_back();
    request.keys = batch.batch;
    request.writes = values[i].writes();
    request.stream = batch.stream;
    request.view = &path->sharded();
    if (!mask) continue;
    const std::optional<Output> made = path->take_mask(batch, Py_None);
    if (!made) return {};
    request.inserted = made->data<bool>();
    masks.append(made->tensor);
  }
  {
    const GilRelease unlocked;
    ++changes_;
    table_->change(requests);
  }
  return mask ? py::object(masks) : py::none();
}

py::object FastPath::erase_batches(PyObject* keys) {
  const std::vector<Item> items = take_batches(keys);
  if (items.empty()) return {};
  std::vector<Erasure> requests;
  py::list masks;
  for (const auto& [tensor, path, batch] : items) {
    const std::optional<Output> erased = path->take_mask(batch, Py_None);
    if (!erased) return {};
    requests.push_back(
        {.keys = batch.batch, .erased = erased->data<bool>(), .stream = batch.stream, .view = &path->sharded()});
    masks.append(erased->tensor);
  }
  {
    const GilRelease unlocked;
    ++changes_;
    table_->erase(requests);
  }
  return masks;
}

}  // namespace gpuhash::bindings
