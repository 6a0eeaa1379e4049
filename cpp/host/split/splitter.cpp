#include "table/splitter.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "host/executor.hpp"
#include "host/parallel.hpp"
#include "host/rows/combine.hpp"
#include "host/short_bytes.hpp"
#include "shared/hot_keys.hpp"
#include "shared/owner.hpp"
#include "shared/sample_slots.hpp"
#include "table/owner_keys.hpp"

namespace gpuhash::host {
namespace {

static_assert(Split::kMaxParts <= 256, "owners are kept in bytes");

template <class Body>
void with_item_words(std::int64_t bytes, Body body) {
  switch (bytes) {
    case 1:
      return body(std::integral_constant<std::size_t, 1>());
    case 2:
      return body(std::integral_constant<std::size_t, 2>());
    case 4:
      return body(std::integral_constant<std::size_t, 4>());
    case 8:
      return body(std::integral_constant<std::size_t, 8>());
    case 16:
      return body(std::integral_constant<std::size_t, 16>());
    default:
      return body(static_cast<std::size_t>(bytes));
  }
}

/// Calls body with a word that is as wide as the keys or wider.
template <class Body>
void with_key_word(const KeyBatch& keys, Body body) {
  if (keys.bytes <= 4) return body(std::uint32_t{});
  if (keys.bytes <= 8) return body(std::uint64_t{});
  body(Uint128{});
}

class HostSample final : public Sample {
 public:
  HostSample(const KeyBatch& keys, std::uint64_t seed) {
    with_key_word(keys, [&](auto key) { count<decltype(key)>(keys, seed); });
  }
  template <class Key>
  const HotKeys<Key>& hot() const {
    return std::get<HotKeys<Key>>(hot_);
  }

 protected:
  Repeats wait() override { return counted_; }

 private:
  template <class Key>
  void count(const KeyBatch& keys, std::uint64_t seed) {
    std::vector<std::uint32_t> slots = scratch<std::uint32_t>(SampleSlots::kSlots);
    HotKeys<Key>& hot = hot_.emplace<HotKeys<Key>>();
    std::int64_t counts[kHotSlots] = {};  // of the hot keys
    const std::int64_t step = keys.count / kKeys;
    counted_ = {kKeys, 0};
    for (std::int64_t i = 0; i < kKeys; ++i) {
      const Key key = load_word<Key>(keys.data, i * step, keys.bytes);
      const std::uint64_t hash = hash_key(key, seed);
      const std::int64_t times = SampleSlots::meet(slots.data(), hash);
      if (times <= 1) --counted_.all;
      counted_.most = std::max(counted_.most, times);
      const int slot = HotKeys<Key>::slot_of(hash);
      if (times < HotKeys<Key>::kLeastInSample || times <= counts[slot]) continue;
      hot.keys[slot] = key;
      hot.used[slot] = 1;
      counts[slot] = times;
    }
  }

  Repeats counted_{};
  std::variant<HotKeys<std::uint32_t>, HotKeys<std::uint64_t>, HotKeys<Uint128>> hot_;
};

/// Threads take consecutive pieces of the batch each, and know where in each part of the owners' order theirs begin.
class HostSplit final : public Split {
 public:
  /// by: what their owners are found by. hot: null, or of these keys.
  HostSplit(const KeyBatch& keys, const KeyBatch& by, std::uint64_t seed, const Parts& parts, const HostSample* hot)
      : Split(parts),
        keys_(keys),
        pieces_(reader_parts(keys.count)),
        owners_(uninitialised<std::uint8_t>(keys.count)),
        hot_slots_(hot == nullptr ? nullptr : uninitialised<std::int16_t>(keys.count)),
        begins_(scratch<std::int64_t>(pieces_ * static_cast<std::int64_t>(parts.count))) {
    if (hot != nullptr) set_merges();
    with_key_word(by, [&](auto key) {
      using Key = decltype(key);
      find_owners(by, seed, hot == nullptr ? nullptr : &hot->hot<Key>());
    });
    std::int64_t counts[kMaxParts];
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < parts.count; ++i) {
      const std::size_t part = parts.at(i);
      const std::int64_t first = sum;
      for (int piece = 0; piece < pieces_; ++piece) sum += std::exchange(begins_[at(piece, part)], sum);
      counts[part] = sum - first;
      sum = parts.next_after(sum);
    }
    set_counts(counts);
  }

  void tell(std::span<const std::int64_t> notes, std::int64_t* told) const override {
    for (const std::int64_t count : counts()) {
      *told++ = count;
      told = std::ranges::copy(notes, told).out;
    }
  }

  void sort_keys(void* sorted) override { sort(keys_.data, keys_.bytes, sorted, nullptr); }

  void sort(const void* items, std::int64_t bytes, void* out, Stream) const override {
    const char* const from = static_cast<const char*>(items);
    auto* const to = static_cast<char*>(out);
    with_item_words(bytes, [&](auto width) {
      const auto item = static_cast<std::int64_t>(std::size_t{width});
      for_each_position([&](std::int64_t i, std::int64_t position, bool) {
        std::memcpy(to + position * item, from + i * item, width);
      });
    });
  }

  void gather(const void* items, std::int64_t bytes, void* out, const GatherOptions& options, Stream) const override {
    const auto* const from = static_cast<const char*>(items);
    const auto* const fallback = static_cast<const char*>(options.fallback);
    auto* const to = static_cast<char*>(out);
    with_item_words(bytes, [&](auto width) {
      const auto item = static_cast<std::int64_t>(std::size_t{width});
      for_each_position([&](std::int64_t i, std::int64_t position, bool) {
        const char* source = from + position * item;
        if (fallback != nullptr && !options.found[position])
          source = fallback + (options.fallback_per_key ? i * item : 0);
        std::memcpy(to + i * item, source, width);
        if (options.found_out != nullptr) options.found_out[i] = options.found[position];
      });
    });
  }

  void gather_rows(const std::int64_t* rows, std::int64_t* out, Stream) const override {
    for_each_position([&](std::int64_t i, std::int64_t position, bool) {
      const std::int64_t row = rows[position];
      out[i] = row < 0 ? row : std::int64_t{owners_[i]} << kShardShift | row;
    });
  }

  void gather_mask(const bool* mask, bool* out, Stream) const override {
    for_each_position(
        [&](std::int64_t i, std::int64_t position, bool is_first) { out[i] = is_first && mask[position]; });
  }

  void combine(const void* values, bool broadcast, const Reduction& reduction, void* out, Stream) const override {
    const CombineFn combine_into = combine_function(reduction.dtype, reduction.op);
    const auto* const from = static_cast<const char*>(values);
    auto* const to = static_cast<char*>(out);
    with_item_words(reduction.bytes(), [&](auto width) {
      const auto item = static_cast<std::int64_t>(std::size_t{width});
      for_each_position([&](std::int64_t i, std::int64_t position, bool is_first) {
        const char* const value = from + (broadcast ? 0 : i * item);
        if (is_first)
          std::memcpy(to + position * item, value, width);
        else
          combine_into(to + position * item, value, 1);
      });
    });
  }

 private:
  std::size_t at(int piece, std::size_t part) const { return static_cast<std::size_t>(piece) * counts().size() + part; }

  template <class Key>
  void find_owners(const KeyBatch& by, std::uint64_t seed, const HotKeys<Key>* hot) {
    const auto parts = static_cast<std::uint32_t>(counts().size());
    for_each_part(by.count, pieces_, [&](int piece, std::int64_t begin, std::int64_t end) {
      std::int64_t sizes[kMaxParts] = {};  // on the stack: in begins_ they would share a line with others'
      bool seen[kHotSlots] = {};
      for (std::int64_t i = begin; i < end; ++i) {
        const Key key = load_word<Key>(by.data, i, by.bytes);
        const std::uint64_t hash = hash_key(key, seed);
        const std::uint32_t owner = owner_of_hash(hash, parts);
        owners_[i] = static_cast<std::uint8_t>(owner);
        const int slot = hot == nullptr ? -1 : hot->find(key, hash);
        if (hot != nullptr) hot_slots_[i] = static_cast<std::int16_t>(slot);
        if (slot < 0 || !std::exchange(seen[slot], true)) ++sizes[owner];
      }
      for (std::size_t part = 0; part < parts; ++part) begins_[at(piece, part)] = sizes[part];
    });
  }

  /// Calls body(i, position, is_first) for each key and its position in the owners' order: is it the first that has it?
  template <class Body>
  void for_each_position(Body body) const {
    for_each_part(keys_.count, pieces_, [&](int piece, std::int64_t begin, std::int64_t end) {
      std::int64_t next[kMaxParts];
      for (std::size_t part = 0; part < counts().size(); ++part) next[part] = begins_[at(piece, part)];
      if (hot_slots_ == nullptr) {
        for (std::int64_t i = begin; i < end; ++i) body(i, next[owners_[i]]++, true);
        return;
      }
      std::array<std::int64_t, kHotSlots> positions;
      positions.fill(-1);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int16_t slot = hot_slots_[i];
        const bool is_first = slot < 0 || positions[static_cast<std::size_t>(slot)] < 0;
        const std::int64_t position = is_first ? next[owners_[i]]++ : positions[static_cast<std::size_t>(slot)];
        if (slot >= 0) positions[static_cast<std::size_t>(slot)] = position;
        body(i, position, is_first);
      }
    });
  }

  KeyBatch keys_;
  int pieces_;
  std::unique_ptr<std::uint8_t[]> owners_;
  std::unique_ptr<std::int16_t[]> hot_slots_;  // of the keys, -1 for others; null: nothing is merged
  std::vector<std::int64_t> begins_;           // [piece, part], in the owners' order
};

class HostSplitter final : public Splitter {
 public:
  std::unique_ptr<Split> split(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, const Parts& parts,
                               CountsMailbox&, std::shared_ptr<Sample> sample, Stream stream) const override {
    const OwnerKeys by(context, keys, seed, stream);
    const bool merges = sample != nullptr && sample->has_hot_keys();
    return std::make_unique<HostSplit>(keys, by.keys(), seed, parts,
                                       merges ? static_cast<const HostSample*>(sample.get()) : nullptr);
  }
  std::shared_ptr<Sample> sample(DeviceContext&, const KeyBatch& keys, std::uint64_t seed, CountsMailbox&,
                                 Stream) const override {
    return std::make_shared<HostSample>(keys, seed);
  }
  void find_owners(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, std::uint32_t parts,
                   std::int32_t* owners, Stream stream) const override {
    const OwnerKeys owner_keys(context, keys, seed, stream);
    const KeyBatch& by = owner_keys.keys();
    const auto find = [&](auto key) {
      for_each_part(by.count, reader_parts(by.count), [&](int, std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          owners[i] = static_cast<std::int32_t>(owner_of(load_word<decltype(key)>(by.data, i, by.bytes), seed, parts));
      });
    };
    with_key_word(by, find);
  }
  void number_rows(DeviceContext&, std::int64_t* rows, std::int64_t count, std::size_t shard, Stream) const override {
    for_each_part(count, reader_parts(count), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) rows[i] |= static_cast<std::int64_t>(shard) << kShardShift;
    });
  }
};

}  // namespace

const Splitter& HostAlgorithms::splitter() {
  static const auto& splitter = *new HostSplitter;  // never destroyed: threads may work at exit
  return splitter;
}

}  // namespace gpuhash::host
