#include "table/splitter.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "host/executor.hpp"
#include "host/parallel.hpp"
#include "host/walk.hpp"
#include "shared/owner.hpp"
#include "shared/sample_slots.hpp"

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

/// Threads take consecutive pieces of the batch each, and know where in each part of the owners' order theirs begin.
class HostSplit final : public Split {
 public:
  HostSplit(const KeyBatch& keys, std::uint64_t seed, const Parts& parts)
      : Split(parts),
        keys_(keys),
        pieces_(reader_parts(keys.count)),
        owners_(uninitialised<std::uint8_t>(keys.count)),
        begins_(scratch<std::int64_t>(pieces_ * static_cast<std::int64_t>(parts.count))) {
    with_key_word(keys, [&](auto key) { find_owners<decltype(key)>(seed); });
    std::int64_t counts[kMaxParts];
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < parts.count; ++i) {
      const std::size_t part = parts.at(i);
      const std::int64_t first = sum;
      for (int piece = 0; piece < pieces_; ++piece) sum += std::exchange(begins_[at(piece, part)], sum);
      counts[part] = sum - first;
      sum = parts.align(sum);
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
      for_each_position(
          [&](std::int64_t i, std::int64_t position) { std::memcpy(to + position * item, from + i * item, width); });
    });
  }

  void gather(const void* items, std::int64_t bytes, void* out, const GatherOptions& options, Stream) const override {
    const auto* const from = static_cast<const char*>(items);
    const auto* const fallback = static_cast<const char*>(options.fallback);
    auto* const to = static_cast<char*>(out);
    with_item_words(bytes, [&](auto width) {
      const auto item = static_cast<std::int64_t>(std::size_t{width});
      for_each_position([&](std::int64_t i, std::int64_t position) {
        const char* source = from + position * item;
        if (fallback != nullptr && !options.found[position])
          source = fallback + (options.fallback_per_key ? i * item : 0);
        std::memcpy(to + i * item, source, width);
        if (options.found_out != nullptr) options.found_out[i] = options.found[position];
      });
    });
  }

  void gather_rows(const std::int64_t* rows, std::int64_t* out, Stream) const override {
    for_each_position([&](std::int64_t i, std::int64_t position) {
      const std::int64_t row = rows[position];
      out[i] = row < 0 ? row : std::int64_t{owners_[i]} << kShardShift | row;
    });
  }

 private:
  std::size_t at(int piece, std::size_t part) const { return static_cast<std::size_t>(piece) * counts().size() + part; }

  template <class Key>
  void find_owners(std::uint64_t seed) {
    const auto parts = static_cast<std::uint32_t>(counts().size());
    for_each_part(keys_.count, pieces_, [&](int piece, std::int64_t begin, std::int64_t end) {
      std::int64_t sizes[kMaxParts] = {};  // on the stack: in begins_ they would share a line with others'
      for (std::int64_t i = begin; i < end; ++i) {
        const std::uint32_t owner = owner_of(load_word<Key>(keys_.data, i, keys_.bytes), seed, parts);
        owners_[i] = static_cast<std::uint8_t>(owner);
        ++sizes[owner];
      }
      for (std::size_t part = 0; part < parts; ++part) begins_[at(piece, part)] = sizes[part];
    });
  }

  /// Calls body(i, position) for each key and its position in the owners' order.
  template <class Body>
  void for_each_position(Body body) const {
    for_each_part(keys_.count, pieces_, [&](int piece, std::int64_t begin, std::int64_t end) {
      std::int64_t next[kMaxParts];
      for (std::size_t part = 0; part < counts().size(); ++part) next[part] = begins_[at(piece, part)];
      for (std::int64_t i = begin; i < end; ++i) body(i, next[owners_[i]]++);
    });
  }

  KeyBatch keys_;
  int pieces_;
  std::unique_ptr<std::uint8_t[]> owners_;
  std::vector<std::int64_t> begins_;  // [piece, part], in the owners' order
};

class HostSample final : public Sample {
 public:
  explicit HostSample(const KeyBatch& keys) {
    std::vector<std::uint32_t> slots = scratch<std::uint32_t>(SampleSlots::kSlots);
    const std::int64_t step = keys.count / kKeys;
    repeats_ = {kKeys, 0};
    with_key_word(keys, [&](auto key) {
      for (std::int64_t i = 0; i < kKeys; ++i) {
        const SampleSlots::Place place(hash_key(load_word<decltype(key)>(keys.data, i * step, keys.bytes), 0));
        std::uint32_t at = place.home;
        while (slots[at] != 0 && !place.is_mine(slots[at])) at = SampleSlots::next(at);
        if (slots[at] == 0) {
          slots[at] = place.empty();
          --repeats_.all;
        }
        repeats_.most = std::max(repeats_.most, SampleSlots::count(++slots[at]));
      }
    });
  }
  Repeats wait() override { return repeats_; }

 private:
  Repeats repeats_;
};

class HostSplitter final : public Splitter {
 public:
  std::unique_ptr<Split> split(DeviceContext&, const KeyBatch& keys, std::uint64_t seed, const Parts& parts,
                               CountsMailbox&, Stream) const override {
    return std::make_unique<HostSplit>(keys, seed, parts);
  }
  std::unique_ptr<Sample> sample(DeviceContext&, const KeyBatch& keys, CountsMailbox&, Stream) const override {
    return std::make_unique<HostSample>(keys);
  }
  void find_owners(DeviceContext&, const KeyBatch& keys, std::uint64_t seed, std::uint32_t parts, std::int32_t* owners,
                   Stream) const override {
    const auto find = [&](auto key) {
      for_each_part(keys.count, reader_parts(keys.count), [&](int, std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          owners[i] =
              static_cast<std::int32_t>(owner_of(load_word<decltype(key)>(keys.data, i, keys.bytes), seed, parts));
      });
    };
    with_key_word(keys, find);
  }
  void number_rows(DeviceContext&, std::int64_t* rows, std::int64_t count, std::size_t shard, Stream) const override {
    for_each_part(count, reader_parts(count), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) rows[i] |= static_cast<std::int64_t>(shard) << kShardShift;
    });
  }
};

}  // namespace

const Splitter& HostAlgorithms::splitter() {
  static const HostSplitter splitter;
  return splitter;
}

}  // namespace gpuhash::host
