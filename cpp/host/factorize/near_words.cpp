#include "host/factorize/near_words.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "host/factorize/part_firsts.hpp"
#include "host/simd/simd.hpp"

namespace gpuhash::host {
namespace {

using Firsts = PartFirsts<std::uint16_t>;
using WideFirsts = PartFirsts<std::uint32_t>;

/// A near batch: PartFirsts finds where each key occurs first.
template <class Word>
class NearWords final : public WordWay<Word> {
 public:
  explicit NearWords(const WordBatch<Word>& batch) : WordWay<Word>(batch) {
    if (batch_.ranges.count <= Firsts::kMost)
      find<std::uint16_t>();
    else
      find<std::uint32_t>();
  }

 private:
  using WordWay<Word>::batch_;
  using WordWay<Word>::distinct_;
  using WordWay<Word>::write_distinct;

  template <class Position>
  void find() {
    const std::int64_t count = batch_.ranges.count;
    if (!batch_.blocks.in_place())
      words_ = Allocation(batch_.context, static_cast<std::size_t>(count) * sizeof(Word), nullptr);
    const std::int64_t room = PartFirsts<Position>::room(count);
    memory_ = Allocation(batch_.context, static_cast<std::size_t>(room) * sizeof(Position), nullptr);
    const auto& near = near_.template emplace<PartFirsts<Position>>(memory_.as<Position>(), count);
    with_simd([&](auto) {
      near.find(batch_.blocks.read(0, count, words_.as<Word>()), batch_.hash, count);
      distinct_ = count_firsts(near.firsts(), 0, count);
    });
  }

  void write_in_order(const FactorizationOutput& out) override {
    if (const auto* const near = std::get_if<Firsts>(&near_)) return write_near(out, *near);
    write_near(out, std::get<WideFirsts>(near_));
  }

  template <class Position>
  void write_near(const FactorizationOutput& out, const PartFirsts<Position>& near) const {
    write_firsts(out, near.firsts());
    if (out.codes != nullptr) write_codes(out.codes, near.firsts(), near.scratch());
  }

  template <class Position>
  void write_firsts(const FactorizationOutput& out, const Position* firsts) const {
    const std::int64_t count = batch_.ranges.count;
    const Allocation memory(batch_.context, out.counts == nullptr ? 0 : static_cast<std::size_t>(count) * 4, nullptr);
    auto* const counts = memory.as<std::uint32_t>();  // [n], at first occurrences
    if (counts != nullptr) {
      std::fill_n(counts, count, 0u);
      for (std::int64_t i = 0; i < count; ++i) ++counts[firsts[i]];
    }
    Block block;
    std::int64_t id = 0;
    for_each_word_block(0, count, [&](std::int64_t base, std::int64_t size) {
      block.size = 0;
      std::int64_t j = 0;
      with_simd([&]<class Simd>(Simd) {
        const Word* const words = batch_words();
        for (; j + 8 <= size; j += 8) {
          const std::uint32_t are_first = Simd::counting_from(static_cast<Position>(base + j), firsts + base + j);
          Simd::store_chosen(are_first, words + base + j, block.words + block.size);
          Simd::store_numbers(are_first, static_cast<std::uint32_t>(base + j), block.positions + block.size);
          if (counts != nullptr) Simd::store_chosen(are_first, counts + base + j, block.counts + block.size);
          block.size += std::popcount(are_first);
        }
      });
      for (; j < size; ++j) {
        block.words[block.size] = batch_words()[base + j];
        block.positions[block.size] = static_cast<std::uint32_t>(base + j);
        if (counts != nullptr) block.counts[block.size] = counts[base + j];
        block.size += firsts[base + j] == base + j ? 1 : 0;
      }
      write_distinct(
          out, id, block.size, [&](std::int64_t k) { return block.words[k]; },
          [&](std::int64_t k) { return std::int64_t{block.positions[k]}; },
          [&](std::int64_t k) { return std::int64_t{block.counts[k]}; });
      id += block.size;
    });
  }

  /// First occurrences in a block of a near batch, and room for what is written behind the last one.
  struct Block {
    std::int64_t size;
    Word words[kWordBlock + 8];
    std::uint32_t positions[kWordBlock + 8];
    std::uint32_t counts[kWordBlock + 8];  // if they were asked for
  };

  /// ids: memory for as many as keys.
  template <class Position>
  void write_codes(std::int64_t* codes, const Position* firsts, Position* ids) const {
    const std::int64_t count = batch_.ranges.count;
    Position id = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      ids[i] = id;
      id += firsts[i] == i ? 1 : 0;
    }
    for (std::int64_t i = 0; i < count; ++i) codes[i] = ids[firsts[i]];
  }
  const Word* batch_words() const {
    return batch_.blocks.in_place() ? batch_.blocks.read(0, 0, nullptr) : words_.as<Word>();
  }

  std::variant<std::monostate, Firsts, WideFirsts> near_;
  Allocation memory_;
  Allocation words_;  // [n], if the batch is not such words itself
};

}  // namespace

/// One thread finds first occurrences in the second cache (5.4 times by parts, 2^14 int32). Of more than 2^16 keys
/// several threads together partition faster, but two are slower where all keys get ids.
bool is_near(const Ranges& batch, bool codes) {
  constexpr std::int64_t kMostNear = std::int64_t{1} << 17;
  return batch.count <= Firsts::kMost || (batch.count <= kMostNear && batch.parts <= (codes ? 2 : 1));
}

template <class Word>
std::unique_ptr<Factorization> make_near_words(const WordBatch<Word>& batch) {
  return std::make_unique<NearWords<Word>>(batch);
}

template std::unique_ptr<Factorization> make_near_words(const WordBatch<std::uint32_t>& batch);
template std::unique_ptr<Factorization> make_near_words(const WordBatch<std::uint64_t>& batch);

}  // namespace gpuhash::host
