#include "core/tuning.hpp"

#include <array>
#include <cstddef>
#include <stdexcept>

namespace gpuhash {
namespace {

struct Named {
  const char* name;
  Threshold Tuning::* threshold;
};

#define GPUHASH_NAMED(name) \
  Named { #name, &Tuning::name }
constexpr std::array kAll{
    GPUHASH_NAMED(most_batch_keys),
    GPUHASH_NAMED(count_chunk_keys),
    GPUHASH_NAMED(listed_keys),
    GPUHASH_NAMED(most_spare_bytes),
    GPUHASH_NAMED(least_watched_keys),
    GPUHASH_NAMED(fingerprint_bits),
    GPUHASH_NAMED(sample_keys),
    GPUHASH_NAMED(most_sample_keys),
    GPUHASH_NAMED(least_sampled_keys),
    GPUHASH_NAMED(sample_run_keys),
    GPUHASH_NAMED(least_guessed_keys),
    GPUHASH_NAMED(least_guessed_in_new_keys),
    GPUHASH_NAMED(new_table_slots),
    GPUHASH_NAMED(least_trusted_keys),
    GPUHASH_NAMED(open_part),
    GPUHASH_NAMED(most_open_keys),
    GPUHASH_NAMED(least_counted_keys),
    GPUHASH_NAMED(fits_cache_keys),
    GPUHASH_NAMED(fills_parts_keys),
    GPUHASH_NAMED(skewed_percent),
    GPUHASH_NAMED(narrow_fingerprints),
    GPUHASH_NAMED(word_list_keys),
    GPUHASH_NAMED(narrow_position_keys),
    GPUHASH_NAMED(most_ascending_keys),
    GPUHASH_NAMED(most_folded_groups),
    GPUHASH_NAMED(streamed_bytes),
    GPUHASH_NAMED(intel_streamed_bytes),
    GPUHASH_NAMED(l2_bytes),
    GPUHASH_NAMED(least_partitioned_keys),
    GPUHASH_NAMED(partition_table_bytes),
    GPUHASH_NAMED(least_partitioned_in_l2_keys),
    GPUHASH_NAMED(one_block_keys),
    GPUHASH_NAMED(partitioned_repeats),
    GPUHASH_NAMED(partitioned_linked_repeats),
    GPUHASH_NAMED(partitioned_elements_per_test),
};
#undef GPUHASH_NAMED
static_assert(sizeof(Tuning) == std::size(kAll) * sizeof(Threshold), "every threshold has its name here");

}  // namespace

namespace detail {
constinit Tuning tuning;
}

std::int64_t Threshold::set(std::int64_t value) {
  if (value < least_ || value > most_)
    throw std::invalid_argument("a threshold was to be " + std::to_string(value) + "; it lies between " +
                                std::to_string(least_) + " and " + std::to_string(most_));
  return value_.exchange(value, std::memory_order_relaxed);
}

std::map<std::string, std::int64_t> thresholds() {
  std::map<std::string, std::int64_t> values;
  for (const auto& [name, threshold] : kAll) values.emplace(name, detail::tuning.*threshold);
  return values;
}

std::int64_t set_threshold(const std::string& name, std::int64_t value) {
  for (const auto& [known, threshold] : kAll)
    if (name == known) return (detail::tuning.*threshold).set(value);
  throw std::invalid_argument("there is no threshold '" + name + "'");
}

}  // namespace gpuhash
