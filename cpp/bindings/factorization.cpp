#include <gpuhash/factorization.hpp>

#include <pybind11/pybind11.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "bindings/array.hpp"
#include "bindings/bindings.hpp"
#include "bindings/context.hpp"
#include "bindings/gil.hpp"
#include "bindings/number_keys.hpp"
#include "shared/hash.hpp"

namespace gpuhash::bindings {

NumberKeys to_number_keys(const DeviceContext& context, const Array& array, std::int64_t elements, const char* role) {
  check_dense(context, array, role);
  const std::int64_t bytes = elements * static_cast<std::int64_t>(itemsize(array.dtype));
  if (elements < 1 || bytes > static_cast<std::int64_t>(sizeof(Uint128)))
    throw std::invalid_argument(std::string(role) + " has " + std::to_string(bytes) +
                                " bytes per key, expected 1 to 16");
  if (array.elements() % elements != 0)
    throw std::invalid_argument(std::string(role) + " has " + std::to_string(array.elements()) +
                                " elements, expected a multiple of " + std::to_string(elements));
  return {array.data, array.elements() / elements, array.dtype, elements};
}

namespace {

/// The memory of an optional output of `count` items.
void* output(const DeviceContext& context, const Array* array, const char* role, DType dtype, std::int64_t count) {
  if (array == nullptr) return nullptr;
  check_dense(context, *array, role);
  if (array->dtype != dtype || array->elements() != count)
    throw std::invalid_argument(std::string(role) + " has " + std::to_string(array->elements()) + " elements of " +
                                std::string(name(array->dtype)) + ", expected " + std::to_string(count) + " of " +
                                std::string(name(dtype)));
  if (array->readonly) throw std::invalid_argument(std::string(role) + " is read-only");
  return array->data;
}

void refuse_capture(DeviceContext& context, Stream stream) {
  if (context.is_capturing(stream))
    throw std::invalid_argument(
        "this cannot be captured into a CUDA graph, because it waits for the number of distinct keys: call it outside "
        "of the capture, or capture find and contains of a table");
}

/// A factorization together with what it refers to.
class BoundFactorization {
 public:
  BoundFactorization(ContextPointer context, Array keys, std::int64_t elements, bool codes, bool counts,
                     std::uintptr_t stream_address, std::int64_t most_hashed = kAny)
      : context_(std::move(context)), array_(std::move(keys)), elements_(elements), codes_(codes), counts_(counts) {
    const NumberKeys number_keys = to_number_keys(*context_, array_, elements, "keys");
    const Stream stream = to_stream(*context_, stream_address);
    const GilRelease unlocked;
    refuse_capture(*context_, stream);
    work_ = Factorizer::of(*context_).factorize(*context_, number_keys,
                                                {.codes = codes, .counts = counts, .most_hashed = most_hashed}, stream);
  }

  /// Null where more keys than `most_hashed` seem distinct (FactorizationOptions).
  static std::unique_ptr<BoundFactorization> of_few(ContextPointer context, Array keys, std::int64_t elements,
                                                    bool counts, std::int64_t most_hashed) {
    auto made = std::make_unique<BoundFactorization>(std::move(context), std::move(keys), elements, false, counts,
                                                     std::uintptr_t{0}, most_hashed);
    return made->work_ == nullptr ? nullptr : std::move(made);
  }

  std::int64_t count() const { return work_->count(); }
  bool of_ascending_keys() const { return work_->of_ascending_keys(); }

  void write(const Array* uniques, const Array* codes, const Array* counts, const Array* firsts, bool sorted) {
    if (codes != nullptr && !codes_) throw std::invalid_argument("codes are asked for, and were not announced");
    if (counts != nullptr && !counts_) throw std::invalid_argument("counts are asked for, and were not announced");
    const std::int64_t n = array_.elements() / elements_;
    FactorizationOutput out{};
    out.uniques = output(*context_, uniques, "uniques", array_.dtype, count() * elements_);
    out.codes = static_cast<std::int64_t*>(output(*context_, codes, "codes", DType::kInt64, n));
    out.counts = static_cast<std::int64_t*>(output(*context_, counts, "counts", DType::kInt64, count()));
    out.firsts = static_cast<std::int64_t*>(output(*context_, firsts, "firsts", DType::kInt64, count()));
    out.sorted = sorted;
    const GilRelease unlocked;
    work_->write(out);
  }

 private:
  static constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

  ContextPointer context_;
  Array array_;
  std::int64_t elements_;
  bool codes_;
  bool counts_;
  std::unique_ptr<Factorization> work_;
};

DType order_word_of(const NumberKeys& keys) {
  switch (keys.bytes()) {
    case 1:
      return DType::kUInt8;
    case 2:
      return DType::kUInt16;
    case 4:
      return DType::kUInt32;
    default:
      return DType::kUInt64;
  }
}

/// `words` of `count` keys in the memory of a context, which has to be the host's.
void* order_words(const DeviceContext& context, const Array& words, const NumberKeys& keys, std::int64_t count) {
  if (context.device().platform != "cpu") throw std::invalid_argument("order words are of keys on the host");
  return output(context, &words, "words", order_word_of(keys), count);
}

void write_order_words(const ContextPointer& context, const Array& keys, const Array& words) {
  const NumberKeys number_keys = to_number_keys(*context, keys, 1, "keys");
  void* const to = order_words(*context, words, number_keys, number_keys.count);
  const GilRelease unlocked;
  gpuhash::write_order_words(number_keys, to);
}

void read_order_words(const ContextPointer& context, const Array& words, const Array& keys) {
  const NumberKeys number_keys = to_number_keys(*context, keys, 1, "keys");
  void* const to = order_words(*context, words, number_keys, words.elements());
  const GilRelease unlocked;
  gpuhash::read_order_words(to, words.elements(), number_keys);
}

void isin(const ContextPointer& context, const Array& elements, const Array& tests, std::int64_t per_key, bool invert,
          const Array& mask, std::uintptr_t stream_address) {
  const NumberKeys element_keys = to_number_keys(*context, elements, per_key, "elements");
  const NumberKeys test_keys = to_number_keys(*context, tests, per_key, "test_elements");
  if (elements.dtype != tests.dtype) throw std::invalid_argument("elements and test_elements differ in dtype");
  auto* const out = static_cast<bool*>(output(*context, &mask, "mask", DType::kBool, element_keys.count));
  const Stream stream = to_stream(*context, stream_address);
  const GilRelease unlocked;
  refuse_capture(*context, stream);
  Factorizer::of(*context).isin(*context, element_keys, test_keys, invert, out, stream);
}

}  // namespace

void bind_factorization(py::module_& module) {
  py::class_<BoundFactorization>(module, "Factorization", py::is_final(),
                                 "A batch of keys whose distinct ones have been found.")
      .def(py::init<ContextPointer, Array, std::int64_t, bool, bool, std::uintptr_t>(), py::arg("context"),
           py::arg("keys"), py::arg("elements"), py::arg("codes"), py::arg("counts"), py::arg("stream"))
      .def_static("of_few", &BoundFactorization::of_few, py::arg("context"), py::arg("keys"), py::arg("elements"),
                  py::arg("counts"), py::arg("most_hashed"))
      .def_property_readonly("count", &BoundFactorization::count)
      .def_property_readonly("of_ascending_keys", &BoundFactorization::of_ascending_keys)
      .def("write", &BoundFactorization::write, py::arg("uniques"), py::arg("codes"), py::arg("counts"),
           py::arg("firsts"), py::arg("sorted"));
  module.def("isin", &isin, py::arg("context"), py::arg("elements"), py::arg("tests"), py::arg("per_key"),
             py::arg("invert"), py::arg("mask"), py::arg("stream"));
  module.def("write_order_words", &write_order_words, py::arg("context"), py::arg("keys"), py::arg("words"));
  module.def("read_order_words", &read_order_words, py::arg("context"), py::arg("words"), py::arg("keys"));
}

}  // namespace gpuhash::bindings
