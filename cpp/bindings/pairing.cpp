#include <gpuhash/pairing.hpp>

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <gpuhash/names.hpp>
#include <gpuhash/run_chains.hpp>
#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/context.hpp"
#include "bindings/gil.hpp"
#include "bindings/number_keys.hpp"

namespace gpuhash::bindings {

namespace {

/// The numbers of an array of int64.
std::int64_t* numbers(const DeviceContext& context, const Array& array, const char* role, bool written) {
  check_dense(context, array, role);
  if (array.dtype != DType::kInt64)
    throw std::invalid_argument(std::string(role) + " has " + std::string(name(array.dtype)) + ", expected int64");
  if (written && array.readonly) throw std::invalid_argument(std::string(role) + " is read-only");
  return static_cast<std::int64_t*>(array.data);
}

/// Likewise, of `count` of them at least.
std::int64_t* numbers(const DeviceContext& context, const Array& array, const char* role, bool written,
                      std::int64_t count) {
  if (array.elements() < count)
    throw std::invalid_argument(std::string(role) + " has " + std::to_string(array.elements()) + " numbers, expected " +
                                std::to_string(count));
  return numbers(context, array, role, written);
}

void refuse_capture(DeviceContext& context, Stream stream) {
  if (context.is_capturing(stream))
    throw std::invalid_argument(
        "this cannot be captured into a CUDA graph, because it waits for the number of pairs: call it outside of the "
        "capture");
}

/// Pairs together with what they refer to.
class BoundPairs {
 public:
  BoundPairs(ContextPointer context, Array codes, const Array* offsets, const Array* partners, const std::string& kind,
             std::uintptr_t stream_address)
      : context_(std::move(context)), codes_(std::move(codes)) {
    PairSides sides{numbers(*context_, codes_, "codes", false), codes_.elements(), nullptr, nullptr};
    if (offsets != nullptr) {
      offsets_ = *offsets;
      sides.offsets = numbers(*context_, offsets_, "offsets", false, 1);
    }
    if (partners != nullptr) {
      partners_ = *partners;
      sides.partners = numbers(*context_, partners_, "partners", false);
    }
    const PairKind pair_kind = named(kPairKinds, kind);
    const Stream stream = to_stream(*context_, stream_address);
    const GilRelease unlocked;
    refuse_capture(*context_, stream);
    pairs_ = Pairing::of(*context_).pair(*context_, sides, pair_kind, stream);
  }

  /// Of keys of `elements` numbers each. Null on the host.
  static std::unique_ptr<BoundPairs> of_keys(ContextPointer context, const Array& left, const Array& right,
                                             std::int64_t elements, const std::string& kind,
                                             std::uintptr_t stream_address) {
    const NumberKeys left_keys = to_number_keys(*context, left, elements, "the left keys");
    const NumberKeys right_keys = to_number_keys(*context, right, elements, "the right keys");
    if (left_keys.dtype != right_keys.dtype) throw std::invalid_argument("the two sides' keys differ in dtype");
    if (right_keys.count >= std::numeric_limits<std::uint32_t>::max())
      throw std::invalid_argument("there are " + std::to_string(right_keys.count) +
                                  " right keys, expected 2^32 - 2 at most");
    const PairKind pair_kind = named(kPairKinds, kind);
    const Stream stream = to_stream(*context, stream_address);
    const GilRelease unlocked;
    refuse_capture(*context, stream);
    auto pairs = Pairing::of(*context).pair_keys(*context, left_keys, right_keys, pair_kind, stream);
    if (pairs == nullptr) return nullptr;
    return std::unique_ptr<BoundPairs>(new BoundPairs(std::move(context), std::move(pairs)));
  }

  std::int64_t count() const { return pairs_->count(); }

  void write(std::int64_t begin, std::int64_t end, const Array* left, const Array* right, std::int64_t at) const {
    if (begin < 0 || begin > end || end > count())
      throw std::invalid_argument("pairs " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
                                  std::to_string(count()) + " were asked for");
    if (at < 0) throw std::invalid_argument("they were asked for at " + std::to_string(at));
    const auto output = [&](const Array* array, const char* role) {
      return array == nullptr ? nullptr : numbers(*context_, *array, role, true, at + end - begin) + at;
    };
    std::int64_t* const to_left = output(left, "left");
    std::int64_t* const to_right = output(right, "right");
    const GilRelease unlocked;
    pairs_->write(begin, end, to_left, to_right);
  }

 private:
  BoundPairs(ContextPointer context, std::unique_ptr<Pairs> pairs)
      : context_(std::move(context)), pairs_(std::move(pairs)) {}

  ContextPointer context_;
  Array codes_;
  Array offsets_;
  Array partners_;
  std::unique_ptr<Pairs> pairs_;
};

void group_positions(const ContextPointer& context, const Array& codes, const Array& offsets, const Array& order,
                     std::uintptr_t stream_address) {
  const std::int64_t count = codes.elements();
  const std::int64_t groups = offsets.elements() - 1;
  if (groups < 0) throw std::invalid_argument("offsets has no numbers, expected one more than there are groups");
  const auto* const from = numbers(*context, codes, "codes", false);
  auto* const to = numbers(*context, offsets, "offsets", true);
  auto* const positions = numbers(*context, order, "order", true, count);
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  Pairing::of(*context).group_positions(*context, from, count, groups, to, positions, stream);
}

void keep_common(const ContextPointer& context, const Array& codes, const Array& others, std::int64_t groups,
                 const Array& kept, std::uintptr_t stream_address) {
  const std::int64_t count = codes.elements();
  const auto* const from = numbers(*context, codes, "codes", false);
  const auto* const beside = numbers(*context, others, "others", false);
  auto* const to = numbers(*context, kept, "kept", true, count);
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  Pairing::of(*context).keep_common(*context, from, count, beside, others.elements(), groups, to, stream);
}

Runs to_runs(const DeviceContext& context, const Array& begins, const Array& nexts, std::int64_t count) {
  return {numbers(context, begins, "begins", true, count + 1), numbers(context, nexts, "nexts", true, count)};
}

void append_runs(const ContextPointer& context, const Array& begins, const Array& nexts, std::int64_t first,
                 std::int64_t base, const Array* offsets, const Array* tails, const Array& ids,
                 std::uintptr_t stream_address) {
  const std::int64_t count = ids.elements();
  if (first < 0) throw std::invalid_argument("the first run is " + std::to_string(first));
  const Runs runs = to_runs(*context, begins, nexts, first + count);
  const auto optional = [&](const Array* array, const char* role, std::int64_t length) {
    return array == nullptr ? nullptr : numbers(*context, *array, role, false, length);
  };
  const std::int64_t* const ends = optional(offsets, "offsets", count + 1);
  const std::int64_t* const before = optional(tails, "tails", count);
  std::int64_t* const to = numbers(*context, ids, "ids", true);
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  RunChains::of(*context).append(*context, runs, first, base, ends, before, count, to, stream);
}

void list_runs(const ContextPointer& context, const Array& nexts, const Array& heads, const Array& offsets,
               const Array& listed, std::uintptr_t stream_address) {
  const std::int64_t count = heads.elements();
  const Runs runs{nullptr, numbers(*context, nexts, "nexts", false)};
  const auto* const from = numbers(*context, heads, "heads", false);
  const auto* const ends = numbers(*context, offsets, "offsets", false, count + 1);
  auto* const to = numbers(*context, listed, "listed", true);
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  RunChains::of(*context).list(*context, runs, from, ends, count, to, stream);
}

std::int64_t sum_up(const ContextPointer& context, const Array& counts, const Array& offsets,
                    std::uintptr_t stream_address) {
  const std::int64_t count = counts.elements();
  const auto* const from = numbers(*context, counts, "counts", false);
  auto* const to = numbers(*context, offsets, "offsets", true, count + 1);
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  refuse_capture(*context, stream);
  return RunChains::of(*context).sum_up(*context, from, count, to, stream);
}

/// Rows of two arrays of one dtype.
struct RowPair {
  const char* from;
  char* to;
  std::int64_t bytes;
};

/// Those of `out` [rows, ...] from row `at` on, of which there are at least `count`, and those of `rows`, which has the
/// same bytes for each.
RowPair to_row_pair(const DeviceContext& context, const Array& rows, const Array& out, std::int64_t at,
                    std::int64_t count) {
  check_dense(context, rows, "rows");
  check_dense(context, out, "out");
  if (out.readonly) throw std::invalid_argument("out is read-only");
  if (rows.dtype != out.dtype) throw std::invalid_argument("rows and out differ in dtype");
  if (out.shape.empty() || at < 0 || out.shape.front() - at < count)
    throw std::invalid_argument("out has not the " + std::to_string(at + count) + " rows that are to be written");
  if (count == 0) return {nullptr, nullptr, 0};
  const std::int64_t bytes = out.bytes() / out.shape.front();
  if (bytes == 0 || rows.bytes() % bytes != 0) throw std::invalid_argument("rows and out have rows of other lengths");
  return {static_cast<const char*>(rows.data), static_cast<char*>(out.data) + at * bytes, bytes};
}

void gather_rows(const ContextPointer& context, const Array& rows, const Array& positions, const Array& out,
                 std::int64_t at, std::uintptr_t stream_address) {
  const std::int64_t count = positions.elements();
  const RowPair pair = to_row_pair(*context, rows, out, at, count);
  if (count == 0) return;
  const auto* const from = numbers(*context, positions, "positions", false);
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  RunChains::of(*context).gather(*context, pair.from, pair.bytes, from, count, pair.to, stream);
}

void copy_rows(const ContextPointer& context, const Array& rows, std::int64_t count, const Array& out, std::int64_t at,
               std::uintptr_t stream_address) {
  const RowPair pair = to_row_pair(*context, rows, out, at, count);
  if (count == 0) return;
  if (rows.bytes() < count * pair.bytes)
    throw std::invalid_argument("rows has fewer than the " + std::to_string(count) + " rows that are to be copied");
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  context->copy(pair.to, pair.from, static_cast<std::size_t>(count * pair.bytes), stream);
}

}  // namespace

void bind_pairing(py::module_& module) {
  py::class_<BoundPairs>(module, "Pairs", py::is_final(), "The pairs of a join, counted.")
      .def(py::init<ContextPointer, Array, const Array*, const Array*, std::string, std::uintptr_t>(),
           py::arg("context"), py::arg("codes"), py::arg("offsets"), py::arg("partners"), py::arg("kind"),
           py::arg("stream"))
      .def_static("of_keys", &BoundPairs::of_keys, py::arg("context"), py::arg("left"), py::arg("right"),
                  py::arg("elements"), py::arg("kind"), py::arg("stream"))
      .def_property_readonly("count", &BoundPairs::count)
      .def("write", &BoundPairs::write, py::arg("begin"), py::arg("end"), py::arg("left"), py::arg("right"),
           py::arg("at"));
  module.def("group_positions", &group_positions, py::arg("context"), py::arg("codes"), py::arg("offsets"),
             py::arg("order"), py::arg("stream"));
  module.def("keep_common", &keep_common, py::arg("context"), py::arg("codes"), py::arg("others"), py::arg("groups"),
             py::arg("kept"), py::arg("stream"));
  module.def("append_runs", &append_runs, py::arg("context"), py::arg("begins"), py::arg("nexts"), py::arg("first"),
             py::arg("base"), py::arg("offsets"), py::arg("tails"), py::arg("ids"), py::arg("stream"));
  module.def("list_runs", &list_runs, py::arg("context"), py::arg("nexts"), py::arg("heads"), py::arg("offsets"),
             py::arg("listed"), py::arg("stream"));
  module.def("sum_up", &sum_up, py::arg("context"), py::arg("counts"), py::arg("offsets"), py::arg("stream"));
  module.def("gather_rows", &gather_rows, py::arg("context"), py::arg("rows"), py::arg("positions"), py::arg("out"),
             py::arg("at"), py::arg("stream"));
  module.def("copy_rows", &copy_rows, py::arg("context"), py::arg("rows"), py::arg("count"), py::arg("out"),
             py::arg("at"), py::arg("stream"));
}

}  // namespace gpuhash::bindings
