#include "host/columns/taken.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "host/parallel.hpp"
#include "host/short_bytes.hpp"
#include "host/simd/simd.hpp"
#include "table/taken_rows.hpp"

namespace gpuhash::host {
namespace {

/// Entries that are taken together: those of the next block are asked for meanwhile.
constexpr std::int64_t kTaken = 64;
/// Bytes of an entry that are asked for.
constexpr std::int64_t kMostAsked = 256;

/// Calls body(begin, end) for pieces of [0, count), on several threads.
template <class Body>
void for_each_piece(std::int64_t count, const Body& body) {
  for_each_part(count, reader_parts(count),
                [&](int, std::int64_t first, std::int64_t last) { in_pieces(first, last, kKeysPerPiece, body); });
}

/// std::out_of_range where an index is `rows` or more.
void check_index(const std::int64_t* index, std::int64_t count, std::int64_t rows) {
  std::atomic<std::int64_t> most{-1};
  for_each_piece(count, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t here = -1;
    with_simd([&here, index, begin, end](auto) {
      std::int64_t greatest = -1;
      for (std::int64_t j = begin; j < end; ++j) greatest = std::max(greatest, index[j]);
      here = greatest;
    });
    std::int64_t before = most.load(std::memory_order_relaxed);
    while (before < here && !most.compare_exchange_weak(before, here, std::memory_order_relaxed)) {
    }
  });
  throw_if_outside(most.load(), rows);
}

/// Where the entries of a block are.
struct Block {
  std::int64_t begin;
  std::int64_t end;
  bool is_run;     // one behind the other
  bool has_holes;  // some indices are negative

  Block(const std::int64_t* index, std::int64_t from, std::int64_t to) : begin(from), end(to) {
    std::int64_t signs = 0;
    std::int64_t differ = 0;
    for (std::int64_t j = begin; j < end; ++j) {
      signs |= index[j];
      differ |= (index[j] - j) ^ (index[begin] - begin);
    }
    has_holes = signs < 0;
    is_run = !has_holes && differ == 0;
  }
};

/// Do the entries of a block lie so close that the processor asks for them by itself?
bool lies_close(const std::int64_t* index, std::int64_t begin, std::int64_t end) {
  const std::int64_t distance = index[end - 1] - index[begin];
  return distance >= 0 && distance <= 4 * (end - begin);
}

template <class Copy>
void take_block(const TakenColumn& column, const std::int64_t* index, const Block& block, const Copy& copy) {
  const auto* const from = static_cast<const std::byte*>(column.data);
  auto* const to = static_cast<std::byte*>(column.out);
  for (std::int64_t j = block.begin; j < block.end; ++j) {
    std::byte* const entry = to + j * column.bytes;
    if (index[j] >= 0)
      copy(entry, from + index[j] * column.bytes);
    else if (column.fill != nullptr)
      copy(entry, static_cast<const std::byte*>(column.fill));
    else
      std::memset(entry, 0, static_cast<std::size_t>(column.bytes));
  }
}

/// Of entries that are one word each, without a branch.
template <class Word>
void take_words(const TakenColumn& column, const std::int64_t* index, const Block& block) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Word));
  const auto* const from = static_cast<const std::byte*>(column.data);
  auto* const to = static_cast<std::byte*>(column.out);
  if (!block.has_holes) {
    for (std::int64_t j = block.begin; j < block.end; ++j)
      detail::store_whole(to + j * kBytes, detail::load_whole<Word>(from + index[j] * kBytes));
    return;
  }
  const Word fill = column.fill == nullptr ? Word{} : detail::load_whole<Word>(column.fill);
  for (std::int64_t j = block.begin; j < block.end; ++j) {
    const void* const entries[] = {from + index[j] * kBytes, &fill};
    detail::store_whole(to + j * kBytes, detail::load_whole<Word>(entries[index[j] < 0 ? 1 : 0]));
  }
}

void take_block(const TakenColumn& column, const std::int64_t* index, const Block& block) {
  if (column.is_bool)
    return take_block(column, index, block, [&](std::byte* to, const std::byte* from) {
      for (std::int64_t b = 0; b < column.bytes; ++b) to[b] = std::byte{from[b] != std::byte{0}};
    });
  if (block.is_run) {
    std::memcpy(static_cast<std::byte*>(column.out) + block.begin * column.bytes,
                static_cast<const std::byte*>(column.data) + index[block.begin] * column.bytes,
                static_cast<std::size_t>((block.end - block.begin) * column.bytes));
    return;
  }
  switch (column.bytes) {
    case 1:
      return take_words<std::uint8_t>(column, index, block);
    case 2:
      return take_words<std::uint16_t>(column, index, block);
    case 4:
      return take_words<std::uint32_t>(column, index, block);
    case 8:
      return take_words<std::uint64_t>(column, index, block);
    case 16:
      return take_words<Uint128>(column, index, block);
    default:
      return take_block(column, index, block,
                        [&](std::byte* to, const std::byte* from) { copy_bytes(to, from, column.bytes); });
  }
}

}  // namespace

void take_columns(Span<const TakenColumn> columns, std::optional<std::int64_t> rows, const std::int64_t* index,
                  std::int64_t count) {
  if (rows) check_index(index, count, *rows);
  for_each_piece(count, [&](std::int64_t begin, std::int64_t end) {
    const auto ask_for = [&](std::int64_t from) {
      if (from >= end || lies_close(index, from, std::min(from + kTaken, end))) return;
      for (const TakenColumn& column : columns)
        for (std::int64_t j = from; j < std::min(from + kTaken, end); ++j) {
          if (index[j] < 0) continue;
          const std::byte* const entry = static_cast<const std::byte*>(column.data) + index[j] * column.bytes;
          for (std::int64_t byte = 0; byte < std::min(column.bytes, kMostAsked); byte += 64)
            __builtin_prefetch(entry + byte);
        }
    };
    ask_for(begin);
    for (std::int64_t from = begin; from < end; from += kTaken) {
      ask_for(from + kTaken);
      const Block block(index, from, std::min(from + kTaken, end));
      for (const TakenColumn& column : columns) take_block(column, index, block);
    }
  });
}

std::int64_t take_string_offsets(const std::int64_t* offsets, std::int64_t rows, const std::int64_t* index,
                                 std::int64_t count, std::int64_t* out) {
  check_index(index, count, rows);
  const int parts = reader_parts(count);
  auto sums = scratch<std::int64_t>(parts);
  const auto length = [&](std::int64_t j) { return index[j] < 0 ? 0 : offsets[index[j] + 1] - offsets[index[j]]; };
  for_each_part(count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t sum = 0;
    for (std::int64_t j = begin; j < end; ++j) sum += out[j] = length(j);
    sums[static_cast<std::size_t>(part)] = sum;
  });
  for_each_part(count, parts, [&](int part, std::int64_t begin, std::int64_t end) {
    std::int64_t at = 0;
    for (int p = 0; p < part; ++p) at += sums[static_cast<std::size_t>(p)];
    for (std::int64_t j = begin; j < end; ++j) {
      const std::int64_t bytes = out[j];
      out[j] = at;
      at += bytes;
    }
  });
  std::int64_t total = 0;
  for (const std::int64_t sum : sums) total += sum;
  return out[count] = total;
}

void take_string_bytes(const void* data, const std::int64_t* offsets, const std::int64_t* index, std::int64_t count,
                       const std::int64_t* out_offsets, void* out) {
  const auto* const from = static_cast<const std::byte*>(data);
  auto* const to = static_cast<std::byte*>(out);
  for_each_piece(count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      if (const std::int64_t next = j + kTaken / 4; next < end && index[next] >= 0)
        __builtin_prefetch(from + offsets[index[next]]);
      if (index[j] >= 0) copy_bytes(to + out_offsets[j], from + offsets[index[j]], out_offsets[j + 1] - out_offsets[j]);
    }
  });
}

}  // namespace gpuhash::host
