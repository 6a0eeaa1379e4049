#include "table/wide_values.hpp"

#include <algorithm>
#include <cstring>

#include <gpuhash/factorization.hpp>
#include <gpuhash/platform.hpp>
#include "core/thread_pool.hpp"
#include "shared/arithmetic.hpp"

namespace gpuhash {
namespace {

/// Numbers that are worth a thread.
constexpr std::int64_t kLeastPart = std::int64_t{1} << 16;

/// Those of the distinct keys [begin, end) alone: so the values of a key meet in the batch's order, on whatever thread.
template <class Short>
void combine_range(const ValueBatch& values, Action op, std::int64_t elements, const std::int64_t* codes,
                   const std::int64_t* firsts, std::int64_t count, std::int64_t begin, std::int64_t end, float* to) {
  const auto* const bytes = static_cast<const char*>(values.data);
  for (std::int64_t i = firsts[begin]; i < count; ++i) {
    const std::int64_t code = codes[i];
    if (code < begin || code >= end) continue;
    const char* const from = bytes + (values.broadcast ? 0 : i * values.bytes);
    float* const combined = to + code * elements;
    const bool is_first = firsts[code] == i;
    for (std::int64_t e = 0; e < elements; ++e) {
      Short value;
      std::memcpy(&value, from + e * static_cast<std::int64_t>(sizeof value), sizeof value);
      combined[e] = is_first ? value.to_float() : combine(op, combined[e], value.to_float());
    }
  }
}

/// Whose memory is not that of a table's resource: when this batch is combined, other shards may have changed already.
DeviceContext& scratch_context() {
  static const auto& context = *new std::shared_ptr<DeviceContext>(platform("cpu").make_context(0, nullptr));
  return *context;
}

}  // namespace

WideBatch::WideBatch(const KeyBatch& keys, Stream stream)
    : context_(scratch_context()), stream_(stream), count_(keys.count) {
  if (count_ < 2) return;
  const NumberKeys bytes{keys.data, keys.count, DType::kUInt8, keys.bytes};
  const auto batch = Factorizer::of(context_).factorize(context_, bytes, {.counts = false}, stream);
  distinct_ = batch->count();
  if (distinct_ == count_) return;
  codes_ = Allocation(context_, static_cast<std::size_t>(count_) * sizeof(std::int64_t), stream);
  firsts_ = Allocation(context_, static_cast<std::size_t>(distinct_) * sizeof(std::int64_t), stream);
  batch->write({nullptr, codes_.as<std::int64_t>(), nullptr, firsts_.as<std::int64_t>(), false});
}

WideValues WideBatch::combine(const ValueBatch& values, Action op, DType dtype, std::int64_t elements) {
  if (codes_.get() == nullptr) return {};
  combined_.emplace_back(context_, static_cast<std::size_t>(distinct_ * elements) * sizeof(float), stream_);
  const WideValues wide{combined_.back().as<float>(), codes_.as<std::int64_t>(), firsts_.as<std::int64_t>(), 0};
  auto* const to = combined_.back().as<float>();
  const std::int64_t work = std::min(distinct_, count_ * elements / kLeastPart);
  const int parts = static_cast<int>(std::clamp<std::int64_t>(work, 1, thread_count()));
  parallel_for(parts, [&](int part) {
    const std::int64_t begin = distinct_ * part / parts;
    const std::int64_t end = distinct_ * (part + 1) / parts;
    if (dtype == DType::kFloat16)
      combine_range<Float16>(values, op, elements, wide.codes, wide.firsts, count_, begin, end, to);
    else
      combine_range<BFloat16>(values, op, elements, wide.codes, wide.firsts, count_, begin, end, to);
  });
  return wide;
}

}  // namespace gpuhash
