#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include <gpuhash/export.hpp>

namespace gpuhash {

/// The keys of a factorization: `count` of `elements` numbers each, dense, in the context's memory; 1 to 16 bytes per
/// key. Integers and complex numbers' parts compare as what they are; of floats -0.0 equals 0.0, and all NaNs are one
/// key; all booleans' bytes but 0 are true.
struct NumberKeys {
  const void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::kInt64;
  std::int64_t elements = 1;

  std::uint32_t bytes() const {
    return static_cast<std::uint32_t>(itemsize(dtype)) * static_cast<std::uint32_t>(elements);
  }
};

/// Where Factorization::write puts its results; each may be null.
struct FactorizationOutput {
  void* uniques;         // [distinct keys], as they stand where they first occur; booleans as 0 and 1
  std::int64_t* codes;   // [n]
  std::int64_t* counts;  // [distinct keys]
  std::int64_t* firsts;  // [distinct keys], positions in the batch
  bool sorted;  // ids in ascending order of the keys, rows by their first number first; else of first occurrence
};

/// A batch of keys whose distinct ones have been found. Refers to the keys, which must stay until it is destroyed.
class GPUHASH_API Factorization {
 public:
  virtual ~Factorization() = default;
  /// Distinct keys.
  virtual std::int64_t count() const = 0;
  /// Did the keys come in ascending order? Then `sorted` costs nothing.
  virtual bool of_ascending_keys() const { return false; }
  /// On the stream that factorize was called with; does not wait. Codes and counts only if they were announced, of
  /// keys in any order no codes, and `firsts` only where mark_firsts() does not do instead.
  virtual void write(const FactorizationOutput& out) = 0;
  /// On the host, of keys in any order: is there mark_firsts()?
  virtual bool marks_firsts() const { return false; }
  /// mask[i], i in [0, n), is of_keys[id] where distinct key `id` first occurs, and false elsewhere.
  virtual void mark_firsts([[maybe_unused]] const bool* of_keys, [[maybe_unused]] bool* mask) const {}
};

/// What factorize() is asked for.
struct FactorizationOptions {
  bool codes = true;   // they will be asked for
  bool counts = true;  // likewise
  /// More distinct keys than these are not to be hashed: the host gives null for a batch of more keys in which a sample
  /// shows more distinct ones, or which is too small for one, unless its keys come in ascending order, which needs no
  /// hash. A GPU does not look at it.
  std::int64_t most_hashed = std::numeric_limits<std::int64_t>::max();
  /// About so many distinct keys, so that the host need not find out whether they are few; 0: nobody has looked.
  std::int64_t expected = 0;
  /// The distinct keys may come in any order, which takes less time. On the host many come roughly in the order in
  /// which a table with that seed has them, whatever its size, so that it takes them from its first bucket to its last.
  /// The keys and the seed decide, and the number of threads where few are distinct: fewer than 2^14, or 2^20 of keys
  /// of up to 4 bytes. A GPU does not look at it.
  bool any_order = false;
  std::uint64_t order_seed = 0;
};

/// What a sample tells of a batch.
struct DistinctEstimate {
  std::int64_t count;     // about as many as there are distinct keys; that of all keys where most are distinct
  double repeated = 0;    // on the host: part of 2^8 samples whose key is one of those before. Some keys come often
  bool is_bound = false;  // the sample ended early, and there may be far fewer
};

/// On the host: unsigned integers, as wide as the keys, that are equal where these are and have their order. Keys of
/// one number each, not complex. `words` [keys.count] may be the keys' own memory.
GPUHASH_API void write_order_words(const NumberKeys& keys, void* words);
/// Puts the keys in place of `count` distinct order words of theirs, which ascend: as they first stand among `keys`.
GPUHASH_API void read_order_words(void* words, std::int64_t count, const NumberKeys& keys);

/// Finds the distinct keys of batches, by hashing, with nothing that outlives the call: `unique`, `factorize` and
/// `isin`.
class GPUHASH_API Factorizer {
 public:
  virtual ~Factorizer() = default;
  /// That of the context's platform.
  static const Factorizer& of(const DeviceContext& context);
  /// Waits: the number of distinct keys is known when it returns. Null only where `most_hashed` says so.
  virtual std::unique_ptr<Factorization> factorize(DeviceContext&, const NumberKeys&, const FactorizationOptions&,
                                                   Stream) const = 0;
  /// By a sample of at most `samples` keys. On the host one of up to 2^14 ends early where it is plain that hardly more
  /// than `few` are distinct: then it tells a bound of at most `few`. Waits.
  virtual DistinctEstimate estimate_distinct(DeviceContext&, const NumberKeys& keys, std::int64_t samples, Stream,
                                             std::int64_t few = 0) const = 0;
  /// mask[i] = (elements[i] is one of tests) != invert. Both have one dtype and as many numbers per key. May wait.
  virtual void isin(DeviceContext&, const NumberKeys& elements, const NumberKeys& tests, bool invert, bool* mask,
                    Stream) const = 0;
};

}  // namespace gpuhash
