#include <gpuhash/factorization.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/random_seed.hpp"
#include "core/tuning.hpp"
#include "cuda/apply/cells.hpp"
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/factorize/batch_table.cuh"
#include "cuda/factorize/count_codes.cuh"
#include "cuda/factorize/few_keys.cuh"
#include "cuda/factorize/first_bits.cuh"
#include "cuda/factorize/key_set.cuh"
#include "cuda/factorize/order_keys.hpp"
#include "cuda/factorize/part_lists.cuh"
#include "cuda/launch.cuh"

namespace gpuhash::cuda {
namespace {

/// Smaller batches are not sampled: all of their keys may be distinct.
constexpr std::int64_t kMinSampled = std::int64_t{1} << 20;

/// The memory of one insertion of a batch.
template <class Key, class Position>
class BatchTable {
 public:
  BatchTable(DeviceContext& context, std::int64_t expected, std::int64_t count, Stream stream)
      : count_(count),
        slots_(batch_size::slots_for(expected)),
        entries_(scratch<Entry<Key>>(context, slots_, stream)),
        firsts_(context, count, stream),
        status_(scratch<BatchStatus>(context, 1, stream)) {
    context.fill(entries_.get(), 0xff, entries_.bytes(), stream);
    firsts_.clear(context, stream);
    context.fill(status_.get(), 0, status_.bytes(), stream);
  }

  BatchTableView<Key> view() const { return {entries_.template as<Entry<Key>>(), slots_, seed_}; }

  /// Has it room for all keys, whatever they are?
  bool fits_all() const { return slots_ >= batch_size::slots_for(count_); }

  void insert(const NumberKeys& keys, Position* links, Stream stream) {
    const std::int64_t max_probes = fits_all() ? slots_ : std::min(slots_, batch_size::kMaxProbes);
    launch("inserting a batch", insert_batch_kernel<Key, Position>, count_, kBatchBlock, stream, view(),
           source_of<Key>(keys), count_, firsts_.get(), links, status_.template as<BatchStatus>(), max_probes);
  }

  /// Waits.
  BatchStatus count_firsts(DeviceContext& context, Rank<Position>* ranks, Stream stream) {
    firsts_.count(ranks, &status_.template as<BatchStatus>()->distinct, stream);
    BatchStatus status;
    context.copy_to_host(&status, status_.get(), sizeof status, stream);
    return status;
  }

  FirstBits& firsts() { return firsts_; }

 private:
  std::int64_t count_;
  std::int64_t slots_;
  std::uint64_t seed_ = random_seed();  // no answer depends on it, and nobody can pick keys that meet
  Allocation entries_;
  FirstBits firsts_;
  Allocation status_;
};

/// Waits where it takes a sample.
template <class Key>
std::int64_t estimate_distinct(DeviceContext& context, const NumberKeys& keys, Stream stream,
                               std::int64_t most_samples = batch_size::kMaxSample) {
  if (keys.count < kMinSampled) return keys.count;
  const std::int64_t samples = batch_size::sample_size(keys.count, most_samples);
  const Allocation chosen = scratch<char>(context, samples * keys.bytes(), stream);
  launch("taking a sample", take_sample_kernel<Key>, samples, kBatchBlock, stream, source_of<Key>(keys), keys.count,
         samples, chosen.get());
  BatchTable<Key, std::uint32_t> table(context, samples, samples, stream);
  table.insert({chosen.get(), samples, keys.dtype, keys.elements}, nullptr, stream);
  return batch_size::estimate(table.firsts().read(context, stream).data(), samples, keys.count);
}

/// Where the first occurrences are put.
template <class Position>
struct Numbering {
  Rank<Position>* ranks;  // [ceil(n / 32)]
  Position* links;        // [n] or null
};

/// Numbers keys by a table of those that are distinct; how many these are. Waits.
template <class Key, class Position>
std::int64_t number_by_table(DeviceContext& context, const NumberKeys& keys, std::int64_t expected,
                             const Numbering<Position>& out, Stream stream) {
  for (;;) {
    BatchTable<Key, Position> table(context, expected, keys.count, stream);
    table.insert(keys, out.links, stream);
    const BatchStatus status = table.count_firsts(context, out.ranks, stream);
    if (status.given_up == 0) {
      table.firsts().finish(out.ranks, stream);
      return static_cast<std::int64_t>(status.distinct);
    }
    expected = batch_size::next_estimate(expected, static_cast<std::int64_t>(status.distinct),
                                         static_cast<std::int64_t>(status.given_up), keys.count, keys.count);
  }
}

/// What the host reads back of a partition.
struct PartStatus {
  PartitionCounters counters;
  unsigned long long distinct;
};

/// The same, by part; nothing where a list was full, or where there is no memory for the lists. Waits.
template <class Key>
std::optional<std::int64_t> number_by_part(DeviceContext& context, const NumberKeys& keys, std::int64_t expected,
                                           const Numbering<std::uint32_t>& out, Stream stream) try {
  FirstBits firsts(context, keys.count, stream);
  const PartOf part_of{random_seed(), parts_for(keys.count)};
  PartLists<Key> lists(context, keys.count, part_of, true, stream);
  const Allocation status = scratch<PartStatus>(context, 1, stream);
  context.fill(status.get(), 0, status.bytes(), stream);
  auto* const on_device = status.as<PartStatus>();

  const FirstMarks marks{firsts.get(), out.links, expected > keys.count / 2};
  lists.template fill<true>(source_of<Key>(keys), keys.count, &on_device->counters, DropInBatch{part_of.seed, marks},
                            DropInBin{part_of.seed, marks}, stream);
  launch_with_shared("finding distinct keys", mark_part_kernel<Key>, dim3(lists.parts()), kPartBlock,
                     sizeof(MarkMemory), stream, lists.view(),
                     static_cast<const PartitionCounters*>(&on_device->counters), part_of.seed, marks);
  firsts.count(out.ranks, &on_device->distinct, stream);
  PartStatus done;
  context.copy_to_host(&done, status.get(), sizeof done, stream);
  if (done.counters.overflow != 0) return std::nullopt;
  firsts.finish(out.ranks, stream);
  return static_cast<std::int64_t>(done.distinct);
} catch (const OutOfMemoryError&) {
  return std::nullopt;
}

/// The same, by one block. Waits.
template <class Key>
std::int64_t number_few(DeviceContext& context, const NumberKeys& keys, const Numbering<std::uint32_t>& out,
                        Stream stream) {
  const Allocation distinct = scratch<unsigned long long>(context, 1, stream);
  launch("numbering distinct keys", number_few_kernel<Key>, kFewBlock, kFewBlock, stream, source_of<Key>(keys),
         static_cast<unsigned>(keys.count), random_seed(), out.ranks, out.links, distinct.as<unsigned long long>());
  unsigned long long done = 0;
  context.copy_to_host(&done, distinct.get(), sizeof done, stream);
  return static_cast<std::int64_t>(done);
}

/// Numbers distinct keys in order of first occurrence; how many there are. Waits.
template <class Key, class Position>
std::int64_t number_keys(DeviceContext& context, const NumberKeys& keys, const Numbering<Position>& out,
                         Stream stream) {
  if constexpr (sizeof(Position) == 4)
    if (keys.count <= tuning().one_block_keys) return number_few<Key>(context, keys, out, stream);
  // Waiting for a sample costs more than a table with room for all keys, as long as that lies in L2.
  const bool sampled = is_beyond_l2<Key>(keys.count);
  const std::int64_t expected = sampled ? estimate_distinct<Key>(context, keys, stream) : keys.count;
  if constexpr (sizeof(Key) <= 8 && sizeof(Position) == 4) {
    if (is_factorized_by_part<Key>(keys.count, expected, out.links != nullptr)) {
      if (const auto distinct = number_by_part<Key>(context, keys, expected, out, stream)) return *distinct;
    }
  }
  return number_by_table<Key>(context, keys, expected, out, stream);
}

/// What write_kernel fills; each pointer may be null.
struct WriteTarget {
  void* uniques;
  std::int64_t* codes;
  std::int64_t* counts;  // as they are before codes are counted
  std::int64_t* firsts;
  const std::int64_t* sorted_ids;  // [distinct keys]: ids by rank; null: the ranks are the ids
  /// Of first occurrences the codes are -1, and the counts 1: they need not be counted. Otherwise the counts are 0.
  bool repeats_alone;
};

template <class Key, class Position>
__global__ void __launch_bounds__(kBatchBlock)
    write_kernel(KeySource<Key> keys, const Rank<Position>* ranks, const Position* links, std::int64_t count,
                 WriteTarget target) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBatchBlock + threadIdx.x;
  if (i >= count) return;
  std::int64_t id = 0;
  const bool first = rank_of(ranks[i / 32], i, id);
  if (!first) {
    if (target.codes == nullptr) return;
    id = follow_links(ranks, links, static_cast<std::int64_t>(__ldcs(links + i)));
  }
  if (target.sorted_ids != nullptr) id = target.sorted_ids[id];
  if (first) {
    if (target.uniques != nullptr) store_bytes(target.uniques, id, keys.bytes, given_back(keys.raw(i), keys.format));
    if (target.firsts != nullptr) target.firsts[id] = i;
    if (target.counts != nullptr) target.counts[id] = target.repeats_alone ? 1 : 0;
    if (target.repeats_alone) id = -1;
  }
  if (target.codes != nullptr) __stcs(reinterpret_cast<long long*>(target.codes) + i, static_cast<long long>(id));
}

/// low and high [distinct keys]: the order words of the distinct keys, by rank; high may be null.
template <class Key, class Position>
__global__ void __launch_bounds__(kBatchBlock)
    order_words_kernel(KeySource<Key> keys, const Rank<Position>* ranks, std::int64_t count, std::uint64_t* low,
                       std::uint64_t* high) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kBatchBlock + threadIdx.x;
  std::int64_t id = 0;
  if (i >= count || !rank_of(ranks[i / 32], i, id)) return;
  const Uint128 word = order_word(to_uint128(keys[i]), keys.format);
  low[id] = word.low;
  if (high != nullptr) high[id] = word.high;
}

template <class Key, class Position>
class CudaFactorization final : public Factorization {
 public:
  CudaFactorization(DeviceContext& context, const NumberKeys& keys, bool groups, Stream stream)
      : context_(context),
        keys_(source_of<Key>(keys)),
        count_(keys.count),
        stream_(stream),
        ranks_(scratch<Rank<Position>>(context, words_for(count_), stream)),
        links_(scratch<Position>(context, groups ? count_ : 0, stream)) {
    if (count_ == 0) return;
    const Numbering<Position> out{ranks_.template as<Rank<Position>>(), links_.template as<Position>()};
    distinct_ = number_keys<Key>(context, keys, out, stream);
  }

  std::int64_t count() const override { return distinct_; }

  void write(const FactorizationOutput& out) override {
    if (count_ == 0) return;
    const DeviceGuard guard(context_.device().index);
    const Allocation sorted_ids = scratch<std::int64_t>(context_, out.sorted ? distinct_ : 0, stream_);
    const bool repeats_alone = out.codes == nullptr && out.counts != nullptr;
    const std::int64_t repeats = count_ - distinct_;
    const Allocation scratch_codes =
        scratch<std::int64_t>(context_, repeats_alone && repeats > 0 ? count_ : 0, stream_);
    std::int64_t* const codes = repeats_alone ? scratch_codes.as<std::int64_t>() : out.codes;
    if (out.sorted) sort(sorted_ids.as<std::int64_t>());
    launch("writing distinct keys", write_kernel<Key, Position>, count_, kBatchBlock, stream_, keys_, ranks(),
           static_cast<const Position*>(links_.template as<Position>()), count_,
           WriteTarget{out.uniques, codes, out.counts, out.firsts, sorted_ids.as<std::int64_t>(), repeats_alone});
    if (out.counts != nullptr && codes != nullptr) count_codes(codes, out.counts);
  }

 private:
  const Rank<Position>* ranks() const { return ranks_.template as<Rank<Position>>(); }

  /// sorted_ids[rank] = id in order of the keys.
  void sort(std::int64_t* sorted_ids) {
    const std::uint32_t bits = order_bits(keys_.format);
    const Allocation low = scratch<std::uint64_t>(context_, distinct_, stream_);
    const Allocation high = scratch<std::uint64_t>(context_, bits > 64 ? distinct_ : 0, stream_);
    launch("preparing a sort of keys", order_words_kernel<Key, Position>, count_, kBatchBlock, stream_, keys_, ranks(),
           count_, low.as<std::uint64_t>(), high.as<std::uint64_t>());
    order_keys(context_, low.as<std::uint64_t>(), high.as<std::uint64_t>(), bits, distinct_, sorted_ids, stream_);
  }

  /// One more for each code but -1. Where many codes are distinct, with the kernel of insert_or_apply, which has a way
  /// with codes that come often among them.
  void count_codes(const std::int64_t* codes, std::int64_t* counts) {
    if (const unsigned blocks = count_blocks(count_, distinct_); blocks != 0)
      return launch_with_shared("counting keys", count_codes_kernel, dim3(blocks), kCountBlock,
                                static_cast<std::size_t>(distinct_) * sizeof(std::uint32_t), stream_, codes, count_,
                                static_cast<unsigned>(distinct_), reinterpret_cast<unsigned long long*>(counts));
    const Allocation one = scratch<std::int64_t>(context_, 1, stream_);
    context_.fill(one.get(), 0, one.bytes(), stream_);
    context_.fill(one.get(), 1, 1, stream_);  // little-endian
    apply_to_cells({reinterpret_cast<std::byte*>(counts), sizeof(std::int64_t), codes, 1},
                   {one.get(), sizeof(std::int64_t), true}, count_, Action::kAdd, DType::kInt64, stream_);
  }

  DeviceContext& context_;
  KeySource<Key> keys_;
  std::int64_t count_;
  Stream stream_;
  std::int64_t distinct_ = 0;
  Allocation ranks_;  // [ceil(n / 32)]
  Allocation links_;  // [n], or none
};

/// isin by part; false where a list was full, or where there is no memory for the lists. Waits.
template <class Key>
bool find_members_by_part(DeviceContext& context, const NumberKeys& elements, const NumberKeys& tests, bool invert,
                          bool* mask, Stream stream) try {
  const PartOf part_of{random_seed(), parts_for(tests.count)};
  PartLists<Key> test_lists(context, tests.count, part_of, false, stream);
  PartLists<Key> element_lists(context, elements.count, part_of, true, stream);
  const Allocation kept = scratch<std::uint32_t>(context, words_for(elements.count), stream);
  const Allocation members = scratch<std::uint32_t>(context, words_for(elements.count), stream);
  const Allocation links = scratch<std::uint32_t>(context, elements.count, stream);
  const Allocation counters = scratch<PartitionCounters>(context, 1, stream);
  context.fill(counters.get(), 0, counters.bytes(), stream);
  auto* const on_device = counters.as<PartitionCounters>();

  const DropAnywhere drop{part_of.seed};
  test_lists.template fill<false>(source_of<Key>(tests), tests.count, on_device, drop, drop, stream);
  // Of duplicates among the elements one is looked up for all: the bits of the others are cleared, and links lead on.
  const FirstMarks marks{kept.as<std::uint32_t>(), links.as<std::uint32_t>(), true};
  element_lists.template fill<true>(source_of<Key>(elements), elements.count, on_device,
                                    DropInBatch{part_of.seed, marks}, DropInBin{part_of.seed, marks}, stream);
  context.fill(members.get(), 0, members.bytes(), stream);
  const auto* const overflow = static_cast<const PartitionCounters*>(on_device);
  launch("looking up elements", find_members_of_part_kernel<Key>, std::int64_t{test_lists.parts()} * kPartBlock,
         kPartBlock, stream, test_lists.view(), element_lists.view(), overflow, part_of.seed,
         members.as<std::uint32_t>());
  launch("looking up elements", write_mask_kernel, (elements.count + kMaskItems - 1) / kMaskItems, kBatchBlock, stream,
         overflow, static_cast<const std::uint32_t*>(members.as<std::uint32_t>()),
         static_cast<const std::uint32_t*>(kept.as<std::uint32_t>()),
         static_cast<const std::uint32_t*>(links.as<std::uint32_t>()), elements.count, invert, mask);
  PartitionCounters done;
  context.copy_to_host(&done, counters.get(), sizeof done, stream);
  return done.overflow == 0;
} catch (const OutOfMemoryError&) {
  return false;
}

/// A set of the keys of a batch.
template <class Key>
class KeySet {
 public:
  using View = KeySetView<Key>;

  /// A set of the keys, of which about `expected` are distinct. Waits, unless it has room for all.
  static KeySet of(DeviceContext& context, const NumberKeys& keys, std::int64_t expected, Stream stream) {
    for (;;) {
      KeySet set(context, expected, stream);
      const std::int64_t given_up = set.insert(context, keys, stream);
      if (given_up == 0) return set;
      expected = batch_size::next_estimate(expected, set.slots() - 1, given_up, keys.count, keys.count);
    }
  }

  /// How many keys to expect. Waits, unless a set with room for all lies in L2: there it does not matter how many of
  /// them are distinct.
  static std::int64_t estimate(DeviceContext& context, const NumberKeys& keys, Stream stream) {
    return is_beyond_l2(keys.count) ? estimate_distinct<Key>(context, keys, stream) : keys.count;
  }
  static bool is_beyond_l2(std::int64_t expected) {
    return static_cast<std::int64_t>(buckets_for(expected) * View::kBucketBytes) > tuning().l2_bytes;
  }

  View view() const { return {slots_.template as<typename View::Slot>(), buckets_, seed_}; }
  /// Slots, the one behind the buckets among them.
  std::int64_t slots() const { return View::kBucketSlots * buckets_ + 1; }

 private:
  KeySet(DeviceContext& context, std::int64_t expected, Stream stream)
      : buckets_(buckets_for(expected)), slots_(scratch<typename View::Slot>(context, slots(), stream)) {
    context.fill(slots_.get(), kEmptyByte, slots_.bytes(), stream);
  }

  /// With two slots for each key, one bucket in four of two slots is full, and with four one in eleven; a warp goes on
  /// until its last key is done. Four where they take no more than half of L2, of which other things need some, too.
  static std::int64_t buckets_for(std::int64_t expected) {
    constexpr std::int64_t kRoomySlots = (std::int64_t{20} << 20) / sizeof(typename View::Slot);
    const std::int64_t slots = std::max(2 * expected, std::min(4 * expected, kRoomySlots));
    return (slots + View::kSectorSlots - 1) / View::kSectorSlots * 2;
  }

  /// How many keys found no room. Waits, unless all surely do.
  std::int64_t insert(DeviceContext& context, const NumberKeys& keys, Stream stream) {
    const bool fits_all = buckets_ >= buckets_for(keys.count);
    const std::int64_t max_probes =
        fits_all ? buckets_ : std::min(buckets_, batch_size::kMaxProbes / View::kBucketSlots);
    const Allocation on_device = scratch<KeySetStatus>(context, 1, stream);
    context.fill(on_device.get(), 0, on_device.bytes(), stream);
    launch("inserting a batch", insert_keys_kernel<Key>, keys.count, kBatchBlock, stream, view(), source_of<Key>(keys),
           keys.count, max_probes, on_device.as<KeySetStatus>());
    if (fits_all) return 0;
    KeySetStatus status;
    context.copy_to_host(&status, on_device.get(), sizeof status, stream);
    return static_cast<std::int64_t>(status.given_up);
  }

  std::int64_t buckets_;
  std::uint64_t seed_ = random_seed();  // no answer depends on it, and nobody can pick keys that meet
  Allocation slots_;
};

/// isin: what an insertion costs, in looks.
constexpr std::int64_t kLooksPerInsertion = 2;

template <class Key>
void find_members(DeviceContext& context, const NumberKeys& elements, const NumberKeys& tests, bool invert, bool* mask,
                  Stream stream) {
  const bool set_of_tests = is_table_of_tests(elements.count, tests.count, kLooksPerInsertion);
  const NumberKeys& stored = set_of_tests ? tests : elements;
  const std::int64_t expected = KeySet<Key>::estimate(context, stored, stream);
  if constexpr (sizeof(Key) <= 8) {
    if (is_looked_up_by_part(elements.count, tests.count, KeySet<Key>::is_beyond_l2(expected)) &&
        find_members_by_part<Key>(context, elements, tests, invert, mask, stream))
      return;
  }
  const auto set = KeySet<Key>::of(context, stored, expected, stream);
  const auto look_up = [&](const NumberKeys& keys, auto visit) {
    launch("looking up elements", look_up_keys_kernel<Key, decltype(visit)>, keys.count, kBatchBlock, stream,
           set.view(), source_of<Key>(keys), keys.count, visit);
  };
  if (set_of_tests) return look_up(elements, WriteMask{mask, invert});
  const Allocation met = scratch<std::uint8_t>(context, set.slots(), stream);
  context.fill(met.get(), 0, met.bytes(), stream);
  look_up(tests, MarkMet{met.as<std::uint8_t>()});
  look_up(elements, ReadMet{met.as<std::uint8_t>(), mask, invert});
}

class CudaFactorizer final : public Factorizer {
 public:
  std::unique_ptr<Factorization> factorize(DeviceContext& context, const NumberKeys& keys,
                                           const FactorizationOptions& options, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const auto make = [&]<class Key, class Position>(Key, Position) -> std::unique_ptr<Factorization> {
      return std::make_unique<CudaFactorization<Key, Position>>(context, keys, options.codes || options.counts, stream);
    };
    if (keys.count >= tuning().narrow_position_keys)
      return keys.bytes() <= 8 ? make(std::uint64_t{}, std::uint64_t{}) : make(Uint128{}, std::uint64_t{});
    if (keys.bytes() <= 4) return make(std::uint32_t{}, std::uint32_t{});
    return keys.bytes() <= 8 ? make(std::uint64_t{}, std::uint32_t{}) : make(Uint128{}, std::uint32_t{});
  }

  DistinctEstimate estimate_distinct(DeviceContext& context, const NumberKeys& keys, std::int64_t samples,
                                     Stream stream, std::int64_t) const override {
    const DeviceGuard guard(context.device().index);
    if (keys.bytes() <= 4) return {cuda::estimate_distinct<std::uint32_t>(context, keys, stream, samples)};
    if (keys.bytes() <= 8) return {cuda::estimate_distinct<std::uint64_t>(context, keys, stream, samples)};
    return {cuda::estimate_distinct<Uint128>(context, keys, stream, samples)};
  }

  void isin(DeviceContext& context, const NumberKeys& elements, const NumberKeys& tests, bool invert, bool* mask,
            Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    if (elements.count == 0) return;
    if (tests.count == 0) return context.fill(mask, invert ? 1 : 0, static_cast<std::size_t>(elements.count), stream);
    if (elements.bytes() <= 4) return find_members<std::uint32_t>(context, elements, tests, invert, mask, stream);
    if (elements.bytes() <= 8) return find_members<std::uint64_t>(context, elements, tests, invert, mask, stream);
    find_members<Uint128>(context, elements, tests, invert, mask, stream);
  }
};

}  // namespace

const Factorizer& CudaAlgorithms::factorizer() {
  static const auto& factorizer = *new CudaFactorizer;  // never destroyed: threads may work at exit
  return factorizer;
}

}  // namespace gpuhash::cuda
