#include "table/forecast.hpp"

#include <algorithm>
#include <bit>

#include "core/tuning.hpp"

namespace gpuhash::forecast {

NumberKeys as_bytes(const KeyBatch& keys) { return {keys.data, keys.count, DType::kUInt8, keys.bytes}; }

std::int64_t samples_for(std::int64_t keys) {
  const auto part = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(keys) / 64));
  return std::min(std::max<std::int64_t>(part, tuning().sample_keys), std::int64_t{tuning().most_sample_keys});
}

std::int64_t estimate_distinct(DeviceContext& context, const KeyBatch& keys, Stream stream) {
  if (keys.expected != 0) return keys.expected;
  if (keys.distinct || keys.count < tuning().least_sampled_keys) return keys.count;
  const std::int64_t samples = context.is_host() ? samples_for(keys.count) : std::int64_t{tuning().sample_keys};
  return Factorizer::of(context).estimate_distinct(context, as_bytes(keys), samples, stream).count;
}

std::int64_t Uncounted::least_part() const { return std::max<std::int64_t>(keys / 16, 1); }

bool Uncounted::may_be_trusted() const {
  return keys >= std::max<std::int64_t>(tuning().least_trusted_keys, slots / 8);
}

bool Uncounted::may_be_guessed() const {
  return keys >= (slots <= tuning().new_table_slots ? tuning().least_guessed_in_new_keys : tuning().least_guessed_keys);
}

std::int64_t Uncounted::runs() const {
  const std::int64_t run = tuning().sample_run_keys;
  return std::min<std::int64_t>(tuning().sample_keys, keys / 8) / run;
}

std::int64_t Uncounted::new_keys(std::int64_t distinct, std::int64_t absent, std::int64_t looked) const {
  const double share = static_cast<double>(absent) / static_cast<double>(looked);
  return std::min(distinct, static_cast<std::int64_t>(share * static_cast<double>(keys)));
}

std::int64_t Uncounted::worth_room(std::int64_t added) const {
  const std::int64_t part = keys / tuning().open_part;
  return slots < part && keys <= tuning().most_open_keys ? std::max(added, part) : added;
}

std::int64_t Counting::most_distinct(std::int64_t keys, std::uint32_t key_bytes) const {
  const std::int64_t n = keys;
  if (n <= tuning().fits_cache_keys) return has_room ? n / 5 : n / 2;
  if (key_bytes <= sizeof(std::uint32_t)) return has_room ? n / 20 : threads == 1 ? n / 5 : n / 7 * 2;
  if (n < tuning().fills_parts_keys) return n / 32;
  if (threads == 1) return n / 64;
  return n / (has_room ? 12 : 4);
}

bool Counting::pays(DeviceContext& context, KeyBatch& keys, Stream stream) const {
  const std::int64_t n = keys.count;
  const std::int64_t most = most_distinct(n, keys.bytes);
  const auto seem_few = [&](std::int64_t samples) {
    const DistinctEstimate estimate =
        Factorizer::of(context).estimate_distinct(context, as_bytes(keys), samples, stream, most);
    keys.expected = estimate.is_bound ? 0 : estimate.count;
    const bool is_skewed = estimate.repeated * 100 >= static_cast<double>(tuning().skewed_percent);
    return estimate.count <= most || (!has_room && is_skewed && estimate.count <= n / 5 * 2);
  };
  const std::int64_t sample = tuning().sample_keys;
  const auto part = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n / 128)));
  if (seem_few(std::clamp(part, sample / 16, sample / 4))) return true;
  return !has_room && n >= tuning().least_sampled_keys && seem_few(samples_for(n));
}

}  // namespace gpuhash::forecast
