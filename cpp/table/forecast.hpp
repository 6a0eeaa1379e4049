#pragma once

#include <cstdint>

#include <gpuhash/device_context.hpp>
#include <gpuhash/factorization.hpp>
#include <gpuhash/requests.hpp>

/// What a table expects of a batch before it takes it, by the batch's size and by samples of it. None of it looks at
/// the table. Tuning (core/tuning.hpp) has the thresholds and their reasons.
namespace gpuhash::forecast {

/// Keys that are told apart by their bytes.
NumberKeys as_bytes(const KeyBatch& keys);

/// Samples that tell a host by how much a table has to grow for `keys` keys: the larger the batch, the farther off is a
/// guess from as many samples where few keys come often.
std::int64_t samples_for(std::int64_t keys);

/// About as many as there are distinct keys, as far as is known, or by a sample; as many as keys where they are more
/// than half of these.
std::int64_t estimate_distinct(DeviceContext& context, const KeyBatch& keys, Stream stream);

/// On the host, of a batch whose new keys nobody has counted, for a table of `slots` slots.
struct Uncounted {
  std::int64_t keys;
  std::int64_t slots;

  /// The batch goes in by parts of at least so many keys.
  std::int64_t least_part() const;
  /// Are its keys taken to be there, where those of the last batches were? Not those of a batch that is far smaller
  /// than the table, as memory is set aside for each.
  bool may_be_trusted() const;
  /// Is it large enough for its new keys to be guessed?
  bool may_be_guessed() const;
  /// Samples by which its new keys are guessed: so many runs of Tuning::sample_run_keys.
  std::int64_t runs() const;
  /// New keys, where `absent` of `looked` ones were not in the table; no more than there are distinct.
  std::int64_t new_keys(std::int64_t distinct, std::int64_t absent, std::int64_t looked) const;
  /// Keys for which a table gets room that are expected to be new: more of them where the table is far smaller than the
  /// batch.
  std::int64_t worth_room(std::int64_t added) const;
};

/// A batch with one value for all keys, which the host may count first: is it known that all of its keys have room, and
/// by how many threads does it work?
struct Counting {
  bool has_room;
  int threads;

  /// How many distinct keys a batch may seem to have to be counted first: it has to be faster than to take the batch to
  /// the table as it is, which takes longer where there may not be room. A single thread counts few keys faster, but
  /// its partitions take longer than the table.
  std::int64_t most_distinct(std::int64_t keys, std::uint32_t key_bytes) const;
  /// By a sample. A small one may be enough; otherwise, where the table may have to grow, a larger one of a larger
  /// batch. The batch gets the estimate, so that the table need not take another one.
  bool pays(DeviceContext& context, KeyBatch& keys, Stream stream) const;
};

}  // namespace gpuhash::forecast
