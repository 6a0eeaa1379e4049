#include <gpuhash/aggregation.hpp>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

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

#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/context.hpp"
#include "bindings/gil.hpp"

namespace gpuhash::bindings {
namespace {

constexpr std::array<std::string_view, kAggregateCount> kOps{"count", "sum", "mean",  "var",  "std", "total", "squares",
                                                             "min",   "max", "first", "last", "any", "all"};

Aggregate op_of(const std::string& name) {
  for (std::size_t i = 0; i < kOps.size(); ++i)
    if (kOps[i] == name) return static_cast<Aggregate>(i);
  throw std::invalid_argument("there is no aggregate '" + name + "'");
}

std::optional<std::string> aggregate_dtype_name(const std::string& op, const std::string& dtype, bool wide) {
  const Aggregate aggregate = op_of(op);
  const DType values = dtype_from_name(dtype);
  if (!has_aggregate(aggregate, values)) return std::nullopt;
  const DType result = aggregate_dtype(aggregate, values);
  const bool is_sum = aggregate <= Aggregate::kStd;
  return std::string(name(wide && is_sum ? wide_dtype(result) : result));
}

void check(const DeviceContext& context, const Array& array, std::int64_t count, DType dtype, const char* role) {
  check_dense(context, array, role);
  if (array.dtype != dtype || array.elements() != count)
    throw std::invalid_argument(std::string(role) + " has " + std::to_string(array.elements()) + " elements of " +
                                std::string(name(array.dtype)) + ", expected " + std::to_string(count) + " of " +
                                std::string(name(dtype)));
}

/// What Python asks for one column; an out may come later: (op, values, valid, out, ddof, part counts, part squares).
using Asked = std::tuple<std::string, const Array*, const Array*, const Array*, double, const Array*, const Array*>;

AggregateRequest to_request(const DeviceContext& context, const GroupedRows& rows, const Asked& asked) {
  const auto& [op, values, valid, out, ddof, part_counts, part_squares] = asked;
  AggregateRequest request{};
  request.op = op_of(op);
  request.ddof = ddof;
  if (values != nullptr) {
    check(context, *values, rows.count,
          part_counts == nullptr || is_complex(values->dtype) ? values->dtype : DType::kFloat64, "values");
    request.values = values->data;
    request.dtype = values->dtype;
  } else if (request.op != Aggregate::kCount) {
    throw std::invalid_argument("'" + op + "' has no values");
  }
  const auto optional = [&](const Array* array, DType dtype, const char* role) -> const void* {
    if (array == nullptr) return nullptr;
    check(context, *array, rows.count, dtype, role);
    return array->data;
  };
  request.valid = static_cast<const bool*>(optional(valid, DType::kBool, "valid"));
  request.part_counts = static_cast<const std::int64_t*>(optional(part_counts, DType::kInt64, "part_counts"));
  request.part_squares = static_cast<const double*>(optional(part_squares, DType::kFloat64, "part_squares"));
  if (!has_aggregate(request.op, request.dtype))
    throw std::invalid_argument("'" + op + "' is not of " + std::string(name(request.dtype)));
  request.result = aggregate_dtype(request.op, request.dtype);
  if (out == nullptr) return request;
  // The wide sums of parts, and what becomes of them in the end.
  if (request.op <= Aggregate::kStd && wide_dtype(out->dtype) == wide_dtype(request.result))
    request.result = out->dtype;
  check(context, *out, rows.groups, request.result, "out");
  if (out->readonly) throw std::invalid_argument("out is read-only");
  request.out = out->data;
  return request;
}

void aggregate(const ContextPointer& context, const Array& codes, std::int64_t groups, const std::vector<Asked>& asked,
               std::uintptr_t stream_address) {
  check_dense(*context, codes, "codes");
  if (codes.dtype != DType::kInt64)
    throw std::invalid_argument("codes has dtype " + std::string(name(codes.dtype)) + ", expected int64");
  const GroupedRows rows{static_cast<const std::int64_t*>(codes.data), codes.elements(), groups};
  std::vector<AggregateRequest> requests;
  for (const Asked& one : asked) {
    requests.push_back(to_request(*context, rows, one));
    if (std::get<3>(one) == nullptr) throw std::invalid_argument("an out is None");
  }
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  Aggregator::of(*context).aggregate(*context, rows, requests, stream);
}

void pair_codes(const ContextPointer& context, const Array& codes, const Array& others, std::int64_t kinds,
                const Array* valid, const Array& pairs, std::uintptr_t stream_address) {
  const std::int64_t count = codes.elements();
  check(*context, codes, count, DType::kInt64, "codes");
  check(*context, others, count, DType::kInt64, "others");
  check(*context, pairs, count, DType::kInt64, "pairs");
  if (valid != nullptr) check(*context, *valid, count, DType::kBool, "valid");
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  Aggregator::of(*context).pair_codes(*context, static_cast<const std::int64_t*>(codes.data),
                                      static_cast<const std::int64_t*>(others.data), kinds,
                                      valid == nullptr ? nullptr : static_cast<const bool*>(valid->data), count,
                                      static_cast<std::int64_t*>(pairs.data), stream);
}

void split_pairs(const ContextPointer& context, const Array& pairs, std::int64_t kinds, const Array& codes,
                 std::uintptr_t stream_address) {
  const std::int64_t count = pairs.elements();
  check(*context, pairs, count, DType::kInt64, "pairs");
  check(*context, codes, count, DType::kInt64, "codes");
  if (kinds < 1) throw std::invalid_argument("kinds is " + std::to_string(kinds) + ", expected 1 or more");
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  Aggregator::of(*context).split_pairs(*context, static_cast<const std::int64_t*>(pairs.data), kinds, count,
                                       static_cast<std::int64_t*>(codes.data), stream);
}

/// Folded groups together with what they refer to.
class BoundFold {
 public:
  /// (op, values, valid).
  using Folded = std::tuple<std::string, const Array*, const Array*>;

  /// Null as Aggregator::fold().
  static std::unique_ptr<BoundFold> make(ContextPointer context, Array keys, std::int64_t elements,
                                         const std::vector<Folded>& folded, std::uintptr_t stream_address) {
    check_dense(*context, keys, "keys");
    if (elements < 1 || keys.elements() % elements != 0)
      throw std::invalid_argument("keys has " + std::to_string(keys.elements()) + " elements, expected a multiple of " +
                                  std::to_string(elements));
    const NumberKeys number_keys{keys.data, keys.elements() / elements, keys.dtype, elements};
    const GroupedRows rows{nullptr, number_keys.count, 0};
    std::vector<AggregateRequest> requests;
    auto made = std::make_unique<BoundFold>();
    for (const auto& [op, values, valid] : folded) {
      requests.push_back(to_request(*context, rows, {op, values, valid, nullptr, 1, nullptr, nullptr}));
      made->results_.push_back(requests.back().result);
      for (const Array* const array : {values, valid})
        if (array != nullptr) made->columns_.push_back(*array);
    }
    const Stream stream = to_stream(*context, stream_address);
    {
      const GilRelease unlocked;
      made->groups_ = Aggregator::of(*context).fold(*context, number_keys, requests, stream);
    }
    if (made->groups_ == nullptr) return nullptr;
    made->context_ = std::move(context);
    made->keys_ = std::move(keys);
    return made;
  }

  std::int64_t count() const { return groups_->count(); }

  void write(const Array& firsts, const std::vector<const Array*>& outs) {
    check(*context_, firsts, count(), DType::kInt64, "firsts");
    if (outs.size() != results_.size())
      throw std::invalid_argument(std::to_string(outs.size()) + " outs were given, expected " +
                                  std::to_string(results_.size()));
    std::vector<void*> to;
    for (std::size_t r = 0; r < outs.size(); ++r) {
      if (outs[r] == nullptr) throw std::invalid_argument("an out is None");
      check(*context_, *outs[r], count(), results_[r], "out");
      to.push_back(outs[r]->data);
    }
    const GilRelease unlocked;
    groups_->write(static_cast<std::int64_t*>(firsts.data), to);
  }

 private:
  ContextPointer context_;
  Array keys_;
  std::vector<Array> columns_;
  std::vector<DType> results_;
  std::unique_ptr<FoldedGroups> groups_;
};

/// Arrays of one dtype, one behind the other.
void concatenate(const ContextPointer& context, const std::vector<const Array*>& parts, const Array& out,
                 std::uintptr_t stream_address) {
  check_dense(*context, out, "out");
  std::int64_t elements = 0;
  for (const Array* const part : parts) {
    if (part == nullptr) throw std::invalid_argument("a part is None");
    check(*context, *part, part->elements(), out.dtype, "parts");
    elements += part->elements();
  }
  check(*context, out, elements, out.dtype, "out");
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  auto* to = static_cast<char*>(out.data);
  for (const Array* const part : parts) {
    if (part->bytes() == 0) continue;
    context->copy(to, part->data, static_cast<std::size_t>(part->bytes()), stream);
    to += part->bytes();
  }
}

}  // namespace

void bind_aggregation(py::module_& module) {
  module.def("aggregate", &aggregate, py::arg("context"), py::arg("codes"), py::arg("groups"), py::arg("requests"),
             py::arg("stream"));
  module.def("aggregate_dtype", &aggregate_dtype_name, py::arg("op"), py::arg("dtype"), py::arg("wide") = false);
  py::class_<BoundFold>(module, "GroupFold", py::is_final(), "Keys whose groups were aggregated while they were found.")
      .def_static("make", &BoundFold::make, py::arg("context"), py::arg("keys"), py::arg("elements"),
                  py::arg("requests"), py::arg("stream"))
      .def_property_readonly("count", &BoundFold::count)
      .def("write", &BoundFold::write, py::arg("firsts"), py::arg("outs"));
  module.def("pair_codes", &pair_codes, py::arg("context"), py::arg("codes"), py::arg("others"), py::arg("kinds"),
             py::arg("valid"), py::arg("pairs"), py::arg("stream"));
  module.def("split_pairs", &split_pairs, py::arg("context"), py::arg("pairs"), py::arg("kinds"), py::arg("codes"),
             py::arg("stream"));
  module.def("concatenate", &concatenate, py::arg("context"), py::arg("parts"), py::arg("out"), py::arg("stream"));
}

}  // namespace gpuhash::bindings
