#include "host/word_members.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "host/simd.hpp"
#include "host/word_parts.hpp"
#include "host/word_set.hpp"
#include "host/word_streams.hpp"

namespace gpuhash::host {
namespace {

using Blocks = WordBlocks<std::uint64_t>;
using Parts = WordParts<std::uint64_t>;

/// Fewer words are put into the set as they come.
constexpr std::int64_t kLeastPartitioned = std::int64_t{1} << 15;
/// Parts that are looked at before the set is made.
constexpr std::int64_t kPartsLookedAt = 8;

/// Adds words [begin, end) to a part. False: there is no room for all of them.
template <class Simd>
bool fill_part(WordSet& set, std::int64_t part, const std::uint64_t* words, std::int64_t count,
               std::int64_t& distinct) {
  set.clear(part);
  distinct = 0;
  for (std::int64_t begin = 0; begin < count; begin += WordSet::kAdded) {
    const std::int64_t size = std::min(WordSet::kAdded, count - begin);
    if (distinct + size > set.room()) return false;
    distinct += set.add<Simd>(part, words + begin, size);
  }
  return true;
}

/// About as many distinct words a part has. Any few parts tell, as words are dealt out by a hash.
std::int64_t distinct_of_part(DeviceContext& context, const Parts& parts, const std::uint64_t* words) {
  const std::int64_t average = parts.count() >> parts.bits();
  std::int64_t most = -1;
  for (std::int64_t part = 0; part < kPartsLookedAt; ++part) {
    if (parts.size(part) > 2 * average) continue;  // copies of few words, as a rule
    WordSet set(context, parts.hash(), 1, WordSet::lines_for(parts.size(part)), parts.bits());
    std::int64_t distinct = 0;
    with_simd(
        [&]<class Simd>(Simd) { fill_part<Simd>(set, 0, words + parts.start(0, part), parts.size(part), distinct); });
    most = std::max(most, distinct);
  }
  if (most < 0) return average;
  return most + static_cast<std::int64_t>(6 * std::sqrt(static_cast<double>(most))) + 8;
}

/// False: a part has more words than there is room for.
bool fill(WordSet& set, const Parts& parts, const std::uint64_t* words) {
  std::atomic<bool> has_room{true};
  parts.for_each_group([&](int, std::int64_t begin, std::int64_t end) {
    with_simd([&]<class Simd>(Simd) {
      std::int64_t distinct = 0;
      for (std::int64_t part = begin; part < end && has_room.load(std::memory_order_relaxed); ++part)
        if (!fill_part<Simd>(set, part, words + parts.start(0, part), parts.size(part), distinct))
          has_room.store(false, std::memory_order_relaxed);
    });
  });
  return has_room.load();
}

WordSet make_set(DeviceContext& context, const Blocks& blocks, std::int64_t count) {
  const WordHash<std::uint64_t> hash;  // no answer depends on its seeds, and nobody can pick keys that meet
  if (count < kLeastPartitioned) {
    WordSet set(context, hash, 1, std::bit_ceil(static_cast<std::uint64_t>(WordSet::lines_for(count))));
    set.clear(0);
    with_simd([&]<class Simd>(Simd) {
      std::uint64_t buffer[kWordBlock];
      for (std::int64_t base = 0; base < count; base += WordSet::kAdded) {
        const std::int64_t size = std::min(WordSet::kAdded, count - base);
        set.add<Simd>(0, blocks.read(base, size, buffer), size);
      }
    });
    return set;
  }
  WordStreams<std::uint64_t> streams(blocks, Ranges(count));
  const Parts parts(context, streams, hash, count);
  const Allocation memory(context, static_cast<std::size_t>(count) * sizeof(std::uint64_t), nullptr);
  parts.scatter(streams, memory.as<std::byte>());
  const auto* const words = memory.as<std::uint64_t>();
  for (std::int64_t lines = WordSet::lines_for(distinct_of_part(context, parts, words));; lines *= 2) {
    WordSet set(context, hash, parts.parts(), lines);
    if (fill(set, parts, words)) return set;
  }
}

/// Calls body(simd, words, count, base) for all blocks, several at a time.
template <class Body>
void for_each_block(const Blocks& blocks, std::int64_t count, Body body) {
  for_each_chunk(count, [&](std::int64_t begin, std::int64_t end) {
    with_simd([&](auto simd) {
      std::uint64_t buffer[kWordBlock];
      for_each_word_block(begin, end, [&](std::int64_t base, std::int64_t size) {
        body(simd, blocks.read(base, size, buffer), size, base);
      });
    });
  });
}

}  // namespace

void find_word_members(DeviceContext& context, const NumberKeys& elements, const NumberKeys& tests, bool invert,
                       bool* mask) {
  const Blocks element_blocks(elements);
  const Blocks test_blocks(tests);
  if (is_table_of_tests(elements.count, tests.count)) {
    const WordSet set = make_set(context, test_blocks, tests.count);
    for_each_block(element_blocks, elements.count,
                   [&]<class Simd>(Simd, const std::uint64_t* words, std::int64_t count, std::int64_t base) {
                     set.contains<Simd>(words, count, invert, mask + base);
                   });
    return;
  }

  const WordSet set = make_set(context, element_blocks, elements.count);
  // One byte per slot: is its word a test element?
  const Allocation met(context, static_cast<std::size_t>(set.slots()), nullptr);
  auto* const bytes = met.as<std::uint8_t>();
  std::memset(bytes, 0, met.bytes());
  for_each_block(test_blocks, tests.count,
                 [&]<class Simd>(Simd, const std::uint64_t* words, std::int64_t count, std::int64_t) {
                   std::int64_t slots[kWordBlock];
                   set.slots_of<Simd>(words, count, slots);
                   for (std::int64_t j = 0; j < count; ++j) {
                     if (slots[j] < 0) continue;
                     const std::atomic_ref byte(bytes[slots[j]]);
                     if (byte.load(std::memory_order_relaxed) == 0) byte.store(1, std::memory_order_relaxed);
                   }
                 });
  for_each_block(element_blocks, elements.count,
                 [&]<class Simd>(Simd, const std::uint64_t* words, std::int64_t count, std::int64_t base) {
                   std::int64_t slots[kWordBlock];
                   set.slots_of<Simd>(words, count, slots);
                   for (std::int64_t j = 0; j < count; ++j) mask[base + j] = (bytes[slots[j]] != 0) != invert;
                 });
}

}  // namespace gpuhash::host
