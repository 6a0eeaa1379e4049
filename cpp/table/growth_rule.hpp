#pragma once

#include <cstdint>
#include <optional>

#include "shared/layout.hpp"

/// When a table grows, and to what size. Numbers alone: no memory, no device, nothing that waits.
namespace gpuhash {

/// Of one table as it is now: max_load_factor may be another one later.
struct GrowthRule {
  std::int64_t most_slots;                   // that a table of this slot type can have
  std::optional<std::int64_t> max_capacity;  // slots; a table at its maximum fills to the last slot
  double max_load_factor;                    // in (0, 1]

  bool may_grow_beyond(std::int64_t slots) const { return !max_capacity || slots < *max_capacity; }
  /// Keys that a table of `slots` slots takes before it has to grow; all slots where it may not.
  std::int64_t key_limit(std::int64_t slots) const;
  /// Can a table of this load factor have room for so many keys, given memory?
  bool may_hold(std::int64_t keys) const;
  /// Slots of a table whose limit is at least `keys`, some of them free where it may have as many. Throws
  /// TableFullError or ShapeError where none can have it.
  std::int64_t slots_for(std::int64_t keys) const;
  /// The next size: doubling, so that growing costs a constant per key.
  std::int64_t grown(std::int64_t slots) const;
  /// Likewise, and room for `keys` keys in all. Throws as slots_for().
  std::int64_t grown_for(std::int64_t keys, std::int64_t slots) const;
  /// Likewise for a table of `size` keys to which `added` come at once: if it may, with room for two more batches like
  /// that, or for twice the size where that is less, or in an empty table for half a batch more: keys come faster into
  /// a table that is not full at the end. Afterwards it is as full as one of twice the slots may be, at least half of
  /// its limit.
  std::int64_t grown_ahead(std::int64_t size, std::int64_t added, std::int64_t slots) const;
  /// Keys that may come to `size` others at most, given memory.
  std::int64_t most_new(std::int64_t size) const;

  /// May a batch that makes up to `keys` keys in all be let in without a look at which of its keys are new? The table
  /// grows afterwards if it has to.
  bool may_grow_afterwards(std::int64_t keys, std::int64_t slots) const;
  /// So many keys a table that may grow takes uncounted; as many as its limit where that is more.
  std::int64_t uncounted_limit(std::int64_t slots) const;
  /// Is a batch so large that a table of `slots` slots may get room for all of its keys, as if they were distinct?
  bool may_make_room_for_all(std::int64_t batch, std::int64_t slots) const;
  /// May `absent` keys, of which some may be equal, be taken to be distinct, though they do not fit under the limit?
  bool may_grow_early(std::int64_t absent, std::int64_t size, std::int64_t slots, std::int64_t limit) const;
  /// The size of a table that has let a batch in uncounted and now has `size` keys; nothing where it may stay as it is.
  /// slots_before: its slots before it was made larger for keys that the batch may have had, or 0: it was not;
  /// size_before: its keys then, if it was made larger by grown_ahead(). Throws as slots_for().
  std::optional<std::int64_t> slots_afterwards(std::int64_t size, std::int64_t slots, std::int64_t limit,
                                               std::int64_t slots_before, std::int64_t size_before) const;
};

/// After long churn, filter bits of keys that are gone make searches go on in vain, and erased marks keep buckets full.
/// A rebuild of the same size clears both; it comes due after as many erasures as half the slots, so its cost is
/// spread. It also comes due where all keys are gone from a table that was more than half full, as none has to move.
/// fresh_filter_bits: what the last rebuild left.
bool is_worn(const Control& control, std::uint64_t buckets, std::uint64_t slots, std::uint64_t fresh_filter_bits);

/// All keys are gone, and since the table was clear so many were erased that clearing it costs each of them little:
/// less than what they have left behind costs as many new ones.
bool is_deserted(const Control& control, std::uint64_t slots);

/// Keys that lie far from home at a load at which none gets there by chance were picked to meet, by somebody who knows
/// the seed. Another one scatters them, and nobody outside knows it. peak: the most keys since the last rebuild.
bool is_flooded(const Control& control, std::int64_t slots, std::int64_t peak);

}  // namespace gpuhash
