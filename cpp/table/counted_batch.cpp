#include "table/counted_batch.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <gpuhash/error.hpp>
#include "core/thread_pool.hpp"
#include "core/tuning.hpp"
#include "table/forecast.hpp"
#include "table/repeated_values.hpp"

namespace gpuhash {

bool CountedBatch::may_be_made(const DeviceContext& context, const ApplyOrder& order) {
  return context.is_host() && combine_in_any_order(order.dtype) && order.values.broadcast &&
         order.keys.count >= tuning().least_counted_keys && !order.keys.distinct &&
         order.keys.bytes <= sizeof(std::uint64_t);
}

std::optional<CountedBatch> CountedBatch::of(DeviceContext& context, ApplyOrder& order, bool deterministic,
                                             std::uint64_t seed, const std::function<bool()>& has_room, Stream stream) {
  KeyBatch& keys = order.keys;
  FactorizationOptions wanted{.codes = false,
                              .counts = true,
                              .most_hashed = 0,  // ascending keys need no hash, and no sample
                              .any_order = !deterministic,
                              .order_seed = seed};
  const auto factorize = [&] {
    return Factorizer::of(context).factorize(context, forecast::as_bytes(keys), wanted, stream);
  };
  try {
    std::unique_ptr<Factorization> batch = factorize();
    if (batch == nullptr) {
      if (!forecast::Counting{has_room(), thread_count()}.pays(context, keys, stream)) return {};
      wanted.most_hashed = keys.count;
      wanted.expected = keys.expected;
      batch = factorize();
    }
    if (batch->count() > keys.count / 2) return {};
    return CountedBatch(context, order, std::move(batch), stream);
  } catch (const OutOfMemoryError&) {
    return {};
  }
}

CountedBatch::CountedBatch(DeviceContext& context, const ApplyOrder& order, std::unique_ptr<Factorization> batch,
                           Stream stream)
    : order_(order), count_(order.keys.count), batch_(std::move(batch)) {
  const std::int64_t distinct = batch_->count();
  const auto room = [&](std::int64_t bytes) {
    return Allocation(context, static_cast<std::size_t>(distinct * bytes), stream);
  };
  keys_ = room(order.keys.bytes);
  times_ = room(sizeof(std::int64_t));
  if (order.elements > 1) wide_values_ = room(order.values.bytes);
  if (order.inserted != nullptr) inserted_ = room(sizeof(bool));
  if (order.inserted != nullptr && !batch_->marks_firsts()) firsts_ = room(sizeof(std::int64_t));
  auto* const times = times_.as<std::int64_t>();
  batch_->write({keys_.get(), nullptr, times, firsts_.as<std::int64_t>(), false});
  void* const values = order.elements > 1 ? wide_values_.get() : times;
  repeat_values(order.dtype, order.op, order.values.data, order.elements, times, distinct, values);
  order_.keys = {keys_.get(), distinct, order.keys.bytes, true};
  order_.values = {values, order.values.bytes, false};
  order_.inserted = inserted_.as<bool>();
}

void CountedBatch::write_inserted(bool* inserted) const {
  const bool* const of_keys = inserted_.as<bool>();
  if (batch_->marks_firsts()) return batch_->mark_firsts(of_keys, inserted);
  std::fill_n(inserted, count_, false);
  for (std::int64_t i = 0; i < order_.keys.count; ++i) inserted[firsts_.as<std::int64_t>()[i]] = of_keys[i];
}

}  // namespace gpuhash
