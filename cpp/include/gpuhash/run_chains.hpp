#pragma once

#include <cstdint>

#include <gpuhash/device_context.hpp>
#include <gpuhash/export.hpp>

namespace gpuhash {

/// Values by key in a log that only grows. The values of a key that came in one batch are a *run*: they lie side by
/// side. A key's runs are a chain, in the order in which they came. All arrays lie in the context's memory; nothing
/// waits, but for sum_up(), and nobody checks the numbers in them.
struct Runs {
  std::int64_t* begins;  // [runs + 1], where in the log each run begins; one ends where the next begins
  std::int64_t* nexts;   // [runs], the next run of the same key, or -1
};

class GPUHASH_API RunChains {
 public:
  virtual ~RunChains() = default;
  /// That of the context's platform.
  static const RunChains& of(const DeviceContext& context);

  /// Runs [first, first + count) of a batch's keys, one each, for which there is room; their numbers to ids [count].
  /// The offsets [count + 1] of their values count from log position `base`; null: each has one value. Each run follows
  /// the key's last one before, tails[i] [count]; -1, and null for all: it is the first one.
  virtual void append(DeviceContext&, const Runs& runs, std::int64_t first, std::int64_t base,
                      const std::int64_t* offsets, const std::int64_t* tails, std::int64_t count, std::int64_t* ids,
                      Stream) const = 0;
  /// The runs of `count` keys, whose first ones are heads[i]: listed [offsets[count]], those of key i in their order at
  /// [offsets[i], offsets[i + 1]).
  virtual void list(DeviceContext&, const Runs& runs, const std::int64_t* heads, const std::int64_t* offsets,
                    std::int64_t count, std::int64_t* listed, Stream) const = 0;
  /// offsets[i] is the sum of the first i counts, i in [0, count]; returns that of all. Waits.
  virtual std::int64_t sum_up(DeviceContext&, const std::int64_t* counts, std::int64_t count, std::int64_t* offsets,
                              Stream) const = 0;
  /// Rows of `bytes` each: to[i] = from[positions[i]].
  virtual void gather(DeviceContext&, const void* from, std::int64_t bytes, const std::int64_t* positions,
                      std::int64_t count, void* to, Stream) const = 0;
};

}  // namespace gpuhash
