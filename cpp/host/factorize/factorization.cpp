#include <gpuhash/factorization.hpp>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/random_seed.hpp"
#include "core/tuning.hpp"
#include "host/executor.hpp"
#include "host/factorize/batch_table.hpp"
#include "host/factorize/sorted_factorization.hpp"
#include "host/factorize/sorted_ids.hpp"
#include "host/factorize/word_factorization.hpp"
#include "host/factorize/word_members.hpp"

namespace gpuhash {

using host::BatchTable;
using host::for_each_chunk;
using host::for_each_home;
using host::for_each_part;
using host::KeyReader;

namespace {

template <class T>
Allocation room_for(DeviceContext& context, std::int64_t count) {
  return Allocation(context, static_cast<std::size_t>(count) * sizeof(T), nullptr);
}

/// One attempt at inserting a batch.
struct Attempt {
  std::int64_t distinct;  // keys in the table
  std::int64_t given_up;  // keys whose probe sequence was too long
  std::int64_t tried;     // keys looked at; all of them unless some were given up
};

/// Inserts all keys. `firsts` [ceil(n / 32)], zeros; `links` [n] or null.
template <class Key, class Position>
Attempt insert_all(BatchTable<Key>& table, const KeyReader<Key>& keys, std::int64_t count, std::uint32_t* firsts,
                   Position* links) {
  using FirstPosition = typename BatchTable<Key>::FirstPosition;
  const bool bounded = table.slots() < batch_size::slots_for(count);
  const std::int64_t max_probes = bounded ? std::min(table.slots(), batch_size::kMaxProbes) : table.slots();
  std::atomic<std::int64_t> given_up{0};
  std::atomic<std::int64_t> tried{0};
  std::atomic<std::int64_t> distinct{0};

  const auto flip = [&](std::int64_t word, std::uint32_t mask) {
    if (mask != 0) std::atomic_ref(firsts[word]).fetch_xor(mask, std::memory_order_relaxed);
  };
  keys.specialized([&](const auto& reader) {
    for_each_chunk(count, [&](std::int64_t begin, std::int64_t end) {
      if (given_up.load(std::memory_order_relaxed) != 0) return;
      std::int64_t lost = 0;
      std::int64_t inserted = 0;
      const auto insert = [&](std::int64_t i, const Key& key, std::int64_t slot) {
        const auto found = table.insert(key, slot, static_cast<FirstPosition>(i), max_probes);
        if (!found.first) {
          if (!found.ok)
            ++lost;
          else if (links != nullptr)
            links[i] = static_cast<Position>(found.position);
        } else if (found.position == BatchTable<Key>::kEmpty) {
          ++inserted;
        } else {
          flip(static_cast<std::int64_t>(found.position / 32), 1u << (found.position % 32));
          if (links != nullptr) links[found.position] = static_cast<Position>(i);
        }
        return found.first;
      };
      for_each_home(table, reader, begin, end, insert, flip);
      given_up.fetch_add(lost, std::memory_order_relaxed);
      tried.fetch_add(end - begin, std::memory_order_relaxed);
      distinct.fetch_add(inserted, std::memory_order_relaxed);
    });
  });
  return {distinct.load(), given_up.load(), tried.load()};
}

/// How a batch is sampled for the number of its distinct keys: by default for the size of a batch table.
struct Sampling {
  std::int64_t most_samples = batch_size::kMaxSample;
  std::int64_t least_keys = std::int64_t{1} << 16;  // smaller batches are taken to be distinct
  double least_repeated = 0;                        // as batch_size::estimate() wants it, as a part of the sample
  bool is_for_growth = false;                       // estimate_for_growth() tells, not estimate()
  std::int64_t few = 0;                             // where hardly more seem distinct the sample ends early

  /// Whether the batch is to be hashed. Few samples tell nothing of keys of which few come often and many seldom; they
  /// are taken to be few.
  static Sampling for_hashing(std::int64_t keys) {
    const int bits = keys < std::int64_t{1} << 18 ? 10 : keys < std::int64_t{1} << 21 ? 12 : 14;
    return {std::int64_t{1} << bits, std::int64_t{1} << 13, 1.0 / 128};
  }
  /// How much a table has to grow. Of 2^18 uniform keys of which a 16th is distinct, 30 of the first sixteenth of 2^14
  /// samples repeat others, and one of 2^24: the power that it tells then made up to 16 times as many of them, the
  /// table was built for those, and again afterwards. In text and of Zipf-distributed keys 100 repeat others.
  static Sampling for_growth(std::int64_t samples, std::int64_t few) {
    return {samples, std::int64_t{1} << 12, 1.0 / 1024, true, few};
  }
};

std::int64_t words_for(std::int64_t count) { return (count + 31) / 32; }

void clear_bits(std::uint32_t* firsts, std::int64_t count) { std::fill_n(firsts, words_for(count), 0u); }

/// Samples that are read together, while the lines of the next ones are asked for: each has a line of its own.
constexpr std::int64_t kSampleBlock = 64;
/// More samples than these are worth several threads.
constexpr std::int64_t kMostSampledAlone = host::kChunk;

/// Calls visit(begin, keys, count) for blocks of the sample, in order, until it returns false; its j-th key stands at
/// position(j) of the batch.
template <class Key, class PositionOf, class Visit>
void for_each_sample_block(const NumberKeys& keys, std::int64_t samples, const PositionOf& position,
                           const Visit& visit) {
  const std::int64_t bytes = keys.bytes();
  std::int64_t positions[2][kSampleBlock];
  const auto ask = [&](std::int64_t begin) {
    std::int64_t* const to = positions[begin / kSampleBlock % 2];
    const std::int64_t count = std::min(kSampleBlock, samples - begin);
    for (std::int64_t j = 0; j < count; ++j) {
      to[j] = position(begin + j);
      __builtin_prefetch(static_cast<const char*>(keys.data) + to[j] * bytes);
    }
  };
  const KeyReader<Key> reader(keys);
  ask(0);
  for (std::int64_t begin = 0; begin < samples; begin += kSampleBlock) {
    ask(begin + kSampleBlock);
    const std::int64_t count = std::min(kSampleBlock, samples - begin);
    Key block[kSampleBlock];
    for (std::int64_t j = 0; j < count; ++j) block[j] = reader[positions[begin / kSampleBlock % 2][j]];
    if (!visit(begin, block, count)) return;
  }
}

/// Which keys of a sample are met for the first time. For one thread. They are told apart by some fifty bits of their
/// hashes.
class SampledKeys {
 public:
  /// For at most so many: a power of two.
  SampledKeys(DeviceContext& context, std::int64_t samples)
      : memory_(room_for<std::uint32_t>(context, 4 * samples)),
        tags_(memory_.as<std::uint32_t>()),
        mask_(static_cast<std::uint64_t>(4 * samples - 1)) {
    std::fill_n(tags_, 4 * samples, 0u);
  }

  /// A bit for each of up to kSampleBlock keys.
  template <class Key>
  std::uint64_t meet(const Key* keys, std::int64_t count) {
    std::uint64_t hashes[kSampleBlock];
    for (std::int64_t j = 0; j < count; ++j) hashes[j] = hash_key(keys[j], seed_);
    std::uint64_t firsts = 0;
    for (std::int64_t j = 0; j < count; ++j) firsts |= std::uint64_t{is_first(hashes[j])} << j;
    return firsts;
  }

 private:
  bool is_first(std::uint64_t hash) {
    const std::uint32_t tag = static_cast<std::uint32_t>(hash >> 32) | 1;
    std::uint64_t at = hash & mask_;
    // One branch, on whether the place is another key's, and none on whether the key is new: nobody can predict that.
    while (((tags_[at] != 0) & (tags_[at] != tag)) != 0) at = (at + 1) & mask_;
    const bool first = tags_[at] == 0;
    tags_[at] = tag;
    return first;
  }

  Allocation memory_;
  std::uint32_t* tags_;  // 0: none
  std::uint64_t mask_;
  std::uint64_t seed_ = random_seed();
};

/// Sets the bits of those samples whose key none before had, until go_on(samples that are done) is false: it is asked
/// after a sixteenth and a quarter of them, where that is a block or more. Returns how many are done.
template <class Key, class PositionOf, class GoOn>
std::int64_t mark_firsts(DeviceContext& context, const NumberKeys& keys, std::int64_t samples,
                         const PositionOf& position, const GoOn& go_on, std::uint32_t* firsts) {
  SampledKeys sampled(context, samples);
  std::int64_t done = 0;
  for_each_sample_block<Key>(keys, samples, position, [&](std::int64_t begin, const Key* block, std::int64_t count) {
    const std::uint64_t bits = sampled.meet(block, count);
    firsts[begin / 32] = static_cast<std::uint32_t>(bits);
    if (count > 32) firsts[begin / 32 + 1] = static_cast<std::uint32_t>(bits >> 32);
    done = begin + count;
    return (done != samples / 16 && done != samples / 4) || go_on(done);
  });
  return done;
}

/// Likewise, on several threads.
template <class Key, class PositionOf>
void mark_firsts_together(DeviceContext& context, const NumberKeys& keys, std::int64_t samples,
                          const PositionOf& position, std::uint32_t* firsts) {
  const std::int64_t bytes = keys.bytes();
  const Allocation chosen = room_for<char>(context, samples * bytes);
  for_each_chunk(samples, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j)
      host::store_word(chosen.get(), j, bytes, host::load_word<Key>(keys.data, position(j), bytes));
  });
  const NumberKeys sample{chosen.get(), samples, keys.dtype, keys.elements};
  BatchTable<Key> table(context, batch_size::slots_for(samples));
  insert_all<Key, std::uint32_t>(table, KeyReader<Key>(sample), samples, firsts, nullptr);
}

/// Samples of which it is told how many repeat others.
constexpr std::int64_t kSamplesOfRepeated = std::int64_t{1} << 8;

template <class Key>
DistinctEstimate estimate_distinct(DeviceContext& context, const NumberKeys& keys, const Sampling& sampling = {}) {
  const std::int64_t count = keys.count;
  if (count < sampling.least_keys) return {count};
  const std::int64_t samples = batch_size::sample_size(count, sampling.most_samples);
  const auto position = [=](std::int64_t j) { return batch_size::sample_position(j, samples, count); };
  const Allocation memory = room_for<std::uint32_t>(context, words_for(samples));
  auto* const firsts = memory.as<std::uint32_t>();
  clear_bits(firsts, samples);
  if (samples <= kMostSampledAlone) {
    std::int64_t most = count;
    const auto go_on = [&](std::int64_t done) {
      most = batch_size::most_distinct(firsts, done, count);
      return most > sampling.few;
    };
    if (mark_firsts<Key>(context, keys, samples, position, go_on, firsts) < samples) return {most, 0, true};
  } else {
    mark_firsts_together<Key>(context, keys, samples, position, firsts);
  }
  const auto least_repeated = static_cast<std::int64_t>(static_cast<double>(samples) * sampling.least_repeated);
  std::int64_t repeated = kSamplesOfRepeated;
  for (std::int64_t w = 0; w < kSamplesOfRepeated / 32; ++w) repeated -= count_bits(firsts[w]);
  const auto estimate = sampling.is_for_growth ? batch_size::estimate_for_growth : batch_size::estimate;
  return {estimate(firsts, samples, count, least_repeated),
          static_cast<double>(repeated) / static_cast<double>(kSamplesOfRepeated)};
}

/// Builds a table of the keys' distinct ones. firsts and links as for insert_all.
template <class Key, class Position>
BatchTable<Key> build(DeviceContext& context, const NumberKeys& keys, std::uint32_t* firsts, Position* links,
                      std::int64_t& distinct) {
  std::int64_t expected = estimate_distinct<Key>(context, keys).count;
  for (;;) {
    BatchTable<Key> table(context, batch_size::slots_for(expected));
    clear_bits(firsts, keys.count);
    const Attempt attempt = insert_all(table, KeyReader<Key>(keys), keys.count, firsts, links);
    if (attempt.given_up == 0) {
      distinct = attempt.distinct;
      return table;
    }
    expected = batch_size::next_estimate(expected, attempt.distinct, attempt.given_up, attempt.tried, keys.count);
  }
}

/// ranks[w] for every word of bits.
template <class Position>
void rank_firsts(const std::uint32_t* firsts, std::int64_t words, Rank<Position>* ranks) {
  const int parts = host::reader_parts(words);
  auto sums = host::scratch<std::int64_t>(parts);
  for_each_part(words, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t sum = 0;
    for (std::int64_t w = begin; w < end; ++w) sum += count_bits(firsts[w]);
    sums[static_cast<std::size_t>(part)] = sum;
  });
  for_each_part(words, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t before = 0;
    for (int p = 0; p < part; ++p) before += sums[static_cast<std::size_t>(p)];
    for (std::int64_t w = begin; w < end; ++w) {
      ranks[w] = {static_cast<Position>(before), firsts[w]};
      before += count_bits(firsts[w]);
    }
  });
}

/// Adds 1 to counts, which threads share; keeps the counts of ids that come often to itself until the end.
class Counter {
 public:
  explicit Counter(std::int64_t* counts) : counts_(counts) {
    for (Entry& entry : entries_) entry = {-1, 0};
  }
  ~Counter() {
    for (const Entry& entry : entries_) flush(entry);
  }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  void add(std::int64_t id) {
    Entry& entry = entries_[id % kEntries];
    if (entry.id != id) {
      flush(entry);
      entry = {id, 0};
      __builtin_prefetch(counts_ + id, 1);  // for when this entry has to go
    }
    ++entry.count;
  }

 private:
  static constexpr std::int64_t kEntries = 512;
  struct Entry {
    std::int64_t id;
    std::int64_t count;
  };

  void flush(const Entry& entry) {
    if (entry.count != 0) std::atomic_ref(counts_[entry.id]).fetch_add(entry.count, std::memory_order_relaxed);
  }

  std::int64_t* counts_;
  Entry entries_[kEntries];
};

template <class Key, class Position>
class HostFactorization final : public Factorization {
 public:
  HostFactorization(DeviceContext& context, const NumberKeys& keys, bool groups)
      : keys_(keys),
        count_(keys.count),
        ranks_(room_for<Rank<Position>>(context, words_for(count_))),
        links_(room_for<Position>(context, groups ? count_ : 0)) {
    const Allocation firsts = room_for<std::uint32_t>(context, words_for(count_));
    build<Key>(context, keys, firsts.as<std::uint32_t>(), links_.template as<Position>(), distinct_);
    rank_firsts(firsts.as<std::uint32_t>(), words_for(count_), ranks());
  }

  std::int64_t count() const override { return distinct_; }

  void write(const FactorizationOutput& out) override {
    const std::vector<Position> sorted_ids = out.sorted ? this->sorted_ids() : std::vector<Position>();
    if (out.counts != nullptr) std::fill_n(out.counts, distinct_, 0);
    const bool groups = out.codes != nullptr || out.counts != nullptr;
    const Rank<Position>* const ranks = this->ranks();
    const Position* const links = links_.template as<Position>();
    for_each_chunk(count_, [&](std::int64_t begin, std::int64_t end) {
      std::optional<Counter> counter;
      if (out.counts != nullptr) counter.emplace(out.counts);
      for (std::int64_t i = begin; i < end; ++i) {
        std::int64_t id = 0;
        const bool first = rank_of(ranks[i / 32], i, id);
        if (!first) {
          if (!groups) continue;
          id = follow_links(ranks, links, static_cast<std::int64_t>(links[i]));
        }
        if (out.sorted) id = static_cast<std::int64_t>(sorted_ids[static_cast<std::size_t>(id)]);
        if (first) {
          if (out.uniques != nullptr)
            host::store_word(out.uniques, id, keys_.bytes(), given_back(keys_.raw(i), keys_.format()));
          if (out.firsts != nullptr) out.firsts[id] = i;
        }
        if (out.codes != nullptr) out.codes[i] = id;
        if (counter) counter->add(id);
      }
    });
  }

 private:
  Rank<Position>* ranks() const { return ranks_.template as<Rank<Position>>(); }

  /// By id in order of first occurrence.
  std::vector<Position> sorted_ids() const {
    return host::sorted_ids<Position>(distinct_, keys_.format(), [&](auto put) {
      for_each_chunk(count_, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          if (std::int64_t id = 0; rank_of(ranks()[i / 32], i, id)) put(id, keys_[i]);
      });
    });
  }

  KeyReader<Key> keys_;
  std::int64_t count_;
  std::int64_t distinct_ = 0;
  Allocation ranks_;  // [ceil(n / 32)]
  Allocation links_;  // [n], or none
};

/// Calls body(i, first position of key i in the table or kEmpty) for all keys.
template <class Key, class Body>
void look_up(const BatchTable<Key>& table, const NumberKeys& keys, Body body) {
  KeyReader<Key>(keys).specialized([&](const auto& reader) {
    for_each_chunk(keys.count, [&](std::int64_t begin, std::int64_t end) {
      const auto find = [&](std::int64_t i, const Key& key, std::int64_t slot) {
        body(i, table.find(key, slot));
        return false;
      };
      for_each_home(table, reader, begin, end, find, [](std::int64_t, std::uint32_t) {});
    });
  });
}

template <class Key>
void find_members(DeviceContext& context, const NumberKeys& elements, const NumberKeys& tests, bool invert,
                  bool* mask) {
  constexpr auto kEmpty = BatchTable<Key>::kEmpty;
  const bool table_of_tests = is_table_of_tests(elements.count, tests.count);
  const NumberKeys& stored = table_of_tests ? tests : elements;
  const Allocation firsts = room_for<std::uint32_t>(context, words_for(stored.count));
  std::int64_t distinct = 0;
  const BatchTable<Key> table =
      build<Key, std::uint64_t>(context, stored, firsts.as<std::uint32_t>(), nullptr, distinct);
  if (table_of_tests)
    return look_up(table, elements, [&](std::int64_t i, auto first) { mask[i] = (first != kEmpty) != invert; });

  // One byte per element; that of the first one with a key tells whether a test element has the key.
  const Allocation met = room_for<std::uint8_t>(context, elements.count);
  auto* const bytes = met.as<std::uint8_t>();
  std::fill_n(bytes, elements.count, std::uint8_t{0});
  look_up(table, tests, [&](std::int64_t, auto first) {
    if (first == kEmpty) return;
    const std::atomic_ref byte(bytes[first]);
    if (byte.load(std::memory_order_relaxed) == 0) byte.store(1, std::memory_order_relaxed);
  });
  look_up(table, elements, [&](std::int64_t i, auto first) { mask[i] = (bytes[first] != 0) != invert; });
}

class HostFactorizer final : public Factorizer {
  /// Calls body with a word that holds any of the keys.
  template <class Body>
  static auto with_key(const NumberKeys& keys, Body body) {
    if (keys.bytes() <= 4) return body(std::uint32_t{});
    return keys.bytes() <= 8 ? body(std::uint64_t{}) : body(Uint128{});
  }

  static bool too_many_distinct(DeviceContext& context, const NumberKeys& keys, std::int64_t most) {
    return most == 0 || with_key(keys, [&]<class Key>(Key) {
             return gpuhash::estimate_distinct<Key>(context, keys, Sampling::for_hashing(keys.count)).count > most;
           });
  }

 public:
  std::unique_ptr<Factorization> factorize(DeviceContext& context, const NumberKeys& keys,
                                           const FactorizationOptions& options, Stream) const override {
    if (keys.count <= tuning().most_ascending_keys)
      if (auto of_sorted_keys = host::make_sorted_factorization(keys)) return of_sorted_keys;
    if (options.most_hashed < keys.count && too_many_distinct(context, keys, options.most_hashed)) return nullptr;
    if (keys.bytes() <= 8 && keys.count < tuning().word_list_keys)
      return host::make_word_factorization(context, keys, options);
    const bool groups = options.codes || options.counts;
    if (keys.bytes() <= 8)
      return std::make_unique<HostFactorization<std::uint64_t, std::uint64_t>>(context, keys, groups);
    if (keys.count >= tuning().narrow_position_keys)
      return std::make_unique<HostFactorization<Uint128, std::uint64_t>>(context, keys, groups);
    return std::make_unique<HostFactorization<Uint128, std::uint32_t>>(context, keys, groups);
  }

  DistinctEstimate estimate_distinct(DeviceContext& context, const NumberKeys& keys, std::int64_t samples, Stream,
                                     std::int64_t few) const override {
    return with_key(keys, [&]<class Key>(Key) {
      return gpuhash::estimate_distinct<Key>(context, keys, Sampling::for_growth(samples, few));
    });
  }

  void isin(DeviceContext& context, const NumberKeys& elements, const NumberKeys& tests, bool invert, bool* mask,
            Stream) const override {
    if (elements.bytes() <= 8 && std::max(elements.count, tests.count) < tuning().word_list_keys)
      return host::find_word_members(context, elements, tests, invert, mask);
    if (elements.bytes() <= 8) return find_members<std::uint64_t>(context, elements, tests, invert, mask);
    find_members<Uint128>(context, elements, tests, invert, mask);
  }
};

}  // namespace

const Factorizer& host::HostAlgorithms::factorizer() {
  static const auto& factorizer = *new HostFactorizer;  // never destroyed: threads may work at exit
  return factorizer;
}

}  // namespace gpuhash
