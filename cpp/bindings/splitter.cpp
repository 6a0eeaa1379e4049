#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gpuhash/device_context.hpp>
#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/context.hpp"
#include "shared/hash.hpp"
#include "table/executor.hpp"
#include "table/splitter.hpp"

namespace gpuhash::bindings {
namespace {

/// Rows [n, ...] of an array.
struct Rows {
  void* data;
  std::int64_t count;
  std::int64_t bytes;  // of one
};

Rows to_rows(const DeviceContext& context, const Array& array, const char* role, bool written) {
  check_dense(context, array, role);
  if (array.shape.empty()) throw std::invalid_argument(std::string(role) + " has shape (), expected (n, ...)");
  if (written && array.readonly) throw std::invalid_argument(std::string(role) + " is read-only");
  const std::int64_t count = array.shape.front();
  return {array.data, count, count == 0 ? 0 : array.bytes() / count};
}

KeyBatch to_keys(const DeviceContext& context, const Array& array) {
  const Rows rows = to_rows(context, array, "keys", false);
  if (rows.count == 0) throw std::invalid_argument("there are no keys to be split");
  if (rows.bytes < 1 || rows.bytes > static_cast<std::int64_t>(sizeof(Uint128)))
    throw std::invalid_argument("keys has " + std::to_string(rows.bytes) + " bytes per key, expected 1 to 16");
  return {rows.data, rows.count, static_cast<std::uint32_t>(rows.bytes)};
}

void check_rows(const Rows& rows, std::int64_t count, std::int64_t bytes, const char* role) {
  if (rows.count != count || (count != 0 && rows.bytes != bytes))
    throw std::invalid_argument(std::string(role) + " has " + std::to_string(rows.count) + " rows of " +
                                std::to_string(rows.bytes) + " bytes, expected " + std::to_string(count) + " of " +
                                std::to_string(bytes));
}

struct BoundSplitter {
  explicit BoundSplitter(ContextPointer of) : context(std::move(of)) {}

  const Splitter& algorithm() const { return *context->executors().splitter; }

  ContextPointer context;
  CountsMailbox mailbox;
};

/// A split together with what it refers to.
class BoundSplit {
 public:
  BoundSplit(std::shared_ptr<BoundSplitter> splitter, const Array& keys, std::int64_t parts, std::uint64_t seed,
             std::int64_t alignment, const Array& sorted, std::uintptr_t stream_address)
      : splitter_(std::move(splitter)), stream_(to_stream(*splitter_->context, stream_address)) {
    if (parts < 1 || parts > static_cast<std::int64_t>(Split::kMaxParts))
      throw std::invalid_argument(std::to_string(parts) + " parts were asked for, expected 1 to " +
                                  std::to_string(Split::kMaxParts));
    const KeyBatch batch = to_keys(*splitter_->context, keys);
    const Rows target = to_rows(*splitter_->context, sorted, "sorted", true);
    if (alignment < 1)
      throw std::invalid_argument("alignment is " + std::to_string(alignment) + ", expected 1 or more");
    positions_ = Split::most_positions(batch.count, static_cast<std::size_t>(parts), alignment);
    check_rows(target, positions_, batch.bytes, "sorted");
    count_ = batch.count;
    const py::gil_scoped_release unlocked;
    split_ = splitter_->algorithm().split(*splitter_->context, batch, seed, static_cast<std::size_t>(parts), alignment,
                                          target.data, splitter_->mailbox, stream_);
  }
  std::vector<std::int64_t> counts() {
    const py::gil_scoped_release unlocked;
    if (!std::exchange(waited_, true)) split_->wait();
    return split_->counts();
  }

  void sort(const Array& rows, const Array& out) const {
    const auto [from, to] = from_and_to(rows, count_, out, positions_);
    const py::gil_scoped_release unlocked;
    if (from.bytes != 0) split_->sort(from.data, from.bytes, to.data, stream_);
  }
  void gather(const Array& rows, const Array& out) const {
    if (!waited_) throw std::invalid_argument("how many rows there are is not known before counts()");
    const std::int64_t end = split_->offsets().back() + split_->counts().back();
    const auto [from, to] = from_and_to(rows, end, out, count_);
    const py::gil_scoped_release unlocked;
    if (from.bytes != 0) split_->gather(from.data, from.bytes, to.data, {}, stream_);
  }

 private:
  /// `least` rows or more, and exactly `count`, of the same width.
  std::pair<Rows, Rows> from_and_to(const Array& rows, std::int64_t least, const Array& out, std::int64_t count) const {
    const Rows from = to_rows(*splitter_->context, rows, "rows", false);
    const Rows to = to_rows(*splitter_->context, out, "out", true);
    if (from.count < least)
      throw std::invalid_argument("rows has " + std::to_string(from.count) + " rows, expected " +
                                  std::to_string(least) + " or more");
    check_rows(to, count, from.bytes, "out");
    return {from, to};
  }

  std::shared_ptr<BoundSplitter> splitter_;
  Stream stream_;
  std::int64_t count_ = 0;
  std::int64_t positions_ = 0;  // at most
  std::unique_ptr<Split> split_;
  bool waited_ = false;
};

void find_owners(const ContextPointer& context, const Array& keys, std::int64_t parts, std::uint64_t seed,
                 const Array& out, std::uintptr_t stream_address) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (parts < 1 || parts > kMost)
    throw std::invalid_argument(std::to_string(parts) + " parts were asked for, expected 1 to " +
                                std::to_string(kMost));
  const KeyBatch batch = to_keys(*context, keys);
  check_rows(to_rows(*context, out, "out", true), batch.count, sizeof(std::int32_t), "out");
  const Stream stream = to_stream(*context, stream_address);
  const py::gil_scoped_release unlocked;
  context->executors().splitter->find_owners(*context, batch, seed, static_cast<std::uint32_t>(parts),
                                             static_cast<std::int32_t*>(out.data), stream);
}

}  // namespace

void bind_splitter(py::module_& module) {
  py::class_<BoundSplitter, std::shared_ptr<BoundSplitter>>(module, "Splitter", py::is_final(),
                                                            "Splits batches by owners, one after the other.")
      .def(py::init<ContextPointer>(), py::arg("context"));
  py::class_<BoundSplit>(module, "Split", py::is_final(), "A batch of keys that is split by owners.")
      .def(py::init<std::shared_ptr<BoundSplitter>, const Array&, std::int64_t, std::uint64_t, std::int64_t,
                    const Array&, std::uintptr_t>(),
           py::arg("splitter"), py::arg("keys"), py::arg("parts"), py::arg("seed"), py::arg("alignment"),
           py::arg("sorted"), py::arg("stream"))
      .def("counts", &BoundSplit::counts)
      .def("sort", &BoundSplit::sort, py::arg("rows"), py::arg("out"))
      .def("gather", &BoundSplit::gather, py::arg("rows"), py::arg("out"));
  module.def("find_owners", &find_owners, py::arg("context"), py::arg("keys"), py::arg("parts"), py::arg("seed"),
             py::arg("out"), py::arg("stream"));
  module.attr("MAX_PARTS") = Split::kMaxParts;
}

}  // namespace gpuhash::bindings
