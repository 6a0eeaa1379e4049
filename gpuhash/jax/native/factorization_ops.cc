// unique, factorize and isin: calls that need no table.
#include <algorithm>
#include <cstdint>
#include <memory>

#include <gpuhash/factorization.hpp>
#include "call.h"

namespace gpuhash::jax_ops {
namespace {

NumberKeys to_number_keys(const Operand& keys, std::int64_t elements) {
  return {keys.untyped_data(), static_cast<std::int64_t>(keys.element_count()) / elements, dtype_of(keys), elements};
}

/// The number of keys that an output of `bytes` per key has room for, which is what the program asks for.
std::int64_t room_of(Output output, std::int64_t bytes) {
  return static_cast<std::int64_t>(output->size_bytes()) / bytes;
}

/// Room for all distinct keys: the output itself, or where that has less, memory of which it gets the beginning.
class Prefix {
 public:
  Prefix(DeviceContext& context, Stream stream, void* output, std::int64_t output_bytes, std::int64_t bytes)
      : output_(output), output_bytes_(std::min(output_bytes, bytes)) {
    if (bytes > output_bytes) whole_ = Allocation(context, static_cast<std::size_t>(bytes), stream);
  }
  void* data() const { return whole_.get() == nullptr ? output_ : whole_.get(); }
  void hand_over(DeviceContext& context, Stream stream) const {
    if (whole_.get() != nullptr && output_bytes_ != 0)
      context.copy(output_, whole_.get(), static_cast<std::size_t>(output_bytes_), stream);
  }

 private:
  void* output_;
  std::int64_t output_bytes_;
  Allocation whole_;
};

/// Waits. What of values, counts and firsts lies beyond the number of distinct keys is not written; the program fills
/// it. Outputs without elements are not asked for.
/// keys  // [n, elements]
/// count  // [1]
/// values  // [size, elements]
/// inverse  // [n], int64
/// counts, firsts  // [size], int64
ffi::Error factorize(Place place, std::int64_t elements, bool sorted, Operand keys, Output count, Output values,
                     Output inverse, Output counts, Output firsts) {
  return guarded([&] {
    constexpr std::int64_t kWide = sizeof(std::int64_t);
    const NumberKeys batch = to_number_keys(keys, elements);
    const WideOutput distinct(count, 1, "the number of distinct keys");
    const std::shared_ptr<DeviceContext> context = make_context(place);
    const bool wants_inverse = inverse->element_count() != 0;
    const bool wants_counts = counts->element_count() != 0;
    const bool wants_firsts = firsts->element_count() != 0;
    distinct.check_bound(batch.count);
    if (context->is_capturing(place.stream))
      throw ShapeError("this cannot be captured, because it waits for the number of distinct keys");
    const std::unique_ptr<Factorization> work = Factorizer::of(*context).factorize(
        *context, batch, {.codes = wants_inverse, .counts = wants_counts}, place.stream);
    const std::int64_t found = work->count();
    const auto prefix = [&](Output output, std::int64_t bytes) {
      return Prefix(*context, place.stream, output->untyped_data(), room_of(output, bytes) * bytes, found * bytes);
    };
    const Prefix all_values = prefix(values, batch.bytes());
    FactorizationOutput out{};
    out.uniques = all_values.data();
    if (wants_inverse) out.codes = WideOutput(inverse, batch.count, "the inverse").data();
    std::unique_ptr<Prefix> all_counts, all_firsts;
    if (wants_counts) all_counts = std::make_unique<Prefix>(prefix(counts, kWide));
    if (wants_firsts) all_firsts = std::make_unique<Prefix>(prefix(firsts, kWide));
    if (all_counts) out.counts = static_cast<std::int64_t*>(all_counts->data());
    if (all_firsts) out.firsts = static_cast<std::int64_t*>(all_firsts->data());
    out.sorted = sorted;
    work->write(out);
    for (const Prefix* each :
         {&all_values, static_cast<const Prefix*>(all_counts.get()), static_cast<const Prefix*>(all_firsts.get())})
      if (each != nullptr) each->hand_over(*context, place.stream);
    context->copy_from_host(distinct.data(), &found, sizeof found, place.stream);
  });
}

template <class P>
auto bind_factorize() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<std::int64_t>("elements")
      .template Attr<bool>("sorted")
      .template Arg<Operand>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

/// May wait.
ffi::Error isin(Place place, std::int64_t elements, bool invert, Operand keys, Operand tests, Output mask) {
  return guarded([&] {
    const NumberKeys batch = to_number_keys(keys, elements);
    check_array(*mask, "marks", DType::kBool, batch.count);
    const std::shared_ptr<DeviceContext> context = make_context(place);
    if (context->is_capturing(place.stream)) throw ShapeError("this cannot be captured, because it may wait");
    Factorizer::of(*context).isin(*context, batch, to_number_keys(tests, elements), invert,
                                  static_cast<bool*>(mask->untyped_data()), place.stream);
  });
}

template <class P>
auto bind_isin() {
  return ffi::Ffi::Bind()
      .Ctx<P>()
      .template Attr<std::int64_t>("elements")
      .template Attr<bool>("invert")
      .template Arg<Operand>()
      .template Arg<Operand>()
      .template Ret<ffi::AnyBuffer>();
}

}  // namespace

GPUHASH_JAX_HANDLER(factorize, factorize, bind_factorize);
GPUHASH_JAX_HANDLER(isin, isin, bind_isin);

}  // namespace gpuhash::jax_ops
