#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gpuhash/device_context.hpp>
#include <gpuhash/names.hpp>
#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/context.hpp"
#include "bindings/gil.hpp"
#include "table/executor.hpp"
#include "table/slot_types.hpp"
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
  if (rows.bytes < 1 || rows.bytes > std::numeric_limits<std::uint32_t>::max())
    throw std::invalid_argument("keys has " + std::to_string(rows.bytes) + " bytes per key, expected 1 to 2^32 - 1");
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
  CountsMailbox splits;
  CountsMailbox samples;
};

/// A sample together with what it refers to.
class BoundSample {
 public:
  BoundSample(std::shared_ptr<BoundSplitter> splitter, const Array& keys, std::uint64_t seed,
              std::uintptr_t stream_address)
      : splitter_(std::move(splitter)), keys_(to_keys(*splitter_->context, keys)), seed_(seed) {
    if (keys_.count < Sample::kKeys)
      throw std::invalid_argument(std::to_string(keys_.count) + " keys were given, expected " +
                                  std::to_string(Sample::kKeys) + " or more");
    if (keys_.bytes > kMostSlotKeyBytes)
      throw std::invalid_argument("keys has " + std::to_string(keys_.bytes) + " bytes per key, expected 1 to " +
                                  std::to_string(kMostSlotKeyBytes));
    const Stream stream = to_stream(*splitter_->context, stream_address);
    const GilRelease unlocked;
    sample_ = splitter_->algorithm().sample(*splitter_->context, keys_, seed, splitter_->samples, stream);
  }
  std::pair<std::int64_t, std::int64_t> repeats() {
    const GilRelease unlocked;
    const Sample::Repeats& repeats = sample_->repeats();
    return {repeats.all, repeats.most};
  }
  /// For the split of the same keys.
  const std::shared_ptr<Sample>& sample_of(const KeyBatch& keys, std::uint64_t seed) const {
    if (keys.data != keys_.data || keys.count != keys_.count || keys.bytes != keys_.bytes || seed != seed_)
      throw std::invalid_argument("the sample is of other keys, or has another seed");
    return sample_;
  }

 private:
  std::shared_ptr<BoundSplitter> splitter_;
  KeyBatch keys_;
  std::uint64_t seed_;
  std::shared_ptr<Sample> sample_;
};

/// A split together with what it refers to.
class BoundSplit {
 public:
  BoundSplit(std::shared_ptr<BoundSplitter> splitter, const Array& keys, std::int64_t parts, std::int64_t last,
             std::int64_t alignment, std::int64_t gap, std::uint64_t seed, std::uintptr_t stream_address,
             const BoundSample* sample)
      : splitter_(std::move(splitter)), stream_(to_stream(context(), stream_address)), keys_(to_keys(context(), keys)) {
    if (parts < 1 || parts > static_cast<std::int64_t>(Split::kMaxParts))
      throw std::invalid_argument(std::to_string(parts) + " parts were asked for, expected 1 to " +
                                  std::to_string(Split::kMaxParts));
    if (last < 0 || last >= parts)
      throw std::invalid_argument("the last part is " + std::to_string(last) + ", expected one of " +
                                  std::to_string(parts));
    if (alignment < 1)
      throw std::invalid_argument("alignment is " + std::to_string(alignment) + ", expected 1 or more");
    if (gap < 0) throw std::invalid_argument("gap is " + std::to_string(gap) + ", expected 0 or more");
    const GilRelease unlocked;
    split_ = splitter_->algorithm().split(
        context(), keys_, seed, Parts(static_cast<std::size_t>(parts), static_cast<std::size_t>(last), alignment, gap),
        splitter_->splits, sample == nullptr ? nullptr : sample->sample_of(keys_, seed), stream_);
  }
  std::int64_t positions() const { return split_->parts().most_positions(keys_.count); }
  bool merges() const { return split_->merges(); }
  void tell(const std::vector<std::int64_t>& notes, const Array& array) const {
    const Rows told = to_rows(context(), array, "told", true);
    const std::size_t columns = 1 + notes.size();
    check_rows(told, static_cast<std::int64_t>(split_->parts().count),
               static_cast<std::int64_t>(columns * sizeof(std::int64_t)), "told");
    if (notes.size() > Split::kMaxNotes)
      throw std::invalid_argument(std::to_string(notes.size()) + " notes were given, expected up to " +
                                  std::to_string(Split::kMaxNotes));
    const GilRelease unlocked;
    split_->tell(notes, static_cast<std::int64_t*>(told.data));
  }
  void sort_keys(const Array& sorted) {
    if (std::exchange(sorted_, true)) throw std::invalid_argument("the keys have been sorted already");
    const Rows target = to_rows(context(), sorted, "sorted", true);
    check_rows(target, positions(), keys_.bytes, "sorted");
    const GilRelease unlocked;
    split_->sort_keys(target.data);
  }
  std::vector<std::int64_t> counts() {
    need_sorted();
    const GilRelease unlocked;
    if (!std::exchange(waited_, true)) split_->wait();
    return split_->counts();
  }

  void sort(const Array& rows, const Array& out) const {
    need_sorted();
    const auto [from, to] = from_and_to(rows, keys_.count, out, positions());
    const GilRelease unlocked;
    if (from.bytes != 0) split_->sort(from.data, from.bytes, to.data, stream_);
  }
  /// Values [n] of `dtype`, or one for all keys, combined where keys were merged.
  void combine(const Array& values, const std::string& op, const Array& out) const {
    need_sorted();
    const Reduction reduction{named(kActions, op), values.dtype};
    if (!reduction.can_merge() || !has_op(values.dtype, reduction.op))
      throw std::invalid_argument("values of " + std::string(name(values.dtype)) + " cannot be combined by " + op);
    const Rows from = to_rows(context(), values, "values", false);
    const Rows to = to_rows(context(), out, "out", true);
    if (from.count != 1) check_rows(from, keys_.count, reduction.bytes(), "values");
    check_rows(to, positions(), reduction.bytes(), "out");
    const GilRelease unlocked;
    split_->combine(from.data, from.count == 1, reduction, to.data, stream_);
  }
  void gather_mask(const Array& mask, const Array& out) const {
    if (!waited_) throw std::invalid_argument("how many rows there are is not known before counts()");
    const auto [from, to] = from_and_to(mask, split_->end(), out, keys_.count);
    if (from.bytes != sizeof(bool)) throw std::invalid_argument("the mask has rows of several bytes");
    const GilRelease unlocked;
    split_->gather_mask(static_cast<const bool*>(from.data), static_cast<bool*>(to.data), stream_);
  }
  /// With `found` bool [rows] goes `found_out`, which gets that in the keys' order.
  void gather(const Array& rows, const Array& out, const Array* found, const Array* found_out) const {
    if (!waited_) throw std::invalid_argument("how many rows there are is not known before counts()");
    const auto [from, to] = from_and_to(rows, split_->end(), out, keys_.count);
    GatherOptions options;
    if (found != nullptr && found_out != nullptr) {
      const auto [mask, mask_out] = from_and_to(*found, split_->end(), *found_out, keys_.count);
      if (mask.bytes != sizeof(bool)) throw std::invalid_argument("found is no mask: it has rows of several bytes");
      options.found = static_cast<const bool*>(mask.data);
      options.found_out = static_cast<bool*>(mask_out.data);
    }
    const GilRelease unlocked;
    if (from.bytes != 0) split_->gather(from.data, from.bytes, to.data, options, stream_);
  }

 private:
  /// `least` rows or more, and exactly `count`, of the same width.
  std::pair<Rows, Rows> from_and_to(const Array& rows, std::int64_t least, const Array& out, std::int64_t count) const {
    const Rows from = to_rows(context(), rows, "rows", false);
    const Rows to = to_rows(context(), out, "out", true);
    if (from.count < least)
      throw std::invalid_argument("rows has " + std::to_string(from.count) + " rows, expected " +
                                  std::to_string(least) + " or more");
    check_rows(to, count, from.bytes, "out");
    return {from, to};
  }

  void need_sorted() const {
    if (!sorted_) throw std::invalid_argument("the keys have not been sorted yet: call sort_keys() before");
  }
  DeviceContext& context() const { return *splitter_->context; }

  std::shared_ptr<BoundSplitter> splitter_;
  Stream stream_;
  KeyBatch keys_;
  std::unique_ptr<Split> split_;
  bool sorted_ = false;
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
  const GilRelease unlocked;
  context->executors().splitter->find_owners(*context, batch, seed, static_cast<std::uint32_t>(parts),
                                             static_cast<std::int32_t*>(out.data), stream);
}

}  // namespace

void bind_splitter(py::module_& module) {
  py::class_<BoundSplitter, std::shared_ptr<BoundSplitter>>(module, "Splitter", py::is_final(),
                                                            "Splits batches by owners, one after the other.")
      .def(py::init<ContextPointer>(), py::arg("context"));
  py::class_<BoundSample>(module, "Sample", py::is_final(), "Some keys of a batch, and how many repeat others.")
      .def(py::init<std::shared_ptr<BoundSplitter>, const Array&, std::uint64_t, std::uintptr_t>(), py::arg("splitter"),
           py::arg("keys"), py::arg("seed"), py::arg("stream"))
      .def("repeats", &BoundSample::repeats);
  py::class_<BoundSplit>(module, "Split", py::is_final(), "A batch of keys that is split by owners.")
      .def(py::init<std::shared_ptr<BoundSplitter>, const Array&, std::int64_t, std::int64_t, std::int64_t,
                    std::int64_t, std::uint64_t, std::uintptr_t, const BoundSample*>(),
           py::arg("splitter"), py::arg("keys"), py::arg("parts"), py::arg("last"), py::arg("alignment"),
           py::arg("gap"), py::arg("seed"), py::arg("stream"), py::arg("sample") = nullptr)
      .def_property_readonly("merges", &BoundSplit::merges)
      .def("positions", &BoundSplit::positions)
      .def("tell", &BoundSplit::tell, py::arg("notes"), py::arg("told"))
      .def("sort_keys", &BoundSplit::sort_keys, py::arg("sorted"))
      .def("counts", &BoundSplit::counts)
      .def("sort", &BoundSplit::sort, py::arg("rows"), py::arg("out"))
      .def("combine", &BoundSplit::combine, py::arg("values"), py::arg("op"), py::arg("out"))
      .def("gather_mask", &BoundSplit::gather_mask, py::arg("mask"), py::arg("out"))
      .def("gather", &BoundSplit::gather, py::arg("rows"), py::arg("out"), py::arg("found") = nullptr,
           py::arg("found_out") = nullptr);
  module.def("find_owners", &find_owners, py::arg("context"), py::arg("keys"), py::arg("parts"), py::arg("seed"),
             py::arg("out"), py::arg("stream"));
  module.attr("MAX_PARTS") = Split::kMaxParts;
  module.attr("SAMPLE_KEYS") = Sample::kKeys;
}

}  // namespace gpuhash::bindings
