#pragma once

#include <algorithm>
#include <cstdint>

#include "host/factorize/line_table.hpp"
#include "host/factorize/word_blocks.hpp"
#include "host/parallel.hpp"

namespace gpuhash::host {

/// The distinct words of a few blocks or of a batch with few distinct ones: ids in order of first occurrence, and what
/// is known of each. For one thread. Takes up to 65 bytes per word of 64 bits, and 45 per word of 32.
template <class WordType>
class SeenWords {
 public:
  using Word = WordType;

  SeenWords(DeviceContext& context, std::int64_t most, const WordHash<Word>& hash)
      : most_(most),
        table_(context, Table::lines_for(most), hash),
        words_(context, static_cast<std::size_t>(most + 1) * sizeof(Word), nullptr),
        counts_(context, static_cast<std::size_t>(most + 1) * sizeof(std::uint32_t), nullptr),
        firsts_(context, static_cast<std::size_t>(most + 1) * sizeof(std::uint32_t), nullptr) {
    table_.clear(std::min(table_.most_lines(), Table::lines_for(kWordBlock)));
  }

  std::int64_t size() const { return size_; }
  bool has_room_for(std::int64_t words) const { return size_ + words <= most_; }
  Word word(std::int64_t id) const { return words_.as<Word>()[id]; }
  std::uint32_t& count(std::int64_t id) { return counts_.as<std::uint32_t>()[id]; }
  std::int64_t count(std::int64_t id) const { return counts_.as<std::uint32_t>()[id]; }
  std::int64_t first(std::int64_t id) const { return firsts_.as<std::uint32_t>()[id]; }

  /// Adds `count` <= kWordBlock words, the j-th of which stands at position base + at[j] of the batch, and writes their
  /// ids to ids[at[j]] unless that is null.
  void add(const Word* words, const std::uint16_t* at, std::int64_t count, std::int64_t base, std::uint32_t* ids) {
    make_room_for(count);
    const bool far = table_.lines().mask >= kNearLines;
    if (ids != nullptr)
      far ? add_with<true, true>(words, at, count, base, ids) : add_with<true, false>(words, at, count, base, ids);
    else
      far ? add_with<false, true>(words, at, count, base, ids) : add_with<false, false>(words, at, count, base, ids);
  }

  /// Adds a word that came `times` times, at first at `first`; returns its id.
  std::uint32_t add(Word word, std::uint32_t times, std::uint32_t first) {
    make_room_for(1);
    std::uint32_t line;
    table_.lines_of(&word, 1, &line);
    put(size_, word, first);
    const auto visit = table_.lines().visit(word, line, static_cast<std::uint32_t>(size_));
    count(visit.id) += times;
    size_ += visit.is_new;
    return visit.id;
  }

  /// Begins with the first `size` words of another list, which may be growing meanwhile; they have not come here yet.
  /// Each has the id that it has there, also one that is there twice, as somebody has changed the keys while they were
  /// read: others count on `size` ids.
  void begin_with(const SeenWords& other, std::int64_t size) {
    for (std::int64_t id = 0; id < size; ++id) {
      add(other.word(id), 0, static_cast<std::uint32_t>(other.first(id)));
      size_ = id + 1;
    }
  }

 private:
  using Table = LineTable<Word>;
  /// Lines of larger tables are asked for ahead.
  static constexpr std::uint32_t kNearLines = 1 << 11;
  static constexpr std::int64_t kLinesAhead = 16;

  /// The table begins small, so that it lies in the first cache if it can.
  void make_room_for(std::int64_t words) {
    if (size_ + words <= table_.room()) return;
    std::int64_t lines = Table::lines_for(table_.room());
    while (lines * Table::kLoad < size_ + words) lines *= 4;
    table_.clear(std::min(lines, table_.most_lines()));
    const Lines<Word> all = table_.lines();
    for_each_word_block(0, size_, [&](std::int64_t base, std::int64_t count) {
      std::uint32_t begins[kWordBlock];
      table_.lines_of(words_.as<Word>() + base, count, begins);
      for (std::int64_t j = 0; j < count; ++j)
        all.visit(word(base + j), begins[j], static_cast<std::uint32_t>(base + j));
    });
  }

  /// What would be known of word `id`, if there was one.
  void put(std::int64_t id, Word word, std::uint32_t first) {
    words_.as<Word>()[id] = word;
    counts_.as<std::uint32_t>()[id] = 0;
    firsts_.as<std::uint32_t>()[id] = first;
  }

  template <bool kIds, bool kFar>
  void add_with(const Word* words, const std::uint16_t* at, std::int64_t count, std::int64_t base, std::uint32_t* ids) {
    std::uint32_t begins[kWordBlock + kLinesAhead];
    table_.lines_of(words, count, begins);
    if constexpr (kFar) std::fill_n(begins + count, kLinesAhead, 0u);
    const Lines<Word> lines = table_.lines();
    auto* const seen = words_.as<Word>();
    auto* const counts = counts_.as<std::uint32_t>();
    auto* const firsts = firsts_.as<std::uint32_t>();
    with_simd([&]<class Simd>(Simd) {
      auto size = static_cast<std::uint32_t>(size_);
      for (std::int64_t j = 0; j < count; ++j) {
        if constexpr (kFar) lines.prefetch(begins[j + kLinesAhead]);
        seen[size] = words[j];
        counts[size] = 0;
        firsts[size] = static_cast<std::uint32_t>(base + at[j]);
        const auto visit = lines.template visit<Simd>(words[j], begins[j], size);
        ++counts[visit.id];
        size += visit.is_new;
        if constexpr (kIds) ids[at[j]] = visit.id;
      }
      size_ = size;
    });
  }

  std::int64_t most_;
  std::int64_t size_ = 0;
  Table table_;
  Allocation words_;   // [most + 1], the first size_ of them; one more is written, which may be known already
  Allocation counts_;  // likewise
  Allocation firsts_;  // likewise, positions in the batch
};

}  // namespace gpuhash::host
