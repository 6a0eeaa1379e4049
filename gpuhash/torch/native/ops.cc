// The ops, the same for CPU and CUDA. Of PyTorch only what its stable interface has (since 2.10), so that a library
// that was compiled against one version works with later ones; and neither Python nor CUDA, so that compiled models
// load it alone.
//
// The first argument of each op is the table's *state*, an int64 tensor [1] on the CPU with the table's handle. Ops
// that change the table say that they write to the state, which orders them: none of them ever does. They have it as
// the first of a list.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <gpuhash/error.hpp>
#include <gpuhash/factorization.hpp>
#include <gpuhash/handles.hpp>
#include <gpuhash/names.hpp>
#include <gpuhash/platform.hpp>
#include <gpuhash/registry.hpp>
#include <gpuhash/table.hpp>

namespace gpuhash::torch_ops {
namespace {

using torch::headeronly::DeviceType;
using torch::stable::Tensor;
using torch::stable::detail::StableLibrary;

// Dtypes and shapes ---------------------------------------------------------------------------------------------------

using TypeCode = std::int32_t;  // of PyTorch's C interface, for a dtype

TypeCode code_of(DType dtype) {
  static const std::array<TypeCode, kDTypeCount> codes = {
      aoti_torch_dtype_bool(),    aoti_torch_dtype_int8(),      aoti_torch_dtype_int16(),
      aoti_torch_dtype_int32(),   aoti_torch_dtype_int64(),     aoti_torch_dtype_uint8(),
      aoti_torch_dtype_uint16(),  aoti_torch_dtype_uint32(),    aoti_torch_dtype_uint64(),
      aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16(),  aoti_torch_dtype_float32(),
      aoti_torch_dtype_float64(), aoti_torch_dtype_complex64(), aoti_torch_dtype_complex128()};
  return codes[static_cast<std::size_t>(dtype)];
}

TypeCode code_of(const Tensor& tensor) {
  TypeCode code = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  return code;
}

std::string name_of(TypeCode code) {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype)
    if (code_of(static_cast<DType>(dtype)) == code) return std::string(name(static_cast<DType>(dtype)));
  return "another dtype";
}

using Shape = std::vector<std::int64_t>;

Shape shape_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end()};
}

std::string text_of(const Shape& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

Shape joined(Shape batch, const Shape& item) {
  batch.insert(batch.end(), item.begin(), item.end());
  return batch;
}

// Devices and streams -------------------------------------------------------------------------------------------------

/// Of PyTorch on a GPU. The function is in PyTorch's CUDA library, which is there if anything is on a GPU.
Stream current_stream(int index) {
  using Function = AOTITorchError (*)(std::int32_t, void**);
  static const auto function = [] {
    void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<Function>(
        dlsym(library == nullptr ? RTLD_DEFAULT : library, "aoti_torch_get_current_cuda_stream"));
  }();
  if (function == nullptr) throw std::runtime_error("this PyTorch is built without CUDA, and the table is on a GPU");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(function(index, &stream));
  return stream;
}

Stream stream_of(const Device& device) { return device.platform == "cpu" ? nullptr : current_stream(device.index); }

Device device_of(const Tensor& tensor) {
  if (tensor.is_cpu()) return {"cpu", 0};
  if (tensor.is_cuda()) return {"cuda", tensor.get_device_index()};
  throw std::invalid_argument("a tensor on neither CPU nor CUDA was given");
}

/// Dense and uninitialized, on the device of `like`.
Tensor empty(const Shape& shape, TypeCode dtype, const Tensor& like) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0; stride *= shape[axis] > 1 ? shape[axis] : 1) strides[axis] = stride;
  std::int32_t device_type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  AtenTensorHandle made = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<std::int64_t>(shape.size()), shape.data(), strides.data(),
                                                  dtype, device_type, like.get_device_index(), &made));
  return Tensor(made);
}

Tensor dense(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

// Tables and their arguments ------------------------------------------------------------------------------------------

std::shared_ptr<Table> table_of_state(const Tensor& state) {
  if (state.numel() != 1 || code_of(state) != aoti_torch_dtype_int64())
    throw std::invalid_argument("the state of a table is an int64 tensor of one element: hand it on as it is");
  // PyTorch 2.11 puts all constants of a model that was compiled for a GPU there, those on the CPU as well.
  const Tensor host = state.is_cpu() ? state : torch::stable::to(state, torch::stable::Device(DeviceType::CPU));
  const std::int64_t handle = *static_cast<const std::int64_t*>(host.const_data_ptr());
  if (std::shared_ptr<Table> table = table_of(handle)) return table;
  throw std::invalid_argument(
      "no table of this process has the handle " + std::to_string(handle) +
      ": it was freed, or no table has its name: keep the table as long as what was compiled for it is used, and where "
      "a saved model is loaded first make or open the table, with the name that it had when the model was exported");
}

/// One of each column: a tensor, or nothing.
using OptionalTensors = std::vector<std::optional<Tensor>>;

struct ColumnKind {
  DType dtype;
  const Shape& shape;
  const std::string& name;
};

ColumnKind kind_of(const TableOptions& options, std::size_t column) {
  static const std::string kNoName;
  if (options.columns.empty()) return {*options.value_dtype, options.value_shape, kNoName};
  const Column& named = options.columns[column];
  return {named.dtype, named.shape, named.name};
}

/// Columns as graphs have them, with semicolons between them: "float32[2,3] weight", and "float32[2,3]" for the value
/// of a table without named ones. The table may be another one than the graph was compiled for, and then has no such
/// column. The escapes are those of gpuhash/torch/calls.py.
std::string text_of(const ColumnKind& kind) {
  static constexpr std::string_view kEscaped("\\;\n\r\0", 5);
  static constexpr std::string_view kEscapes("\\snr0");
  std::string text(name(kind.dtype));
  for (std::size_t axis = 0; axis < kind.shape.size(); ++axis)
    text += (axis == 0 ? "[" : ",") + std::to_string(kind.shape[axis]);
  if (!kind.shape.empty()) text += "]";
  if (!kind.name.empty()) text += " ";
  for (const char each : kind.name) {
    const std::size_t escape = kEscaped.find(each);
    if (escape != kEscaped.npos) text += '\\';
    text += escape != kEscaped.npos ? kEscapes[escape] : each;
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string text_of_all(const TableOptions& options) {
  std::string text;
  for (std::size_t column = 0; column < options.column_count(); ++column)
    text += (column == 0 ? "" : "; ") + text_of(kind_of(options, column));
  return text.empty() ? "none: it is a set" : text;
}

/// One call: its table and keys, both held, and its stream.
class Call {
 public:
  Call(const Tensor& state, const Tensor& keys, std::int64_t key_dims)
      : table_(table_of_state(state)), keys_(dense(keys)), stream_(check_device("keys", keys)) {
    const TableOptions& options = table_->options();
    check_dtype("keys", keys_, "keys", options.key_dtype);
    const std::int64_t expected = options.key_elements;
    batch_ = shape_of(keys_);
    const bool has_dims = key_dims >= 0 && key_dims <= static_cast<std::int64_t>(batch_.size());
    std::int64_t elements = 1;
    for (std::int64_t dim = 0; has_dims && dim < key_dims; ++dim) elements *= *(batch_.rbegin() + dim);
    if (!has_dims || elements != expected)
      throw ShapeError("the keys have shape " + text_of(batch_) + " with " + std::to_string(key_dims) +
                       " key dimensions, and a key of the table has " + std::to_string(expected) + " numbers");
    batch_.resize(batch_.size() - static_cast<std::size_t>(key_dims));
  }

  Table& table() const { return *table_; }
  Stream stream() const { return stream_; }
  KeyBatch keys() const {
    const TableOptions& options = table_->options();
    return {keys_.const_data_ptr(), keys_.numel() / options.key_elements, options.key_bytes()};
  }

  /// The numbers of columns.
  std::vector<std::size_t> find(std::string_view columns) const {
    std::vector<std::size_t> numbers;
    for (const std::string_view column : split(columns, ';')) numbers.push_back(find_one(column));
    return numbers;
  }

  /// Of shape [*batch] where it is wanted, or else empty.
  Tensor new_answer(bool wanted, TypeCode dtype) const { return empty(wanted ? batch_ : Shape{0}, dtype, keys_); }
  Tensor new_mask(bool wanted) const { return new_answer(wanted, aoti_torch_dtype_bool()); }
  Tensor new_rows(bool wanted) const {
    if (wanted && !table_->options().has_rows()) throw std::invalid_argument("the table has no row storage");
    return new_answer(wanted, aoti_torch_dtype_int64());
  }
  Tensor new_values(std::size_t column) const {
    const ColumnKind kind = kind_of(table_->options(), column);
    return empty(joined(batch_, kind.shape), code_of(kind.dtype), keys_);
  }

  /// One value or one per key; dense. Complex ones may come as pairs of their parts, with one more dimension.
  Tensor take_values(const char* what, std::size_t column, const Tensor& given) const {
    const ColumnKind kind = kind_of(table_->options(), column);
    const std::string whose = kind.name.empty() ? what : std::string(what) + " of '" + kind.name + "'";
    check_device(whose, given);
    if (!are_parts(kind, given)) check_dtype(whose, given, "values", kind.dtype);
    const Shape shape = shape_of(given);
    const Shape one = value_shape_in(kind, given);
    if (shape != joined(batch_, one) && shape != one)
      throw ShapeError("the " + whose + " have shape " + text_of(shape) + ", expected " + text_of(joined(batch_, one)) +
                       ", or " + text_of(one) + " for all keys alike");
    return dense(given);
  }
  bool is_one_for_all(std::size_t column, const Tensor& values) const {
    return shape_of(values) != joined(batch_, value_shape_in(kind_of(table_->options(), column), values));
  }

  /// A tensor of the caller's, for one value per key, which the call writes.
  Tensor take_output(std::size_t column, const Tensor& given) const {
    Tensor output = take_values("outputs", column, given);
    if (is_one_for_all(column, output) || !given.is_contiguous())
      throw ShapeError("an output of shape " + text_of(shape_of(given)) +
                       " is not dense, or has no value for each key");
    return output;
  }

 private:
  std::size_t find_one(std::string_view column) const {
    const TableOptions& options = table_->options();
    for (std::size_t number = 0; number < options.column_count(); ++number)
      if (text_of(kind_of(options, number)) == column) return number;
    throw std::invalid_argument("what was compiled is for a table with values of " + std::string(column) +
                                ", and this table has values of " + text_of_all(options));
  }

  Stream check_device(const std::string& what, const Tensor& tensor) const {
    const Device given = device_of(tensor);
    const Device& own = table_->context().device();
    if (!(given == own))
      throw ShapeError("the " + what + " are on " + given.to_string() + " and the table is on " + own.to_string() +
                       ": move one to the other");
    return stream_of(own);
  }
  static void check_dtype(const std::string& what, const Tensor& tensor, const char* which, DType expected) {
    const TypeCode given = code_of(tensor);
    if (given != code_of(expected))
      throw DTypeError("the " + what + " are " + name_of(given) + ", and the table has " + which + " of " +
                       std::string(name(expected)) + ": convert them with .to(torch." + std::string(name(expected)) +
                       ")");
  }

  static bool are_parts(const ColumnKind& kind, const Tensor& given) {
    return (kind.dtype == DType::kComplex64 && code_of(given) == code_of(DType::kFloat32)) ||
           (kind.dtype == DType::kComplex128 && code_of(given) == code_of(DType::kFloat64));
  }
  static Shape value_shape_in(const ColumnKind& kind, const Tensor& given) {
    return are_parts(kind, given) ? joined(kind.shape, {2}) : kind.shape;
  }

  std::shared_ptr<Table> table_;
  Tensor keys_;
  Stream stream_;
  Shape batch_;
};

void check_count(const char* what, std::size_t given, std::size_t columns) {
  if (given != columns)
    throw std::invalid_argument(std::to_string(given) + " " + what + " were given for " + std::to_string(columns) +
                                " columns");
}

void check_count(const char* what, const OptionalTensors& given, std::size_t columns) {
  const bool is_none = given.size() == 1 && !given.front();
  if (columns != 0 || !is_none) check_count(what, given.size(), columns);
}

const Tensor& state_in(const std::vector<Tensor>& written) {
  if (written.empty()) throw std::invalid_argument("the state of a table is missing");
  return written.front();
}

/// What a call reads, and the tensors that it needs until it is enqueued.
struct Reads {
  Reads() = default;
  /// Into the outputs behind the state.
  Reads(const Call& call, std::string_view columns, const std::vector<Tensor>& written) {
    const std::vector<std::size_t> numbers = call.find(columns);
    check_count("outputs", written.size() - 1, numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) add(numbers[i], call.take_output(numbers[i], written[i + 1]));
  }

  void add(std::size_t column, Tensor output) {
    list.push_back({.column = column, .values = output.mutable_data_ptr()});
    held.push_back(std::move(output));
  }
  void set_fallback(const Call& call, std::size_t i, const std::optional<Tensor>& given) {
    if (!given) return;
    Read& read = list[i];
    held.push_back(call.take_values("defaults", read.column, *given));
    read.fallback = held.back().const_data_ptr();
    read.fallback_per_key = !call.is_one_for_all(read.column, held.back());
  }

  std::vector<Read> list;
  std::vector<Tensor> held;
};

template <class Item>
Item* data_of(Tensor& answer, bool wanted) {
  return wanted ? static_cast<Item*>(answer.mutable_data_ptr()) : nullptr;
}

/// PyTorch has no exception of Python for one that the core throws: its name is what the text begins with.
/// gpuhash.torch raises it by that, outside of graphs.
template <class Work>
auto with_names(const Work& work) {
  try {
    return work();
  } catch (const TableFullError& error) {
    throw std::runtime_error(std::string("TableFullError: ") + error.what());
  } catch (const OutOfMemoryError& error) {
    throw std::runtime_error(std::string("MemoryError: ") + error.what());
  } catch (const CudaError& error) {
    throw std::runtime_error(std::string("CudaError: ") + error.what());
  }
}

/// An IndexError in Python, as PyTorch has no exception that becomes a KeyError.
void need_none(std::int64_t missing, const Call& call, const char* advice) {
  if (missing != 0)
    throw std::out_of_range(std::to_string(missing) + " of " + std::to_string(call.keys().count) +
                            " keys are absent: " + advice);
}

// Calls ---------------------------------------------------------------------------------------------------------------
//
// Each takes lists, one item for each column. A look-up gives a list as well. The others cannot: what writes to an
// argument may give neither a list in the graphs of torch.compile nor anything that may be None. So they give a fixed
// number of tensors, empty where they are not asked for, and write values into tensors that they are given: behind the
// state in their first list. AOTInductor cannot hand on an empty list of tensors: no item stands for one that is None.
// A list costs half a microsecond, so lists of words are one text.

/// The values of each column; then which keys were found and the numbers of their rows, where they are asked for.
/// fallbacks  // of each column: one value, one for each key, or none, which is zeros
/// required  // waits: absent keys are an error
std::vector<Tensor> look_up(const Tensor& state, const Tensor& keys, std::int64_t key_dims, std::string_view columns,
                            const OptionalTensors& fallbacks, bool found, bool rows, bool required) {
  const Call call(state, keys, key_dims);
  const std::vector<std::size_t> numbers = call.find(columns);
  check_count("defaults", fallbacks, numbers.size());
  std::vector<Tensor> answers;
  Reads reads;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    answers.push_back(call.new_values(numbers[i]));
    reads.add(numbers[i], answers.back());
    reads.set_fallback(call, i, fallbacks[i]);
  }
  Lookup request{.keys = call.keys(), .reads = reads.list, .count_missing = required, .stream = call.stream()};
  if (found) request.found = data_of<bool>(answers.emplace_back(call.new_mask(true)), true);
  if (rows) request.rows = data_of<std::int64_t>(answers.emplace_back(call.new_rows(true)), true);
  const std::int64_t missing = with_names([&] { return call.table().look_up(request); });
  need_none(missing, call, "look them up with find or get, or give the table a default");
  return answers;
}

std::int64_t size(const Tensor& state) {
  const std::shared_ptr<Table> table = table_of_state(state);
  return with_names([&] { return table->size(stream_of(table->context().device())); });
}

/// Inserts the keys that are not there: which were new, and the numbers of their rows.
/// written  // the state, and an output of each column that is read afterwards: [n, *shape]
/// values  // of each column: one value, or one for each key
/// actions  // what becomes of those that are there: the name of an Action for each column
std::tuple<Tensor, Tensor> change(const std::vector<Tensor>& written, const Tensor& keys, std::int64_t key_dims,
                                  std::string_view columns, const OptionalTensors& values, std::string_view actions,
                                  bool is_new, bool rows, std::string_view read_columns) {
  const Call call(state_in(written), keys, key_dims);
  const std::vector<std::size_t> numbers = call.find(columns);
  const std::vector<std::string_view> names = split(actions, ',');
  check_count("values", values, numbers.size());
  check_count("actions", names.size(), numbers.size());
  if (numbers.empty() && read_columns.empty() && !rows && call.table().options().column_count() != 0)
    throw std::invalid_argument("what was compiled is for a set, and this table has values");
  std::vector<Write> writes;
  std::vector<Tensor> held;  // until the work is enqueued
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!values[i]) throw std::invalid_argument("values are missing");
    held.push_back(call.take_values("values", numbers[i], *values[i]));
    writes.push_back({.column = numbers[i],
                      .values = held.back().const_data_ptr(),
                      .broadcast = call.is_one_for_all(numbers[i], held.back()),
                      .action = named(kActions, names[i])});
  }
  Reads reads(call, read_columns, written);
  for (Read& read : reads.list)
    for (const Write& write : writes) {
      if (write.column != read.column) continue;
      read.fallback = write.values;  // of a key that a replayed CUDA graph has found no room for
      read.fallback_per_key = !write.broadcast;
    }
  Tensor new_keys = call.new_mask(is_new);
  Tensor new_rows = call.new_rows(rows);
  with_names([&] {
    call.table().change({.keys = call.keys(),
                         .writes = writes,
                         .reads = reads.list,
                         .inserted = data_of<bool>(new_keys, is_new),
                         .rows = data_of<std::int64_t>(new_rows, rows),
                         .stream = call.stream()});
  });
  return {std::move(new_keys), std::move(new_rows)};
}

/// Which keys were erased; empty where that is not asked for.
/// written  // the state, and an output of each column, as it was before: [n, *shape]
/// fallbacks  // of each column, as those of look_up
/// required  // waits: if keys are absent, none is erased, and it is an error
Tensor erase(const std::vector<Tensor>& written, const Tensor& keys, std::int64_t key_dims, std::string_view columns,
             const OptionalTensors& fallbacks, bool erased, bool required) {
  const Call call(state_in(written), keys, key_dims);
  Reads reads(call, columns, written);
  check_count("defaults", fallbacks, reads.list.size());
  for (std::size_t i = 0; i < reads.list.size(); ++i) reads.set_fallback(call, i, fallbacks[i]);
  Tensor mask = call.new_mask(erased);
  const std::int64_t missing = with_names([&] {
    return call.table().erase({.keys = call.keys(),
                               .reads = reads.list,
                               .erased = data_of<bool>(mask, erased),
                               .all_or_none = required,
                               .stream = call.stream()});
  });
  need_none(missing, call, "none is erased; to pass over absent keys, call erase, or pop with a default");
  return mask;
}

// Without a table -----------------------------------------------------------------------------------------------------

DType dtype_of(const Tensor& tensor) {
  const TypeCode code = code_of(tensor);
  for (int dtype = 0; dtype < kDTypeCount; ++dtype)
    if (code_of(static_cast<DType>(dtype)) == code) return static_cast<DType>(dtype);
  throw DTypeError("the keys are of a dtype that gpuhash does not know");
}

/// Arrays whose numbers, or whose rows along the first axis, are keys.
struct Keys {
  Keys(const char* what, const Tensor& given, bool rows) : tensor(dense(given)), batch(shape_of(given)) {
    if (rows && batch.empty())
      throw ShapeError(std::string("the ") + what + " have shape (), which has no axis 0: give one dimension or more");
    if (rows) {
      item.assign(batch.begin() + 1, batch.end());
      batch.resize(1);
    }
    numbers.data = tensor.const_data_ptr();
    numbers.dtype = dtype_of(tensor);
    for (const std::int64_t extent : item) numbers.elements *= extent;
    const std::int64_t bytes = numbers.elements * static_cast<std::int64_t>(itemsize(numbers.dtype));
    if (bytes < 1 || bytes > 16)
      throw ShapeError(std::string("the ") + what + " have shape " + text_of(shape_of(given)) + ": rows of " +
                       std::to_string(bytes) + " bytes, expected 1 to 16");
    numbers.count = tensor.numel() / numbers.elements;
  }

  Tensor tensor;
  Shape batch;
  Shape item;
  NumberKeys numbers;
};

std::shared_ptr<DeviceContext> context_of(const Device& device, Stream stream, const char* op) {
  std::shared_ptr<DeviceContext> context = platform(device.platform).make_context(device.index, nullptr);
  if (context->is_capturing(stream))
    throw std::runtime_error(std::string(op) + " waits for the GPU, and cannot be captured into a CUDA graph");
  return context;
}

/// Distinct keys; the other outputs are empty where they are not asked for. Waits.
std::tuple<Tensor, Tensor, Tensor, Tensor> unique(const Tensor& given, bool rows, bool sorted, bool return_index,
                                                  bool return_inverse, bool return_counts) {
  const Keys keys("keys", given, rows);
  const Device device = device_of(keys.tensor);
  const Stream stream = stream_of(device);
  const std::shared_ptr<DeviceContext> context = context_of(device, stream, "unique");
  const std::unique_ptr<Factorization> work = Factorizer::of(*context).factorize(
      *context, keys.numbers, {.codes = return_inverse, .counts = return_counts}, stream);
  const auto positions = [&](const Shape& shape, bool wanted) {
    return empty(wanted ? shape : Shape{0}, aoti_torch_dtype_int64(), keys.tensor);
  };
  const std::int64_t count = work->count();
  Tensor uniques = empty(joined({count}, keys.item), code_of(keys.tensor), keys.tensor);
  Tensor indices = positions({count}, return_index);
  Tensor inverse = positions(keys.batch, return_inverse);
  Tensor counts = positions({count}, return_counts);
  FactorizationOutput out{};
  out.uniques = uniques.mutable_data_ptr();
  if (return_index) out.firsts = static_cast<std::int64_t*>(indices.mutable_data_ptr());
  if (return_inverse) out.codes = static_cast<std::int64_t*>(inverse.mutable_data_ptr());
  if (return_counts) out.counts = static_cast<std::int64_t*>(counts.mutable_data_ptr());
  out.sorted = sorted;
  work->write(out);
  return {std::move(uniques), std::move(indices), std::move(inverse), std::move(counts)};
}

/// May wait. The first argument is a tensor on the CPU that nobody reads: as the states of tables, it keeps the op out
/// of CUDA graphs. (Inductor keeps ops with sizes that the data tell, as those of unique, out by itself.)
Tensor isin(const Tensor&, const Tensor& given_elements, const Tensor& given_tests, bool rows, bool invert) {
  const Keys elements("elements", given_elements, rows);
  const Keys tests("test elements", given_tests, rows);
  const Device device = device_of(elements.tensor);
  if (!(device_of(tests.tensor) == device) || elements.numbers.dtype != tests.numbers.dtype ||
      elements.item != tests.item)
    throw ShapeError("elements and test elements differ in device, dtype or the shape of their rows");
  const Stream stream = stream_of(device);
  const std::shared_ptr<DeviceContext> context = context_of(device, stream, "isin");
  Tensor mask = empty(elements.batch, aoti_torch_dtype_bool(), elements.tensor);
  Factorizer::of(*context).isin(*context, elements.numbers, tests.numbers, invert,
                                static_cast<bool*>(mask.mutable_data_ptr()), stream);
  return mask;
}

// Registration --------------------------------------------------------------------------------------------------------

void define(StableLibrary& library) {
  library.def(
      "look_up(Tensor state, Tensor keys, int key_dims, str columns, Tensor?[] fallbacks, bool found, bool rows,"
      " bool required) -> Tensor[]");
  library.def("size(Tensor state) -> SymInt");
  library.def(
      "change(Tensor(a!)[] written, Tensor keys, int key_dims, str columns, Tensor?[] values, str actions,"
      " bool is_new, bool rows, str read_columns) -> (Tensor is_new, Tensor rows)");
  library.def(
      "erase(Tensor(a!)[] written, Tensor keys, int key_dims, str columns, Tensor?[] fallbacks, bool erased,"
      " bool required) -> (Tensor erased)");
  library.def(
      "unique(Tensor keys, bool rows, bool sorted, bool return_index, bool return_inverse, bool return_counts)"
      " -> (Tensor values, Tensor indices, Tensor inverse, Tensor counts)");
  library.def("isin(Tensor host, Tensor elements, Tensor test_elements, bool rows, bool invert) -> Tensor");
}

void implement(StableLibrary& library) {
  library.impl("look_up", TORCH_BOX(&look_up));
  library.impl("size", TORCH_BOX(&size));
  library.impl("change", TORCH_BOX(&change));
  library.impl("erase", TORCH_BOX(&erase));
  library.impl("unique", TORCH_BOX(&unique));
  library.impl("isin", TORCH_BOX(&isin));
}

/// Once in a process, however many copies of this library are loaded.
const bool kRegistered = [] {
  if (!registry::claim("gpuhash's ops for PyTorch")) return false;
  static StableLibrary definitions(StableLibrary::Kind::DEF, "gpuhash", nullptr, __FILE__, __LINE__);
  define(definitions);
  static StableLibrary cpu(StableLibrary::Kind::IMPL, "gpuhash", "CPU", __FILE__, __LINE__);
  implement(cpu);
  static StableLibrary cuda(StableLibrary::Kind::IMPL, "gpuhash", "CUDA", __FILE__, __LINE__);
  implement(cuda);
  return true;
}();

}  // namespace
}  // namespace gpuhash::torch_ops
