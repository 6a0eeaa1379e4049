// The ops, the same for CPU and CUDA. Of PyTorch only what its stable interface has (since 2.10), so that a library
// that was compiled against one version works with later ones; and neither Python nor CUDA, so that compiled models
// load it alone.
//
// The first argument of each op is the table's *state*, an int64 tensor [1] on the CPU with the table's handle. Ops
// that change the table say that they write to the state, which orders them: none of them ever does.
#include <dlfcn.h>

#include <array>
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

MemoryRange memory_of(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.numel() * static_cast<std::int64_t>(tensor.element_size())};
}

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
      "a "
      "saved model is loaded first make or open the table, with the name that it had when the model was exported");
}

/// One call: its table and keys, both held, and its stream.
class Call {
 public:
  Call(const Tensor& state, const Tensor& keys, std::int64_t key_dims)
      : table_(table_of_state(state)), keys_(dense(keys)), stream_(check_device("keys", keys)) {
    const TableOptions& options = table_->options();
    check_dtype("keys", keys_, options.key_dtype);
    const std::int64_t expected = options.key_elements;
    batch_ = shape_of(keys_);
    if (key_dims < 0 || key_dims > 1 || static_cast<std::int64_t>(batch_.size()) < key_dims ||
        (key_dims == 1 ? batch_.back() : 1) != expected)
      throw ShapeError("the keys have shape " + text_of(batch_) + " with " + std::to_string(key_dims) +
                       " key dimensions, and a key of the table has " + std::to_string(expected) + " numbers");
    if (key_dims == 1) batch_.pop_back();
  }

  Table& table() const { return *table_; }
  const TableOptions& options() const { return table_->options(); }
  Stream stream() const { return stream_; }
  const Shape& batch() const { return batch_; }
  Shape values_shape() const { return joined(batch_, options().value_shape); }
  DType value_dtype() const {
    if (options().value_dtype) return *options().value_dtype;
    throw std::invalid_argument("this is a set, which has no values");
  }

  KeyBatch keys() const {
    const std::uint32_t bytes = options().key_bytes();
    return {keys_.const_data_ptr(), keys_.numel() / options().key_elements, bytes};
  }

  Tensor new_mask() const { return empty(batch_, aoti_torch_dtype_bool(), keys_); }
  Tensor new_values() const { return empty(values_shape(), code_of(value_dtype()), keys_); }
  Tensor new_rows() const { return empty(batch_, aoti_torch_dtype_int64(), keys_); }

  /// One value or one per key; dense. Complex ones may come as pairs of their parts, with one more dimension.
  Tensor take_values(const char* what, const Tensor& given) const {
    check_device(what, given);
    if (!are_parts(given)) check_dtype(what, given, value_dtype());
    const Shape shape = shape_of(given);
    const Shape one = value_shape_in(given);
    if (shape != joined(batch_, one) && shape != one)
      throw ShapeError(std::string("the ") + what + " have shape " + text_of(shape) + ", expected " +
                       text_of(joined(batch_, one)) + ", or " + text_of(one) + " for all keys alike");
    return dense(given);
  }
  bool is_one_for_all(const Tensor& values) const { return shape_of(values) != joined(batch_, value_shape_in(values)); }

 private:
  Stream check_device(const char* what, const Tensor& tensor) const {
    const Device given = device_of(tensor);
    const Device& own = table_->context().device();
    if (!(given == own))
      throw ShapeError(std::string("the ") + what + " are on " + given.to_string() + " and the table is on " +
                       own.to_string() + ": move one to the other");
    return stream_of(own);
  }
  static void check_dtype(const char* what, const Tensor& tensor, DType expected) {
    const TypeCode given = code_of(tensor);
    if (given != code_of(expected))
      throw DTypeError(std::string("the ") + what + " are " + name_of(given) + ", and the table has " + what + " of " +
                       std::string(name(expected)) + ": convert them with .to(torch." + std::string(name(expected)) +
                       ")");
  }

  bool are_parts(const Tensor& given) const {
    const DType dtype = value_dtype();
    return (dtype == DType::kComplex64 && code_of(given) == code_of(DType::kFloat32)) ||
           (dtype == DType::kComplex128 && code_of(given) == code_of(DType::kFloat64));
  }
  Shape value_shape_in(const Tensor& given) const {
    return are_parts(given) ? joined(options().value_shape, {2}) : options().value_shape;
  }

  std::shared_ptr<Table> table_;
  Tensor keys_;
  Stream stream_;
  Shape batch_;
};

bool* mask_of(Tensor& mask) { return static_cast<bool*>(mask.mutable_data_ptr()); }
std::int64_t* rows_of(Tensor& numbers) { return static_cast<std::int64_t*>(numbers.mutable_data_ptr()); }

// Looking up ----------------------------------------------------------------------------------------------------------

/// What was compiled knows the values' dtype and shape; the state may be that of another table by now. The dtype comes
/// by its name: AOTInductor of PyTorch 2.11 hands on another ScalarType than it was given.
void check_kind(const Call& call, std::string_view dtype, const Shape& value_shape) {
  const std::string_view own = name(call.value_dtype());
  if (own != dtype || call.options().value_shape != value_shape)
    throw std::invalid_argument("what was compiled is for a table with values of " + std::string(dtype) +
                                " and shape " + text_of(value_shape) + ", and this one has values of " +
                                std::string(own) + " and shape " + text_of(call.options().value_shape));
}

std::tuple<Tensor, Tensor> find(const Tensor& state, const Tensor& keys, const std::optional<Tensor>& fallback,
                                std::string_view dtype, const Shape& value_shape, std::int64_t key_dims) {
  const Call call(state, keys, key_dims);
  check_kind(call, dtype, value_shape);
  Tensor values = call.new_values();
  Tensor found = call.new_mask();
  Read read{.values = values.mutable_data_ptr()};
  std::optional<Tensor> taken;  // until the work is enqueued
  if (fallback) {
    taken = call.take_values("defaults", *fallback);
    read.fallback = taken->const_data_ptr();
    read.fallback_per_key = !call.is_one_for_all(*taken);
  }
  call.table().look_up({.keys = call.keys(), .reads = {&read, 1}, .found = mask_of(found), .stream = call.stream()});
  return {std::move(values), std::move(found)};
}

/// Waits: absent keys are an error. PyTorch makes Python's exceptions of std's, and has none for KeyError.
Tensor find_present(const Tensor& state, const Tensor& keys, std::string_view dtype, const Shape& value_shape,
                    std::int64_t key_dims) {
  const Call call(state, keys, key_dims);
  check_kind(call, dtype, value_shape);
  Tensor values = call.new_values();
  const Read read{.values = values.mutable_data_ptr()};
  const std::int64_t missing =
      call.table().look_up({.keys = call.keys(), .reads = {&read, 1}, .count_missing = true, .stream = call.stream()});
  if (missing != 0)
    throw std::out_of_range(std::to_string(missing) + " of " + std::to_string(call.keys().count) +  // an IndexError
                            " keys are absent: look them up with find or get, or give the table a default");
  return values;
}

Tensor contains(const Tensor& state, const Tensor& keys, std::int64_t key_dims) {
  const Call call(state, keys, key_dims);
  Tensor found = call.new_mask();
  call.table().look_up({.keys = call.keys(), .found = mask_of(found), .stream = call.stream()});
  return found;
}

Tensor rows(const Tensor& state, const Tensor& keys, std::int64_t key_dims) {
  const Call call(state, keys, key_dims);
  if (!call.options().has_rows()) throw std::invalid_argument("the table has no row storage");
  Tensor numbers = call.new_rows();
  call.table().look_up({.keys = call.keys(), .rows = rows_of(numbers), .stream = call.stream()});
  return numbers;
}

std::int64_t size(const Tensor& state) {
  const std::shared_ptr<Table> table = table_of_state(state);
  return table->size(stream_of(table->context().device()));
}

// Changes -------------------------------------------------------------------------------------------------------------

/// What the table is to do, with the values that are given; sets have none.
void change(const Call& call, Change request, const std::optional<Tensor>& given, Action action) {
  std::optional<Tensor> values;  // until the work is enqueued
  Write write{.action = action};
  if (!call.options().columns.empty())
    throw DTypeError("the table has named columns, and the op takes tables with a single value per key");
  if (!call.options().value_dtype) {
    if (given) throw std::invalid_argument("values were given, and this is a set");
  } else {
    if (!given) throw std::invalid_argument("values are missing, and the table has values");
    values = call.take_values("values", *given);
    write.values = values->const_data_ptr();
    write.broadcast = call.is_one_for_all(*values);
    request.writes = {&write, 1};
  }
  request.keys = call.keys();
  request.stream = call.stream();
  call.table().change(request);
}

Tensor put(const Tensor& state, const Tensor& keys, const std::optional<Tensor>& values, std::int64_t key_dims,
           Action action) {
  const Call call(state, keys, key_dims);
  Tensor inserted = call.new_mask();
  change(call, {.inserted = mask_of(inserted)}, values, action);
  return inserted;
}

Tensor insert(const Tensor& state, const Tensor& keys, const std::optional<Tensor>& values, std::int64_t key_dims,
              std::int64_t) {
  return put(state, keys, values, key_dims, Action::kKeep);
}

Tensor insert_or_assign(const Tensor& state, const Tensor& keys, const Tensor& values, std::int64_t key_dims,
                        std::int64_t) {
  return put(state, keys, values, key_dims, Action::kAssign);
}

void assign(const Tensor& state, const Tensor& keys, const Tensor& values, std::int64_t key_dims, std::int64_t) {
  change(Call(state, keys, key_dims), {}, values, Action::kAssign);
}

Tensor insert_or_apply(const Tensor& state, const Tensor& keys, const Tensor& values, std::string_view op,
                       std::int64_t key_dims, std::int64_t) {
  return put(state, keys, values, key_dims, named(kActions, op));
}

/// Row numbers, and which keys were new. Without values new rows get what the table's initializer says, or else zeros.
std::tuple<Tensor, Tensor> find_or_insert(const Tensor& state, const Tensor& keys, const std::optional<Tensor>& values,
                                          std::int64_t key_dims, std::int64_t) {
  const Call call(state, keys, key_dims);
  if (!call.options().has_rows()) throw std::invalid_argument("the table has no row storage");
  Tensor rows = call.new_rows();
  Tensor inserted = call.new_mask();
  const Change request{
      .keys = call.keys(), .inserted = mask_of(inserted), .rows = rows_of(rows), .stream = call.stream()};
  if (values)
    change(call, request, values, Action::kKeep);
  else
    call.table().change(request);
  return {std::move(rows), std::move(inserted)};
}

Tensor erase(const Tensor& state, const Tensor& keys, std::int64_t key_dims) {
  const Call call(state, keys, key_dims);
  Tensor erased = call.new_mask();
  call.table().erase({.keys = call.keys(), .erased = mask_of(erased), .stream = call.stream()});
  return erased;
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
      "find(Tensor state, Tensor keys, Tensor? default, str dtype, int[] value_shape, int key_dims)"
      " -> (Tensor values, Tensor found)");
  library.def("find_present(Tensor state, Tensor keys, str dtype, int[] value_shape, int key_dims) -> Tensor");
  library.def("contains(Tensor state, Tensor keys, int key_dims) -> Tensor");
  library.def("rows(Tensor state, Tensor keys, int key_dims) -> Tensor");
  library.def("size(Tensor state) -> SymInt");
  library.def("insert(Tensor(a!) state, Tensor keys, Tensor? values, int key_dims, int value_dims) -> Tensor");
  library.def("insert_or_assign(Tensor(a!) state, Tensor keys, Tensor values, int key_dims, int value_dims) -> Tensor");
  library.def(
      "find_or_insert(Tensor(a!) state, Tensor keys, Tensor? values, int key_dims, int value_dims)"
      " -> (Tensor rows, Tensor is_new)");
  library.def("assign(Tensor(a!) state, Tensor keys, Tensor values, int key_dims, int value_dims) -> ()");
  library.def(
      "insert_or_apply(Tensor(a!) state, Tensor keys, Tensor values, str op, int key_dims, int value_dims) -> Tensor");
  library.def("erase(Tensor(a!) state, Tensor keys, int key_dims) -> Tensor");
  library.def(
      "unique(Tensor keys, bool rows, bool sorted, bool return_index, bool return_inverse, bool return_counts)"
      " -> (Tensor values, Tensor indices, Tensor inverse, Tensor counts)");
  library.def("isin(Tensor host, Tensor elements, Tensor test_elements, bool rows, bool invert) -> Tensor");
}

void implement(StableLibrary& library) {
  library.impl("find", TORCH_BOX(&find));
  library.impl("find_present", TORCH_BOX(&find_present));
  library.impl("contains", TORCH_BOX(&contains));
  library.impl("rows", TORCH_BOX(&rows));
  library.impl("size", TORCH_BOX(&size));
  library.impl("insert", TORCH_BOX(&insert));
  library.impl("insert_or_assign", TORCH_BOX(&insert_or_assign));
  library.impl("find_or_insert", TORCH_BOX(&find_or_insert));
  library.impl("assign", TORCH_BOX(&assign));
  library.impl("insert_or_apply", TORCH_BOX(&insert_or_apply));
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
