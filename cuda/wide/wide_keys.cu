#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows/columns.hpp"
#include "cuda/units.cuh"
#include "cuda/walk/probe.cuh"
#include "table/wide_keys.hpp"

/// A thread has a key.
namespace gpuhash::cuda {
namespace {

constexpr unsigned kBlock = 256;

/// A key in units of which its address and its length are multiples.
template <class Unit>
struct Words {
  const Unit* key;
  std::int64_t units;

  __device__ __forceinline__ std::uint64_t operator()(std::int64_t w) const {
    constexpr std::int64_t kPerWord = sizeof(std::uint64_t) / sizeof(Unit);
    std::uint64_t word = 0;
#pragma unroll
    for (std::int64_t u = 0; u < kPerWord; ++u)
      if (w * kPerWord + u < units) word |= std::uint64_t{key[w * kPerWord + u]} << (8 * sizeof(Unit) * u % 64);
    return word;
  }
};

/// Keys at equal distances.
template <class Unit>
struct Keys {
  const Unit* first;
  std::int64_t stride;  // units from a key to the next
  std::int64_t units;   // of a key

  __device__ __forceinline__ const Unit* at(std::int64_t i) const { return first + i * stride; }
  __device__ __forceinline__ Words<Unit> words(std::int64_t i) const { return {at(i), units}; }
  __device__ __forceinline__ std::int64_t bytes() const { return units * static_cast<std::int64_t>(sizeof(Unit)); }
};

template <class Unit>
__device__ __forceinline__ bool same_key(const Unit* a, const Unit* b, std::int64_t units) {
  for (std::int64_t u = 0; u < units; ++u)
    if (a[u] != b[u]) return false;
  return true;
}

/// Calls run(unit) with the widest one that divides all of these numbers and addresses.
template <class Run>
void with_key_unit(std::uint64_t bits, const Run& run) {
  with_unit<std::uint64_t, std::uint32_t, std::uint8_t>(bits, run);
}

std::uint64_t bits_of(const KeyBatch& keys) { return address_bits(keys.data) | keys.bytes; }

template <class Unit>
Keys<Unit> keys_of(const KeyBatch& keys) {
  const std::int64_t units = keys.bytes / sizeof(Unit);
  return {static_cast<const Unit*>(keys.data), units, units};
}

template <class Unit>
Keys<Unit> keys_of(const StoredKeys& stored, const KeyBatch& keys) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Unit));
  return {reinterpret_cast<const Unit*>(stored.rows.data + stored.offset), stored.rows.bytes / kBytes,
          keys.bytes / kBytes};
}

__device__ __forceinline__ std::int64_t item() { return std::int64_t{blockIdx.x} * kBlock + threadIdx.x; }

template <class Unit>
__global__ void __launch_bounds__(kBlock) fingerprint_kernel(Keys<Unit> keys, std::int64_t count, Fingerprints prints,
                                                             std::uint64_t attempt, std::uint64_t* out) {
  const std::int64_t i = item();
  if (i < count) out[i] = prints.of(hash_words(keys.bytes(), prints.seed, keys.words(i))) + attempt;
}

template <class Unit>
__global__ void __launch_bounds__(kBlock) digest_kernel(Keys<Unit> keys, std::int64_t count, Uint128* out) {
  const std::int64_t i = item();
  if (i < count) out[i] = digest_words(keys.bytes(), keys.words(i));
}

template <class Unit>
__global__ void __launch_bounds__(kBlock)
    match_kernel(Keys<Unit> keys, std::int64_t count, Keys<Unit> stored, Attempt attempt) {
  const std::int64_t i = item();
  if (i >= count || !attempt.is_open(i)) return;
  const std::int64_t row = attempt.met[i];
  attempt.settle(i, row >= 0 && same_key(keys.at(i), stored.at(row), keys.units));
}

__global__ void __launch_bounds__(kBlock) found_kernel(const std::int64_t* rows, std::int64_t count, bool* found) {
  const std::int64_t i = item();
  if (i < count) found[i] = rows[i] >= 0;
}

/// counters [2]: absent keys, and kTakenRow ones among them.
__global__ void __launch_bounds__(kBlock)
    count_absent_kernel(const std::int64_t* rows, std::int64_t count, std::uint64_t* counters) {
  const std::int64_t i = item();
  const std::int64_t row = i < count ? rows[i] : 0;
  take_ticket(counters, row < 0);
  take_ticket(counters + 1, row == kTakenRow);
}

__global__ void __launch_bounds__(kBlock)
    list_absent_kernel(const std::int64_t* rows, const std::uint64_t* slots, std::int64_t count,
                       std::int64_t* positions, std::uint64_t* listed, std::uint64_t* counter) {
  const std::int64_t i = item();
  const bool is_absent = i < count && rows[i] < 0;
  const std::uint64_t ticket = take_ticket(counter, is_absent);
  if (!is_absent) return;
  positions[ticket] = i;
  listed[ticket] = slots[i];
}

template <class Unit>
__global__ void __launch_bounds__(kBlock) part_kernel(Keys<Unit> keys, NumberedKeys numbered, std::int64_t* rows,
                                                      std::uint64_t* slots, std::uint64_t* counter) {
  const std::int64_t i = item();
  bool differs = false;
  if (i < numbered.count) {
    const std::int64_t first = numbered.firsts[numbered.codes[i]];
    const bool all = numbered.positions == nullptr;
    const std::int64_t here = all ? i : numbered.positions[i];
    const std::int64_t there = all ? first : numbered.positions[first];
    differs = first != i && !same_key(keys.at(here), keys.at(there), keys.units);
    if (differs) {
      rows[here] = kTakenRow;
      ++slots[here];
    }
  }
  take_ticket(counter, differs);
}

__global__ void __launch_bounds__(kBlock)
    move_on_kernel(const std::int64_t* met, std::int64_t count, std::int64_t* rows, std::uint64_t* slots,
                   std::uint64_t* counter) {
  const std::int64_t i = item();
  const bool is_taken = i < count && rows[i] == kTakenRow;
  const bool moves = is_taken && met[i] >= 0;
  if (moves)
    ++slots[i];
  else if (is_taken)
    rows[i] = kAbsentRow;
  take_ticket(counter, moves);
}

__global__ void __launch_bounds__(kBlock) most_attempts_kernel(const std::uint64_t* prints, const std::uint64_t* slots,
                                                               std::int64_t count, std::uint64_t* most) {
  const std::int64_t i = item();
  if (i < count && slots[i] != prints[i])
    atomicMax(reinterpret_cast<unsigned long long*>(most), static_cast<unsigned long long>(slots[i] - prints[i]));
}

/// A thread moves a unit of an item: out of its column into its row, or the reverse.
template <class Unit>
__global__ void __launch_bounds__(kBlock)
    move_column_kernel(Keys<Unit> column, Keys<Unit> rows, std::int64_t count, bool packs) {
  const std::int64_t t = item();
  const std::int64_t i = t / column.units;
  if (i >= count) return;
  auto* const in_column = const_cast<Unit*>(column.at(i)) + t % column.units;
  auto* const in_row = const_cast<Unit*>(rows.at(i)) + t % column.units;
  if (packs)
    *in_row = *in_column;
  else
    *in_column = *in_row;
}

/// Counters on the GPU, zeros at first.
class Counters {
 public:
  static constexpr std::size_t kCount = 2;

  Counters(DeviceContext& context, Stream stream)
      : context_(context), stream_(stream), memory_(context, kCount * sizeof(std::uint64_t), stream) {
    context.fill(memory_.get(), 0, memory_.bytes(), stream);
  }

  std::uint64_t* get() const { return memory_.as<std::uint64_t>(); }
  /// Waits. The counters so far.
  AbsentKeys read() const {
    std::uint64_t numbers[kCount];
    context_.copy_to_host(numbers, memory_.get(), sizeof numbers, stream_);
    return {static_cast<std::int64_t>(numbers[0]), static_cast<std::int64_t>(numbers[1])};
  }

 private:
  DeviceContext& context_;
  Stream stream_;
  Allocation memory_;
};

class CudaWideKeys final : public WideKeys {
 public:
  void fingerprint(DeviceContext& context, const KeyBatch& keys, const Fingerprints& prints, std::uint64_t attempt,
                   std::uint64_t* out, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    with_key_unit(bits_of(keys), [&]<class Unit>(Unit) {
      launch("taking fingerprints", fingerprint_kernel<Unit>, keys.count, kBlock, stream, keys_of<Unit>(keys),
             keys.count, prints, attempt, out);
    });
  }

  void digest(DeviceContext& context, const KeyBatch& keys, Uint128* out, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    with_key_unit(bits_of(keys), [&]<class Unit>(Unit) {
      launch("digesting keys", digest_kernel<Unit>, keys.count, kBlock, stream, keys_of<Unit>(keys), keys.count, out);
    });
  }

  void match(DeviceContext& context, const KeyBatch& keys, const StoredKeys& stored, const Attempt& attempt,
             std::span<const ColumnRead> reads, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const auto distance = static_cast<std::uint64_t>(stored.rows.bytes);
    with_key_unit(bits_of(keys) | address_bits(stored.rows.data + stored.offset) | distance, [&]<class Unit>(Unit) {
      launch("comparing keys", match_kernel<Unit>, keys.count, kBlock, stream, keys_of<Unit>(keys), keys.count,
             keys_of<Unit>(stored, keys), attempt);
    });
    read_columns(stored.rows, attempt.rows, keys.count, reads, stream);
  }

  void write_found(DeviceContext& context, const std::int64_t* rows, std::int64_t count, bool* found,
                   Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("writing what was found", found_kernel, count, kBlock, stream, rows, count, found);
  }

  AbsentKeys count_absent(DeviceContext& context, const std::int64_t* rows, std::int64_t count,
                          Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const Counters counters(context, stream);
    launch("counting absent keys", count_absent_kernel, count, kBlock, stream, rows, count, counters.get());
    return counters.read();
  }

  void list_absent(DeviceContext& context, const std::int64_t* rows, const std::uint64_t* slots, std::int64_t count,
                   std::int64_t* positions, std::uint64_t* listed, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const Counters counters(context, stream);
    launch("listing absent keys", list_absent_kernel, count, kBlock, stream, rows, slots, count, positions, listed,
           counters.get());
  }

  std::int64_t part(DeviceContext& context, const KeyBatch& keys, const NumberedKeys& numbered, std::int64_t* rows,
                    std::uint64_t* slots, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const Counters counters(context, stream);
    with_key_unit(bits_of(keys), [&]<class Unit>(Unit) {
      launch("parting keys", part_kernel<Unit>, numbered.count, kBlock, stream, keys_of<Unit>(keys), numbered, rows,
             slots, counters.get());
    });
    return counters.read().count;
  }

  std::int64_t move_on(DeviceContext& context, const std::int64_t* met, std::int64_t count, std::int64_t* rows,
                       std::uint64_t* slots, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const Counters counters(context, stream);
    launch("moving keys on", move_on_kernel, count, kBlock, stream, met, count, rows, slots, counters.get());
    return counters.read().count;
  }

  std::uint64_t most_attempts(DeviceContext& context, const std::uint64_t* prints, const std::uint64_t* slots,
                              std::int64_t count, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const Counters counters(context, stream);
    launch("counting attempts", most_attempts_kernel, count, kBlock, stream, prints, slots, count, counters.get());
    return static_cast<std::uint64_t>(counters.read().count);
  }

  void pack(DeviceContext& context, const PackedColumn& packed, Stream stream) const override {
    move(context, packed, true, stream);
  }

  void unpack(DeviceContext& context, const PackedColumn& packed, Stream stream) const override {
    move(context, packed, false, stream);
  }

 private:
  static void move(DeviceContext& context, const PackedColumn& packed, bool packs, Stream stream) {
    const DeviceGuard guard(context.device().index);
    const auto lengths = static_cast<std::uint64_t>(packed.bytes | packed.stride);
    with_key_unit(address_bits(packed.column) | address_bits(packed.rows) | lengths, [&]<class Unit>(Unit) {
      constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Unit));
      const std::int64_t units = packed.bytes / kBytes;
      const Keys<Unit> column{static_cast<const Unit*>(packed.column), units, units};
      const Keys<Unit> rows{static_cast<const Unit*>(packed.rows), packed.stride / kBytes, units};
      launch("moving a key column", move_column_kernel<Unit>, packed.count * units, kBlock, stream, column, rows,
             packed.count, packs);
    });
  }
};

}  // namespace

const WideKeys& CudaAlgorithms::wide_keys() {
  static const auto& keys = *new CudaWideKeys;  // never destroyed: threads may work at exit
  return keys;
}

}  // namespace gpuhash::cuda
