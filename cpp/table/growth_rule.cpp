#include "table/growth_rule.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>

#include <gpuhash/error.hpp>
#include "shared/probe_sequence.hpp"

namespace gpuhash {
namespace {

/// Up to this load factor a batch is let into a table that can grow without a look at which of its keys are new, and
/// the table grows afterwards if it has to. Nor do keys come far from home by chance up to here: see is_flooded().
constexpr double kUncheckedLoadFactor = 0.92;

/// Where the table picks its number of slots, keys lie no denser than this, whatever max_load_factor says: the last
/// keys of a full table look through most of it, so that filling one takes time by the square of its size.
constexpr double kDensestLoadFactor = 0.95;

/// A batch of this many keys that is larger than the table gets room for all of them, unless a sample says that most
/// are duplicates, and the table shrinks afterwards if many were: a large table is filled and rebuilt faster than
/// distinct keys are counted.
constexpr std::int64_t kLargeBatch = std::int64_t{1} << 22;

/// A batch of absent keys this much smaller than the table is taken to be distinct: growing early by an eighth costs
/// less than counting.
constexpr std::int64_t kSmallPart = 8;

/// A table of at most so many slots is rebuilt only where it could be three times smaller; others where twice.
constexpr std::int64_t kSmallTable = std::int64_t{1} << 16;

/// One that was made so many times larger, and whose keys would fit as before, takes its former size.
constexpr std::int64_t kGrownInVain = 3;

/// Is the load at most kUncheckedLoadFactor?
bool is_lightly_loaded(std::int64_t keys, std::int64_t slots) {
  return static_cast<double>(keys) <= static_cast<double>(slots) * kUncheckedLoadFactor;
}

}  // namespace

std::int64_t GrowthRule::key_limit(std::int64_t slots) const {
  if (!may_grow_beyond(slots)) return slots;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(slots) * max_load_factor));
}

bool GrowthRule::may_hold(std::int64_t keys) const {
  if (max_capacity) return keys <= *max_capacity;
  return std::ceil(static_cast<double>(keys) / max_load_factor) <= static_cast<double>(most_slots);
}

std::int64_t GrowthRule::slots_for(std::int64_t keys) const {
  if (!may_hold(keys)) {
    if (max_capacity)
      throw TableFullError("room for " + std::to_string(keys) + " keys was asked of a table that may have at most " +
                           std::to_string(*max_capacity) +
                           " slots; erase keys, or make the table with a larger max_capacity or growth=True");
    std::ostringstream factor;
    factor << max_load_factor;
    throw ShapeError("room for " + std::to_string(keys) + " keys was asked of a table with a max_load_factor of " +
                     factor.str() + ", which takes more than the " + std::to_string(most_slots) +
                     " slots that are possible; ask for fewer keys, or raise the load factor");
  }
  const std::int64_t most = max_capacity.value_or(most_slots);
  const double wanted = std::ceil(static_cast<double>(keys) / std::min(max_load_factor, kDensestLoadFactor));
  if (wanted >= static_cast<double>(most)) return most;
  auto slots = static_cast<std::int64_t>(wanted);
  while (slots < most && key_limit(slots) < keys) ++slots;  // rounding: once or twice
  return slots;
}

std::int64_t GrowthRule::grown(std::int64_t slots) const {
  return max_capacity ? std::min(2 * slots, *max_capacity) : 2 * slots;
}

std::int64_t GrowthRule::grown_for(std::int64_t keys, std::int64_t slots) const {
  return std::max(slots_for(keys), grown(slots));
}

std::int64_t GrowthRule::grown_ahead(std::int64_t size, std::int64_t added, std::int64_t slots) const {
  const std::int64_t more = size == 0 ? added / 2 : 2 * std::min(size, added);
  return grown_for(may_hold(size + added + more) ? size + added + more : size + added, slots);
}

std::int64_t GrowthRule::most_new(std::int64_t size) const {
  return max_capacity ? *max_capacity - size : std::int64_t{1} << 62;
}

bool GrowthRule::may_grow_afterwards(std::int64_t keys, std::int64_t slots) const {
  return may_grow_beyond(slots) && may_hold(keys) && is_lightly_loaded(keys, slots);
}

std::int64_t GrowthRule::uncounted_limit(std::int64_t slots) const {
  const std::int64_t limit = key_limit(slots);
  if (!may_grow_beyond(slots)) return limit;
  return std::max(limit, static_cast<std::int64_t>(static_cast<double>(slots) * kUncheckedLoadFactor));
}

bool GrowthRule::may_make_room_for_all(std::int64_t batch, std::int64_t slots) const {
  return batch >= kLargeBatch && batch >= slots && !max_capacity;
}

bool GrowthRule::may_grow_early(std::int64_t absent, std::int64_t size, std::int64_t slots, std::int64_t limit) const {
  return may_grow_beyond(slots) && absent <= limit / kSmallPart && absent <= most_new(size);
}

std::optional<std::int64_t> GrowthRule::slots_afterwards(std::int64_t size, std::int64_t slots, std::int64_t limit,
                                                         std::int64_t slots_before, std::int64_t size_before) const {
  if (size > limit) return grown_for(size, slots);
  if (slots_before == 0) return std::nullopt;
  // Made larger for keys that did not come, it goes back, or each batch would add to it. Not where it has but doubled:
  // a table at its limit would grow and shrink with every batch.
  if (size <= key_limit(slots_before) && slots >= kGrownInVain * slots_before) return slots_before;
  const std::int64_t wanted = grown_ahead(size_before, size - size_before, slots_before);
  return slots >= (slots <= kSmallTable ? 3 : 2) * wanted ? std::optional(wanted) : std::nullopt;
}

bool is_worn(const Control& control, std::uint64_t buckets, std::uint64_t slots, std::uint64_t fresh_filter_bits) {
  if (control.size == 0) return control.filter_bits > buckets / 4;
  return control.erased >= slots / 2 && control.filter_bits >= 2 * fresh_filter_bits + buckets / 2;
}

bool is_deserted(const Control& control, std::uint64_t slots) {
  return control.size == 0 && control.erased >= slots / 4;
}

bool is_flooded(const Control& control, std::int64_t slots, std::int64_t peak) {
  return control.far_keys >= kManyFarKeys && is_lightly_loaded(peak, slots);
}

}  // namespace gpuhash
