#include <gpuhash/key_columns.hpp>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/context.hpp"
#include "bindings/gil.hpp"
#include "core/random_seed.hpp"
#include "core/tuning.hpp"

namespace gpuhash::bindings {

namespace {

/// Data, numbers per entry, validity or None, offsets of strings or None.
using GivenColumn = std::tuple<Array, std::int64_t, std::optional<Array>, std::optional<Array>>;

/// Dense memory of the context with so many elements of that dtype.
void check_array(const DeviceContext& context, const Array& array, const char* role, DType dtype, std::int64_t count) {
  check_dense(context, array, role);
  if (array.dtype != dtype || array.elements() != count)
    throw std::invalid_argument(std::string(role) + " has " + std::to_string(array.elements()) + " elements of " +
                                std::string(name(array.dtype)) + ", expected " + std::to_string(count) + " of " +
                                std::string(name(dtype)));
}

template <class T>
T* written(const DeviceContext& context, const Array& array, const char* role, DType dtype, std::int64_t count) {
  check_array(context, array, role, dtype, count);
  if (array.readonly) throw std::invalid_argument(std::string(role) + " is read-only");
  return static_cast<T*>(array.data);
}

const std::int64_t* positions(const DeviceContext& context, const Array* array, const char* role, std::int64_t count) {
  if (array == nullptr) return nullptr;
  check_array(context, *array, role, DType::kInt64, count);
  return static_cast<const std::int64_t*>(array->data);
}

/// How rows are packed. Of any rows with as many columns.
struct BoundPacking {
  Packing packing;
  std::size_t columns;
};

/// Rows of columns together with what they refer to.
class BoundKeyRows {
 public:
  BoundKeyRows(ContextPointer context, std::vector<GivenColumn> columns, std::int64_t count,
               std::optional<Array> is_key, std::uintptr_t stream_address)
      : context_(std::move(context)),
        arrays_(std::move(columns)),
        is_key_(std::move(is_key)),
        stream_(to_stream(*context_, stream_address)) {
    if (count < 0 || arrays_.empty()) throw std::invalid_argument("rows need a count and one or more columns");
    rows_.count = count;
    for (const auto& [data, elements, valid, offsets] : arrays_) {
      KeyColumn column;
      if (elements < 1) throw std::invalid_argument("a column has no elements");
      if (offsets) {
        check_dense(*context_, data, "data");
        column.offsets = positions(*context_, &*offsets, "offsets", count + 1);
        column.dtype = DType::kUInt8;
        if (data.dtype != DType::kUInt8 || elements != 1)
          throw std::invalid_argument("strings are uint8 with one element per entry");
      } else {
        check_array(*context_, data, "data", data.dtype, count * elements);
        column.dtype = data.dtype;
        column.elements = elements;
      }
      column.data = data.data;
      if (valid) {
        check_array(*context_, *valid, "valid", DType::kBool, count);
        column.valid = static_cast<const bool*>(valid->data);
      }
      rows_.columns.push_back(column);
    }
    if (is_key_) {
      check_array(*context_, *is_key_, "is_key", DType::kBool, count);
      rows_.is_key = static_cast<const bool*>(is_key_->data);
    }
  }

  std::optional<Array> valid(std::size_t column) const { return std::get<2>(arrays_.at(column)); }

  std::unique_ptr<BoundPacking> find_packing() const {
    const GilRelease unlocked;
    refuse_capture();
    auto packing = column_keys().find_packing(*context_, rows_, stream_);
    if (!packing) return nullptr;
    return std::make_unique<BoundPacking>(BoundPacking{std::move(*packing), rows_.columns.size()});
  }

  void pack(const BoundPacking& packing, const Array& words) const {
    const Packing ours = packing_of(packing);
    const DType dtype = ours.bytes() == 4 ? DType::kUInt32 : DType::kUInt64;
    void* const out = written<void>(*context_, words, "words", dtype, rows_.count);
    const GilRelease unlocked;
    column_keys().pack(*context_, rows_, ours, out, stream_);
  }

  std::int64_t number_listed(const BoundPacking& packing, bool sorted, const Array& codes, const Array& firsts) const {
    const Packing ours = packing_of(packing);
    if (ours.bytes() != 4)
      throw std::invalid_argument("there are " + std::to_string(ours.outside) + " words, expected fewer than 2^32");
    auto* const of_rows = written<std::int64_t>(*context_, codes, "codes", DType::kInt64, rows_.count);
    auto* const rows_of_numbers =
        written<std::int64_t>(*context_, firsts, "firsts", DType::kInt64, static_cast<std::int64_t>(ours.outside));
    const GilRelease unlocked;
    refuse_capture();
    return column_keys().number_listed(*context_, rows_, ours, sorted, of_rows, rows_of_numbers, stream_);
  }

  void list_numbers(const BoundPacking& packing, const Array& codes, const Array& numbers) const {
    const Packing ours = packing_of(packing);
    const std::int64_t* const of_rows = positions(*context_, &codes, "codes", rows_.count);
    auto* const out =
        written<std::int64_t>(*context_, numbers, "numbers", DType::kInt64, static_cast<std::int64_t>(ours.outside));
    const GilRelease unlocked;
    column_keys().list_numbers(*context_, rows_, ours, of_rows, out, stream_);
  }

  void find_listed(const BoundPacking& packing, const Array& numbers, const Array& codes) const {
    const Packing ours = packing_of(packing);
    const std::int64_t* const listed =
        positions(*context_, &numbers, "numbers", static_cast<std::int64_t>(ours.outside));
    auto* const out = written<std::int64_t>(*context_, codes, "codes", DType::kInt64, rows_.count);
    const GilRelease unlocked;
    column_keys().find_listed(*context_, rows_, ours, listed, out, stream_);
  }

  void fingerprint(std::uint64_t seed, bool by_value, std::int64_t tries, const Array& words) const {
    auto* const out = written<std::uint64_t>(*context_, words, "words", DType::kUInt64, rows_.count);
    const std::uint64_t mask = tries < tuning().narrow_fingerprints ? 7 : ~std::uint64_t{0};
    const GilRelease unlocked;
    column_keys().fingerprint(*context_, rows_, seed, by_value, mask, out, stream_);
  }

  bool all_equal(const BoundKeyRows& other, const Array& numbers) const {
    check_columns(other.rows_.columns.size());
    const std::int64_t* const of_rows = positions(*context_, &numbers, "numbers", rows_.count);
    const GilRelease unlocked;
    refuse_capture();
    return column_keys().all_equal(*context_, rows_, other.rows_, of_rows, stream_);
  }

  void order_words(std::int64_t column, std::int64_t part, const Array& words) const {
    const KeyColumn& parted = rows_.columns.at(static_cast<std::size_t>(column));
    if (part < 0 || (parted.offsets == nullptr && part >= parted.elements))
      throw std::invalid_argument("the column has no part " + std::to_string(part));
    auto* const out = written<std::uint64_t>(*context_, words, "words", DType::kUInt64, 2 * rows_.count);
    const GilRelease unlocked;
    column_keys().order_words(*context_, parted, rows_.count, part, out, stream_);
  }

 private:
  const ColumnKeys& column_keys() const { return ColumnKeys::of(*context_); }

  /// The packing for these rows, which may be of other integer dtypes than those that it was found for.
  Packing packing_of(const BoundPacking& packing) const {
    check_columns(packing.columns);
    Packing ours = packing.packing.of(rows_.columns);
    for (const Digit& digit : ours.digits) {
      const KeyColumn& column = rows_.columns[static_cast<std::size_t>(digit.column)];
      if (column.offsets != nullptr || is_complex(column.dtype) || digit.element >= column.elements)
        throw std::invalid_argument("the packing is of other columns");
    }
    return ours;
  }

  void check_columns(std::size_t columns) const {
    if (columns != rows_.columns.size())
      throw std::invalid_argument("there are " + std::to_string(rows_.columns.size()) + " columns, expected " +
                                  std::to_string(columns));
  }

  void refuse_capture() const {
    if (context_->is_capturing(stream_))
      throw std::invalid_argument("this cannot be captured into a CUDA graph, because it waits: call it outside");
  }

  ContextPointer context_;
  std::vector<GivenColumn> arrays_;
  std::optional<Array> is_key_;
  Stream stream_;
  KeyRows rows_;
};

void combine_valid(const ContextPointer& context, const std::vector<Array>& masks, const Array& is_key,
                   std::uintptr_t stream) {
  const std::int64_t count = is_key.elements();
  auto* const out = written<bool>(*context, is_key, "is_key", DType::kBool, count);
  std::vector<const bool*> data;
  for (const Array& mask : masks) {
    check_array(*context, mask, "valid", DType::kBool, count);
    data.push_back(static_cast<const bool*>(mask.data));
  }
  const GilRelease unlocked;
  ColumnKeys::of(*context).combine_valid(*context, data, count, out, to_stream(*context, stream));
}

void mark_numbers(const ContextPointer& context, const Array& values, const std::optional<Array>& valid,
                  const Array& mask, std::uintptr_t stream) {
  const std::int64_t count = mask.elements();
  check_array(*context, values, "values", values.dtype, count);
  if (values.dtype < DType::kFloat16)
    throw std::invalid_argument("values has dtype " + std::string(name(values.dtype)) + ", which has no NaN");
  if (valid) check_array(*context, *valid, "valid", DType::kBool, count);
  auto* const out = written<bool>(*context, mask, "mask", DType::kBool, count);
  const GilRelease unlocked;
  ColumnKeys::of(*context).mark_numbers(*context, values.data, values.dtype, count,
                                        valid ? static_cast<const bool*>(valid->data) : nullptr, out,
                                        to_stream(*context, stream));
}

std::int64_t find_invalid(const ContextPointer& context, const Array& mask, std::uintptr_t stream) {
  check_array(*context, mask, "mask", DType::kBool, mask.elements());
  const GilRelease unlocked;
  return ColumnKeys::of(*context).find_invalid(*context, static_cast<const bool*>(mask.data), mask.elements(),
                                               to_stream(*context, stream));
}

std::int64_t leave_out(const ContextPointer& context, const Array& codes, std::int64_t at, std::uintptr_t stream) {
  const std::int64_t count = codes.elements();
  auto* const out = written<std::int64_t>(*context, codes, "codes", DType::kInt64, count);
  if (at < 0 || at >= count) throw std::invalid_argument("there is no such position");
  const GilRelease unlocked;
  return ColumnKeys::of(*context).leave_out(*context, out, count, at, to_stream(*context, stream));
}

/// All entries but one, of int64 arrays.
void copy_without(const ContextPointer& context, const Array& from, std::int64_t left_out, const Array& to,
                  std::uintptr_t stream_address) {
  const std::int64_t count = from.elements();
  check_array(*context, from, "the source", DType::kInt64, count);
  auto* const out = written<std::int64_t>(*context, to, "the target", DType::kInt64, count - 1);
  if (left_out < 0 || left_out >= count) throw std::invalid_argument("there is no such position");
  const auto* const in = static_cast<const std::int64_t*>(from.data);
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  const auto before = static_cast<std::size_t>(left_out) * sizeof *in;
  const auto after = static_cast<std::size_t>(count - 1 - left_out) * sizeof *in;
  if (before != 0) context->copy(out, in, before, stream);
  if (after != 0) context->copy(out + left_out, in + left_out + 1, after, stream);
}

/// As many int64 entries as the target has.
void copy_first(const ContextPointer& context, const Array& from, const Array& to, std::uintptr_t stream) {
  const std::int64_t count = to.elements();
  auto* const out = written<std::int64_t>(*context, to, "the target", DType::kInt64, count);
  check_array(*context, from, "the source", DType::kInt64, from.elements());
  if (count > from.elements()) throw std::invalid_argument("the target has more entries than the source");
  const GilRelease unlocked;
  if (count != 0)
    context->copy(out, from.data, static_cast<std::size_t>(count) * sizeof *out, to_stream(*context, stream));
}

void renumber(const ContextPointer& context, const Array& codes, const Array& numbers, std::uintptr_t stream) {
  const std::int64_t count = codes.elements();
  auto* const out = written<std::int64_t>(*context, codes, "codes", DType::kInt64, count);
  check_array(*context, numbers, "numbers", DType::kInt64, numbers.elements());
  const GilRelease unlocked;
  ColumnKeys::of(*context).renumber(*context, out, count, static_cast<const std::int64_t*>(numbers.data),
                                    to_stream(*context, stream));
}

void mask_codes(const ContextPointer& context, const Array& codes, const Array& is_key, std::uintptr_t stream) {
  const std::int64_t count = codes.elements();
  auto* const out = written<std::int64_t>(*context, codes, "codes", DType::kInt64, count);
  check_array(*context, is_key, "is_key", DType::kBool, count);
  const GilRelease unlocked;
  ColumnKeys::of(*context).mask_codes(*context, out, count, static_cast<const bool*>(is_key.data),
                                      to_stream(*context, stream));
}

bool is_all_zero(const ContextPointer& context, const Array& words, std::uintptr_t stream) {
  check_array(*context, words, "words", DType::kUInt64, words.elements());
  const GilRelease unlocked;
  return ColumnKeys::of(*context).is_all_zero(*context, static_cast<const std::uint64_t*>(words.data), words.elements(),
                                              to_stream(*context, stream));
}

void mark_found(const ContextPointer& context, const Array& codes, bool invert, const Array& mask,
                std::uintptr_t stream) {
  const std::int64_t count = codes.elements();
  check_array(*context, codes, "codes", DType::kInt64, count);
  auto* const out = written<bool>(*context, mask, "mask", DType::kBool, count);
  const GilRelease unlocked;
  ColumnKeys::of(*context).mark_found(*context, static_cast<const std::int64_t*>(codes.data), count, invert, out,
                                      to_stream(*context, stream));
}

void count_up(const ContextPointer& context, const Array& out, std::uintptr_t stream) {
  const std::int64_t count = out.elements();
  auto* const to = written<std::int64_t>(*context, out, "the output", DType::kInt64, count);
  const GilRelease unlocked;
  ColumnKeys::of(*context).count_up(*context, to, count, to_stream(*context, stream));
}

/// A column, one entry for negative indices or None, and where the entries go.
using GivenTake = std::tuple<Array, std::optional<Array>, Array>;

void take(const ContextPointer& context, const std::vector<GivenTake>& columns, std::int64_t rows, const Array& index,
          std::uintptr_t stream, bool trusted) {
  const std::int64_t count = index.elements();
  check_array(*context, index, "the index", DType::kInt64, count);
  std::vector<TakenColumn> taken;
  for (const auto& [data, fill, out] : columns) {
    TakenColumn column;
    column.data = data.data;
    const std::int64_t elements = data.shape.empty() || rows == 0 ? 0 : data.elements() / rows;
    check_array(*context, data, "the column", data.dtype, elements * rows);
    const std::int64_t per_entry = count == 0 ? 0 : out.elements() / count;
    column.out = written<void>(*context, out, "the output", data.dtype, per_entry * count);
    column.is_bool = data.dtype == DType::kBool;
    column.bytes = per_entry * static_cast<std::int64_t>(itemsize(data.dtype));
    if (rows != 0 && count != 0 && per_entry != elements)
      throw std::invalid_argument("the output has entries of another width than the column");
    if (fill) {
      check_array(*context, *fill, "the fill", data.dtype, count == 0 ? fill->elements() : per_entry);
      column.fill = fill->data;
    }
    if (column.bytes != 0) taken.push_back(column);
  }
  const auto* const at = static_cast<const std::int64_t*>(index.data);
  const GilRelease unlocked;
  ColumnKeys::of(*context).take(*context, taken, trusted ? std::nullopt : std::optional(rows), at, count,
                                to_stream(*context, stream));
}

std::int64_t take_offsets(const ContextPointer& context, const Array& offsets, const Array& index, const Array& out,
                          std::uintptr_t stream) {
  const std::int64_t count = index.elements();
  check_array(*context, index, "the index", DType::kInt64, count);
  check_array(*context, offsets, "offsets", DType::kInt64, offsets.elements());
  if (offsets.elements() == 0) throw std::invalid_argument("offsets are empty, expected one more than strings");
  auto* const to = written<std::int64_t>(*context, out, "the output", DType::kInt64, count + 1);
  const GilRelease unlocked;
  return ColumnKeys::of(*context).take_offsets(*context, static_cast<const std::int64_t*>(offsets.data),
                                               offsets.elements() - 1, static_cast<const std::int64_t*>(index.data),
                                               count, to, to_stream(*context, stream));
}

/// As take_offsets() has checked them, with its output.
void take_bytes(const ContextPointer& context, const Array& data, const Array& offsets, const Array& index,
                const Array& out_offsets, const Array& out, std::uintptr_t stream) {
  const std::int64_t count = index.elements();
  check_dense(*context, data, "data");
  check_array(*context, index, "the index", DType::kInt64, count);
  check_array(*context, offsets, "offsets", DType::kInt64, offsets.elements());
  check_array(*context, out_offsets, "the output's offsets", DType::kInt64, count + 1);
  auto* const to = written<void>(*context, out, "the output", DType::kUInt8, out.elements());
  const GilRelease unlocked;
  ColumnKeys::of(*context).take_bytes(
      *context, data.data, static_cast<const std::int64_t*>(offsets.data), static_cast<const std::int64_t*>(index.data),
      count, static_cast<const std::int64_t*>(out_offsets.data), to, to_stream(*context, stream));
}

}  // namespace

void bind_key_columns(py::module_& module) {
  py::class_<BoundPacking>(module, "Packing", py::is_final(), "How rows become words that tell them apart.")
      .def_property_readonly("dtype",
                             [](const BoundPacking& packing) {
                               return std::string(name(packing.packing.bytes() == 4 ? DType::kUInt32 : DType::kUInt64));
                             })
      .def_property_readonly("words", [](const BoundPacking& packing) { return packing.packing.outside; });
  py::class_<BoundKeyRows>(module, "KeyRows", py::is_final(), "Rows of columns, each row a key.")
      .def(py::init<ContextPointer, std::vector<GivenColumn>, std::int64_t, std::optional<Array>, std::uintptr_t>(),
           py::arg("context"), py::arg("columns"), py::arg("count"), py::arg("is_key"), py::arg("stream"))
      .def("find_packing", &BoundKeyRows::find_packing)
      .def("pack", &BoundKeyRows::pack, py::arg("packing"), py::arg("words"))
      .def("number_listed", &BoundKeyRows::number_listed, py::arg("packing"), py::arg("sorted"), py::arg("codes"),
           py::arg("firsts"))
      .def("list_numbers", &BoundKeyRows::list_numbers, py::arg("packing"), py::arg("codes"), py::arg("numbers"))
      .def("find_listed", &BoundKeyRows::find_listed, py::arg("packing"), py::arg("numbers"), py::arg("codes"))
      .def("fingerprint", &BoundKeyRows::fingerprint, py::arg("seed"), py::arg("by_value"), py::arg("tries"),
           py::arg("words"))
      .def("all_equal", &BoundKeyRows::all_equal, py::arg("other"), py::arg("numbers"))
      .def("valid", &BoundKeyRows::valid, py::arg("column"))
      .def("order_words", &BoundKeyRows::order_words, py::arg("column"), py::arg("part"), py::arg("words"));
  module.def("combine_valid", &combine_valid, py::arg("context"), py::arg("masks"), py::arg("is_key"),
             py::arg("stream"));
  module.def("mark_numbers", &mark_numbers, py::arg("context"), py::arg("values"), py::arg("valid"), py::arg("mask"),
             py::arg("stream"));
  module.def("find_invalid", &find_invalid, py::arg("context"), py::arg("mask"), py::arg("stream"));
  module.def("leave_out", &leave_out, py::arg("context"), py::arg("codes"), py::arg("at"), py::arg("stream"));
  module.def("copy_without", &copy_without, py::arg("context"), py::arg("source"), py::arg("left_out"),
             py::arg("target"), py::arg("stream"));
  module.def("copy_first", &copy_first, py::arg("context"), py::arg("source"), py::arg("target"), py::arg("stream"));
  module.def("renumber", &renumber, py::arg("context"), py::arg("codes"), py::arg("numbers"), py::arg("stream"));
  module.def("mask_codes", &mask_codes, py::arg("context"), py::arg("codes"), py::arg("is_key"), py::arg("stream"));
  module.def("is_all_zero", &is_all_zero, py::arg("context"), py::arg("words"), py::arg("stream"));
  module.def("mark_found", &mark_found, py::arg("context"), py::arg("codes"), py::arg("invert"), py::arg("mask"),
             py::arg("stream"));
  module.def("take", &take, py::arg("context"), py::arg("columns"), py::arg("rows"), py::arg("index"),
             py::arg("stream"), py::arg("trusted") = false);
  module.def("take_offsets", &take_offsets, py::arg("context"), py::arg("offsets"), py::arg("index"), py::arg("out"),
             py::arg("stream"));
  module.def("take_bytes", &take_bytes, py::arg("context"), py::arg("data"), py::arg("offsets"), py::arg("index"),
             py::arg("out_offsets"), py::arg("out"), py::arg("stream"));
  module.def("count_up", &count_up, py::arg("context"), py::arg("out"), py::arg("stream"));
  module.def("random_seed", &random_seed);
}

}  // namespace gpuhash::bindings
