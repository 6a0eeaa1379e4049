#include <gpuhash/key_columns.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "host/columns/taken.hpp"
#include "host/executor.hpp"
#include "host/parallel.hpp"
#include "host/short_bytes.hpp"
#include "host/simd/simd.hpp"
#include "shared/key_numbers.hpp"
#include "shared/row_hash.hpp"

/// How this room works: rows go by blocks that fit the nearest cache, and a block column by column, so that what kind a
/// column is of is asked once for many rows.
namespace gpuhash::host {
namespace {

constexpr std::int64_t kBlock = 512;
/// Rows of a column that are looked at in turn, where nothing is written.
constexpr std::int64_t kSeen = std::int64_t{1} << 12;

/// Calls body(begin, end) for blocks of [first, last).
template <class Body>
void in_blocks(std::int64_t first, std::int64_t last, const Body& body) {
  in_pieces(first, last, kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; begin += kBlock) body(begin, std::min(begin + kBlock, end));
  });
}

/// Calls body(begin, end) for blocks of [0, count), on several threads.
template <class Body>
void for_each_block(std::int64_t count, const Body& body) {
  for_each_part(count, reader_parts(count),
                [&](int, std::int64_t first, std::int64_t last) { in_blocks(first, last, body); });
}

const std::byte* bytes_of(const KeyColumn& column) { return static_cast<const std::byte*>(column.data); }

/// Calls body(order), where order(address) is the order word of the number there.
template <class Body>
void with_order(DType dtype, const Body& body) {
  const auto integer = [&]<class Word>(Word sign) {
    body([sign](const std::byte* at) { return std::uint64_t{static_cast<Word>(detail::load_whole<Word>(at) ^ sign)}; });
  };
  const auto floating = [&]<class Word>(Word) {
    body([format = number_format(dtype, 1)](const std::byte* at) {
      return gpuhash::detail::ordered(gpuhash::detail::canonical_float(detail::load_whole<Word>(at), format), format);
    });
  };
  switch (dtype) {
    case DType::kBool:
      return body([](const std::byte* at) { return std::uint64_t{*at != std::byte{0}}; });
    case DType::kInt8:
      return integer(std::uint8_t{0x80});
    case DType::kInt16:
      return integer(std::uint16_t{0x8000});
    case DType::kInt32:
      return integer(std::uint32_t{0x80000000});
    case DType::kInt64:
      return integer(std::uint64_t{1} << 63);
    case DType::kUInt8:
      return integer(std::uint8_t{0});
    case DType::kUInt16:
      return integer(std::uint16_t{0});
    case DType::kUInt32:
      return integer(std::uint32_t{0});
    case DType::kUInt64:
      return integer(std::uint64_t{0});
    case DType::kFloat16:
    case DType::kBFloat16:
      return floating(std::uint16_t{0});
    case DType::kFloat32:
      return floating(std::uint32_t{0});
    default:
      return floating(std::uint64_t{0});
  }
}

/// The number of a digit in row `begin`, and how far it is to the next row's.
struct Numbers {
  Numbers(const KeyRows& rows, const Digit& digit, std::int64_t begin)
      : column(rows.columns[static_cast<std::size_t>(digit.column)]),
        stride(column.bytes()),
        at(bytes_of(column) + begin * stride + digit.element * static_cast<std::int64_t>(itemsize(column.dtype))),
        valid(column.valid == nullptr ? nullptr : column.valid + begin) {}

  const KeyColumn& column;
  std::int64_t stride;
  const std::byte* at;
  const bool* valid;
};

/// Calls body(load), where load(i) is the order word of row i, in a loop of the widest instructions: of integers that
/// lie side by side, without nulls. False where they do not.
template <class Body>
bool with_dense(const Numbers& numbers, const Body& body) {
  const DType dtype = numbers.column.dtype;
  const auto width = static_cast<std::int64_t>(itemsize(dtype));
  if (!is_integer(dtype) || numbers.valid != nullptr || numbers.stride != width || width < 4) return false;
  const auto run = [&]<class Word>(Word) {
    const Word sign = number_format(dtype, 1).is_signed ? Word{1} << (8 * sizeof(Word) - 1) : Word{0};
    with_simd([&, at = numbers.at, sign](auto) {
      body([=](std::int64_t i) {
        return std::uint64_t{detail::load_whole<Word>(at + i * static_cast<std::int64_t>(sizeof(Word))) ^ sign};
      });
    });
  };
  width == 8 ? run(std::uint64_t{}) : run(std::uint32_t{});
  return true;
}

NumberRange range_of(const KeyRows& rows, const Digit& digit, std::int64_t begin, std::int64_t end) {
  NumberRange range;
  const Numbers numbers(rows, digit, begin);
  const bool is_done = with_dense(numbers, [&, count = end - begin](const auto& load) {
    std::uint64_t least = range.least;
    std::uint64_t most = range.most;
    for (std::int64_t i = 0; i < count; ++i) {
      least = std::min(least, load(i));
      most = std::max(most, load(i));
    }
    range = {least, most};
  });
  if (is_done) return range;
  with_order(numbers.column.dtype, [&](const auto& order) {
    for (std::int64_t i = 0; i < end - begin; ++i) {
      if (numbers.valid != nullptr && !numbers.valid[i]) continue;
      const std::uint64_t number = order(numbers.at + i * numbers.stride);
      range.least = std::min(range.least, number);
      range.most = std::max(range.most, number);
    }
  });
  return range;
}

/// Words of a block's rows, and all bits of those that are outside.
struct BlockWords {
  std::uint64_t words[kBlock] = {};
  std::uint64_t outside[kBlock] = {};
};

constexpr std::uint64_t all_bits(bool flag) { return std::uint64_t{0} - std::uint64_t{flag}; }

void add_digits(const KeyRows& rows, const Digit& digit, std::int64_t begin, std::int64_t end, BlockWords& block) {
  const Numbers numbers(rows, digit, begin);
  const bool is_none = digit.least > digit.most;
  const std::uint64_t span = digit.most - digit.least;
  // Copies: by references, each word that is written could have changed them.
  const bool is_done = with_dense(numbers, [&block, digit, span, is_none, count = end - begin](const auto& load) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t above = load(i) - digit.least;
      block.outside[i] |= all_bits(above > span);
      block.words[i] += (digit.base + above) * digit.factor;
    }
    if (is_none) std::fill_n(block.outside, count, all_bits(true));
  });
  if (is_done) return;
  with_order(numbers.column.dtype, [&](const auto& order) {
    for (std::int64_t i = 0; i < end - begin; ++i) {
      if (numbers.valid != nullptr && !numbers.valid[i]) {
        block.words[i] += digit.null * digit.factor;
        block.outside[i] |= all_bits(!digit.has_null);
        continue;
      }
      const std::uint64_t above = order(numbers.at + i * numbers.stride) - digit.least;
      block.outside[i] |= all_bits(is_none | (above > span));
      block.words[i] += (digit.base + above) * digit.factor;
    }
  });
}

/// Calls body(words, begin, end) for blocks of rows [first, last), with the words [end - begin] of each.
template <class Body>
void for_each_words_of(const KeyRows& rows, const Packing& packing, std::int64_t first, std::int64_t last,
                       const Body& body) {
  in_blocks(first, last, [&](std::int64_t begin, std::int64_t end) {
    BlockWords block;
    for (const Digit& digit : packing.digits) add_digits(rows, digit, begin, end, block);
    if (rows.is_key != nullptr)
      for (std::int64_t i = begin; i < end; ++i) block.outside[i - begin] |= all_bits(!rows.is_key[i]);
    for (std::int64_t i = 0; i < end - begin; ++i) {
      std::uint64_t& word = block.words[i];
      word = (word & ~block.outside[i]) | (packing.outside & block.outside[i]);
    }
    body(static_cast<const std::uint64_t*>(block.words), begin, end);
  });
}

/// Likewise for all rows, on several threads.
template <class Body>
void for_each_words(const KeyRows& rows, const Packing& packing, const Body& body) {
  for_each_part(rows.count, reader_parts(rows.count), [&](int, std::int64_t first, std::int64_t last) {
    for_each_words_of(rows, packing, first, last, body);
  });
}

template <class Word>
void pack_rows(const KeyRows& rows, const Packing& packing, Word* to) {
  for_each_words(rows, packing, [&](const std::uint64_t* words, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = static_cast<Word>(words[i - begin]);
  });
}

/// Lists of more words are beyond the second cache.
constexpr std::uint64_t kNearWords = std::uint64_t{1} << 16;

/// Calls body(i, word) for all rows and their words, which are places in a list: entries beyond the cache are asked for
/// while the rows of the block before go their way.
template <class Body>
void for_each_listed(const KeyRows& rows, const Packing& packing, const std::int64_t* list, const Body& body) {
  if (packing.outside <= kNearWords)
    return for_each_words(rows, packing, [&](const std::uint64_t* words, std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(i, words[i - begin]);
    });
  for_each_part(rows.count, reader_parts(rows.count), [&](int, std::int64_t first, std::int64_t last) {
    std::uint64_t asked[kBlock];
    std::int64_t count = 0;
    for_each_words_of(rows, packing, first, last,
                      [&](const std::uint64_t* words, std::int64_t begin, std::int64_t end) {
                        for (std::int64_t i = 0; i < end - begin; ++i) {
                          __builtin_prefetch(list + words[i]);
                          if (count != 0) body(begin - kBlock + i, asked[i]);
                        }
                        for (std::int64_t i = end - begin; i < count; ++i) body(begin - kBlock + i, asked[i]);
                        count = end - begin;
                        std::copy_n(words, count, asked);
                      });
    for (std::int64_t i = 0; i < count; ++i) body(last - count + i, asked[i]);
  });
}

/// Loads words of a row's hash.
struct LoadBytes {
  const std::byte* from;
  std::uint64_t operator()(std::int64_t begin, std::int64_t count) const {
    return detail::load_short(from + begin, count);
  }
};

/// hashes[i] with entry begin + i of the column.
void hash_column(const KeyColumn& column, std::int64_t begin, std::int64_t end, bool by_value,
                 const RowSecrets& secrets, std::uint64_t* hashes) {
  const NumberFormat format = number_format(column.dtype, 1);
  const std::int64_t bytes = column.bytes();
  const auto run = [&](const auto& next) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::uint64_t& hash = hashes[i - begin];
      hash = column.valid == nullptr || column.valid[i] ? next(hash, i) : hash_null(hash, secrets);
    }
  };
  if (column.offsets != nullptr)
    return run([&](std::uint64_t hash, std::int64_t i) {
      return hash_string(hash, column.offsets[i + 1] - column.offsets[i], secrets,
                         LoadBytes{bytes_of(column) + column.offsets[i]});
    });
  if (by_value && is_integer(column.dtype))
    return run([&](std::uint64_t hash, std::int64_t i) {
      const std::byte* const entry = bytes_of(column) + i * bytes;
      const std::int64_t width = format.bits / 8;
      for (std::int64_t b = 0; b < bytes; b += width) {
        const std::uint64_t number = extended(detail::load_short(entry + b, width), format);
        hash = hash_value(hash, number, is_negative(number, format), secrets);
      }
      return hash;
    });
  // The widths of one and two words are known when this is compiled.
  const auto run_bytes = [&](auto width) {
    run([&](std::uint64_t hash, std::int64_t i) {
      return hash_bytes(hash, width, format, secrets, LoadBytes{bytes_of(column) + i * width});
    });
  };
  if (bytes == 4) return run_bytes(std::integral_constant<std::int64_t, 4>());
  if (bytes == 8) return run_bytes(std::integral_constant<std::int64_t, 8>());
  if (bytes == 12) return run_bytes(std::integral_constant<std::int64_t, 12>());
  if (bytes == 16) return run_bytes(std::integral_constant<std::int64_t, 16>());
  if (bytes == 24) return run_bytes(std::integral_constant<std::int64_t, 24>());
  if (bytes == 32) return run_bytes(std::integral_constant<std::int64_t, 32>());
  run_bytes(bytes);
}

/// Rows that are compared together: those of the next such block are asked for meanwhile.
constexpr std::int64_t kCompared = 64;

/// A row of each side.
struct Pair {
  std::int64_t a;
  std::int64_t b;
};

/// Are `bytes` bytes of numbers equal?
bool equal_numbers(const std::byte* a, const std::byte* b, std::int64_t bytes, const NumberFormat& format) {
  if (format.compares_bits()) {
    if (bytes > 32) return std::memcmp(a, b, static_cast<std::size_t>(bytes)) == 0;
    if (bytes >= 8) {
      std::uint64_t differ = 0;
      for (std::int64_t at = 0; at + 8 < bytes; at += 8)
        differ |= detail::load_whole<std::uint64_t>(a + at) ^ detail::load_whole<std::uint64_t>(b + at);
      differ |= detail::load_whole<std::uint64_t>(a + bytes - 8) ^ detail::load_whole<std::uint64_t>(b + bytes - 8);
      return differ == 0;
    }
    return bytes == 0 || detail::load_short(a, bytes) == detail::load_short(b, bytes);
  }
  for (std::int64_t at = 0; at < bytes; at += 8) {
    const std::int64_t count = std::min<std::int64_t>(8, bytes - at);
    if (canonical(detail::load_short(a + at, count), format) != canonical(detail::load_short(b + at, count), format))
      return false;
  }
  return true;
}

bool equal_bytes(const std::byte* a, const std::byte* b, std::int64_t bytes) {
  if (bytes > 16) return std::memcmp(a, b, static_cast<std::size_t>(bytes)) == 0;
  if (bytes >= 8) {
    const auto differ = [&](std::int64_t at) {
      return detail::load_whole<std::uint64_t>(a + at) ^ detail::load_whole<std::uint64_t>(b + at);
    };
    return (differ(0) | differ(bytes - 8)) == 0;
  }
  return bytes == 0 || detail::load_short(a, bytes) == detail::load_short(b, bytes);
}

bool equal_strings(const KeyColumn& a, const KeyColumn& b, const Pair& pair) {
  const std::int64_t at_a = a.offsets[pair.a];
  const std::int64_t at_b = b.offsets[pair.b];
  const std::int64_t bytes = a.offsets[pair.a + 1] - at_a;
  return bytes == b.offsets[pair.b + 1] - at_b && equal_bytes(bytes_of(a) + at_a, bytes_of(b) + at_b, bytes);
}

bool equal_entries(const KeyColumn& a, const KeyColumn& b, const Pair& pair) {
  if (a.offsets != nullptr) return equal_strings(a, b, pair);
  const std::byte* const at_a = bytes_of(a) + pair.a * a.bytes();
  const std::byte* const at_b = bytes_of(b) + pair.b * b.bytes();
  if (a.dtype == b.dtype) return equal_numbers(at_a, at_b, a.bytes(), number_format(a.dtype, 1));
  const NumberFormat format_a = number_format(a.dtype, 1);
  const NumberFormat format_b = number_format(b.dtype, 1);
  for (std::int64_t e = 0; e < a.elements; ++e) {
    const std::uint64_t in_a =
        extended(detail::load_short(at_a + e * (format_a.bits / 8), format_a.bits / 8), format_a);
    const std::uint64_t in_b =
        extended(detail::load_short(at_b + e * (format_b.bits / 8), format_b.bits / 8), format_b);
    if (in_a != in_b || is_negative(in_a, format_a) != is_negative(in_b, format_b)) return false;
  }
  return true;
}

bool equal_columns(const KeyColumn& a, const KeyColumn& b, const Pair* pairs, std::int64_t count) {
  bool equal = true;
  for (std::int64_t j = 0; j < count; ++j) {
    const bool valid_a = a.valid == nullptr || a.valid[pairs[j].a];
    const bool valid_b = b.valid == nullptr || b.valid[pairs[j].b];
    equal &= valid_a == valid_b && (!valid_a || equal_entries(a, b, pairs[j]));
  }
  return equal;
}

/// Are the rows of both one number, or several, that compare as bits?
bool compare_bits(const KeyRows& a, const KeyRows& b) {
  const KeyColumn& column = a.columns[0];
  return a.columns.size() == 1 && a.is_key == nullptr && b.is_key == nullptr && column.valid == nullptr &&
         b.columns[0].valid == nullptr && column.offsets == nullptr && column.dtype == b.columns[0].dtype &&
         column.bytes() >= 8 && number_format(column.dtype, 1).compares_bits();
}

/// The same for rows [begin, end) of `a` and rows of `b` by their numbers, where these are bits. Bytes: a number that
/// is known when this is compiled, or not.
template <class Bytes>
bool equal_bits(const std::byte* a, const std::byte* b, Bytes bytes, const std::int64_t* numbers, std::int64_t begin,
                std::int64_t end) {
  std::uint64_t differ = 0;
  const auto compare = [&](std::int64_t j) {
    if (numbers[j] < 0) return;
    const std::byte* const at_a = a + j * bytes;
    const std::byte* const at_b = b + numbers[j] * bytes;
    for (std::int64_t at = 0; at + 8 < bytes; at += 8)
      differ |= detail::load_whole<std::uint64_t>(at_a + at) ^ detail::load_whole<std::uint64_t>(at_b + at);
    differ |= detail::load_whole<std::uint64_t>(at_a + bytes - 8) ^ detail::load_whole<std::uint64_t>(at_b + bytes - 8);
  };
  const std::int64_t last_asked = std::max(begin, end - kCompared);
  for (std::int64_t j = begin; j < last_asked; ++j) {
    __builtin_prefetch(b + std::max<std::int64_t>(numbers[j + kCompared], 0) * bytes);
    compare(j);
  }
  for (std::int64_t j = last_asked; j < end; ++j) compare(j);
  return differ == 0;
}

bool equal_bits(const KeyColumn& a, const KeyColumn& b, const std::int64_t* numbers, std::int64_t begin,
                std::int64_t end) {
  const auto run = [&](auto bytes) { return equal_bits(bytes_of(a), bytes_of(b), bytes, numbers, begin, end); };
  switch (a.bytes()) {
    case 8:
      return run(std::integral_constant<std::int64_t, 8>());
    case 12:
      return run(std::integral_constant<std::int64_t, 12>());
    case 16:
      return run(std::integral_constant<std::int64_t, 16>());
    case 24:
      return run(std::integral_constant<std::int64_t, 24>());
    case 32:
      return run(std::integral_constant<std::int64_t, 32>());
    default:
      return run(a.bytes());
  }
}

/// Are the rows of both one string each, without nulls?
bool are_strings(const KeyRows& a, const KeyRows& b) {
  const KeyColumn& column = a.columns[0];
  return a.columns.size() == 1 && a.is_key == nullptr && b.is_key == nullptr && column.valid == nullptr &&
         b.columns[0].valid == nullptr && column.offsets != nullptr;
}

/// The same as equal_bits() of strings: where they lie is asked for first, and then their bytes.
bool equal_strings(const KeyColumn& a, const KeyColumn& b, const std::int64_t* numbers, std::int64_t begin,
                   std::int64_t end) {
  const auto number = [&](std::int64_t j) { return std::max<std::int64_t>(numbers[std::min(j, end - 1)], 0); };
  for (std::int64_t j = begin; j < end; ++j) {
    __builtin_prefetch(b.offsets + number(j + kCompared));
    __builtin_prefetch(bytes_of(b) + b.offsets[number(j + kCompared / 2)]);
    if (numbers[j] >= 0 && !equal_strings(a, b, {j, numbers[j]})) return false;
  }
  return true;
}

/// Asks for a row, of strings for where they lie.
void ask_for(const KeyRows& rows, std::int64_t row) {
  for (const KeyColumn& column : rows.columns) {
    if (column.offsets != nullptr)
      __builtin_prefetch(column.offsets + row);
    else
      __builtin_prefetch(bytes_of(column) + row * column.bytes());
    if (column.valid != nullptr) __builtin_prefetch(column.valid + row);
  }
}

/// Two words that have the order of a part of an entry.
struct OrderPart {
  std::uint64_t high;
  std::uint64_t low;
};

OrderPart order_of_string(const KeyColumn& column, std::int64_t i, std::int64_t part) {
  const std::int64_t left = std::max<std::int64_t>(0, column.offsets[i + 1] - column.offsets[i] - 8 * part);
  if (left == 0) return {0, 0};
  const std::byte* const from = bytes_of(column) + column.offsets[i] + 8 * part;
  const std::int64_t bytes = std::min<std::int64_t>(left, 8);
  return {__builtin_bswap64(detail::load_short(from, bytes)),
          static_cast<std::uint64_t>(std::min<std::int64_t>(left, 9))};
}

OrderPart order_of_number(const std::byte* at, std::int64_t width, const NumberFormat& format) {
  const Uint128 word = order_word(canonical(load_low_bytes<Uint128>(at, width), format), format);
  return {word.high, word.low};
}

class HostColumnKeys final : public ColumnKeys {
 public:
  void pack(DeviceContext&, const KeyRows& rows, const Packing& packing, void* words, Stream) const override {
    if (packing.bytes() == 4)
      pack_rows(rows, packing, static_cast<std::uint32_t*>(words));
    else
      pack_rows(rows, packing, static_cast<std::uint64_t*>(words));
  }

  void list_numbers(DeviceContext&, const KeyRows& rows, const Packing& packing, const std::int64_t* codes,
                    std::int64_t* numbers, Stream) const override {
    std::fill_n(numbers, packing.outside, -1);
    for_each_listed(rows, packing, numbers, [=, outside = packing.outside](std::int64_t i, std::uint64_t word) {
      if (word == outside) return;
      const std::atomic_ref number(numbers[word]);  // equal rows write the same
      if (number.load(std::memory_order_relaxed) != codes[i]) number.store(codes[i], std::memory_order_relaxed);
    });
  }

  std::int64_t number_listed(DeviceContext& context, const KeyRows& rows, const Packing& packing, bool sorted,
                             std::int64_t* codes, std::int64_t* firsts, Stream stream) const override {
    const std::vector<std::int64_t> first_rows = find_first_rows(rows, packing);
    std::vector<std::size_t> words;
    for (std::size_t word = 0; word < first_rows.size(); ++word)
      if (first_rows[word] != kNowhere) words.push_back(word);
    if (!sorted) std::ranges::sort(words, {}, [&](std::size_t word) { return first_rows[word]; });
    std::vector<std::int64_t> numbers = scratch<std::int64_t>(static_cast<std::int64_t>(first_rows.size()));
    std::int64_t count = 0;
    for (const std::size_t word : words) {
      firsts[count] = first_rows[word];
      numbers[word] = count++;
    }
    find_listed(context, rows, packing, numbers.data(), codes, stream);
    return count;
  }

  void find_listed(DeviceContext&, const KeyRows& rows, const Packing& packing, const std::int64_t* numbers,
                   std::int64_t* codes, Stream) const override {
    if (packing.outside == 0) {  // then the list has no entry
      std::fill_n(codes, rows.count, -1);
      return;
    }
    for_each_listed(rows, packing, numbers, [=, outside = packing.outside](std::int64_t i, std::uint64_t word) {
      const bool is_outside = word == outside;
      codes[i] = numbers[is_outside ? 0 : word] | static_cast<std::int64_t>(all_bits(is_outside));
    });
  }

  void fingerprint(DeviceContext&, const KeyRows& rows, std::uint64_t seed, bool by_value, std::uint64_t mask,
                   std::uint64_t* words, Stream) const override {
    const RowSecrets secrets = row_secrets(seed);
    for_each_block(rows.count, [&](std::int64_t begin, std::int64_t end) {
      std::uint64_t* const hashes = words + begin;
      std::fill(hashes, words + end, secrets.begin);
      for (const KeyColumn& column : rows.columns) hash_column(column, begin, end, by_value, secrets, hashes);
      for (std::int64_t i = begin; i < end; ++i)
        words[i] = rows.is_key == nullptr || rows.is_key[i] ? words[i] & mask : 0;
    });
  }

  bool all_equal(DeviceContext&, const KeyRows& a, const KeyRows& b, const std::int64_t* numbers,
                 Stream) const override {
    const bool bits = compare_bits(a, b);
    const bool strings = are_strings(a, b);
    std::atomic<bool> equal{true};
    for_each_part(a.count, reader_parts(a.count), [&](int, std::int64_t first, std::int64_t last) {
      in_pieces(first, last, kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
        if (!equal.load(std::memory_order_relaxed)) return;
        if (!(bits      ? equal_bits(a.columns[0], b.columns[0], numbers, begin, end)
              : strings ? equal_strings(a.columns[0], b.columns[0], numbers, begin, end)
                        : equal_in_blocks(a, b, numbers, begin, end)))
          equal.store(false, std::memory_order_relaxed);
      });
    });
    return equal.load();
  }

  void combine_valid(DeviceContext&, Span<const bool* const> masks, std::int64_t count, bool* is_key,
                     Stream) const override {
    for_each_block(count, [&](std::int64_t begin, std::int64_t end) {
      std::fill(is_key + begin, is_key + end, true);
      for (const bool* const mask : masks)
        for (std::int64_t i = begin; i < end; ++i) is_key[i] &= mask[i];
    });
  }

  void mark_numbers(DeviceContext&, const void* values, DType dtype, std::int64_t count, const bool* valid, bool* mask,
                    Stream) const override {
    const NumberFormat format = number_format(dtype, 1);
    visit_float_word(format, [&]<class Word>(Word) {
      const auto* const numbers = static_cast<const Word*>(values);
      for_each_block(count, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) mask[i] = !has_nan(numbers + i * format.elements, format);
        if (valid == nullptr) return;
        for (std::int64_t i = begin; i < end; ++i) mask[i] &= valid[i];
      });
    });
  }

  std::int64_t find_invalid(DeviceContext&, const bool* mask, std::int64_t count, Stream) const override {
    return count == 0 ? 0 : std::find(mask, mask + count, false) - mask;
  }

  std::int64_t leave_out(DeviceContext&, std::int64_t* codes, std::int64_t count, std::int64_t at,
                         Stream) const override {
    const std::int64_t number = codes[at];
    for_each_block(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        codes[i] = codes[i] == number ? -1 : codes[i] - (codes[i] > number ? 1 : 0);
    });
    return number;
  }

  void renumber(DeviceContext&, std::int64_t* codes, std::int64_t count, const std::int64_t* numbers,
                Stream) const override {
    for_each_block(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        if (codes[i] >= 0) codes[i] = numbers[codes[i]];
    });
  }

  void mask_codes(DeviceContext&, std::int64_t* codes, std::int64_t count, const bool* is_key, Stream) const override {
    for_each_block(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        if (!is_key[i]) codes[i] = -1;
    });
  }

  void mark_found(DeviceContext&, const std::int64_t* codes, std::int64_t count, bool invert, bool* mask,
                  Stream) const override {
    for_each_block(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) mask[i] = (codes[i] >= 0) != invert;
    });
  }

  void take(DeviceContext&, Span<const TakenColumn> columns, std::optional<std::int64_t> rows,
            const std::int64_t* index, std::int64_t count, Stream) const override {
    take_columns(columns, rows, index, count);
  }
  std::int64_t take_offsets(DeviceContext&, const std::int64_t* offsets, std::int64_t rows, const std::int64_t* index,
                            std::int64_t count, std::int64_t* out, Stream) const override {
    return take_string_offsets(offsets, rows, index, count, out);
  }
  void take_bytes(DeviceContext&, const void* data, const std::int64_t* offsets, const std::int64_t* index,
                  std::int64_t count, const std::int64_t* out_offsets, void* out, Stream) const override {
    take_string_bytes(data, offsets, index, count, out_offsets, out);
  }

  void order_words(DeviceContext&, const KeyColumn& column, std::int64_t count, std::int64_t part, std::uint64_t* words,
                   Stream) const override {
    const NumberFormat format = number_format(column.dtype, 1);
    const std::int64_t width = static_cast<std::int64_t>(itemsize(column.dtype));
    for_each_block(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const OrderPart word =
            column.offsets != nullptr
                ? order_of_string(column, i, part)
                : order_of_number(bytes_of(column) + i * column.bytes() + part * width, width, format);
        words[2 * i] = word.high;
        words[2 * i + 1] = word.low;
      }
    });
  }

  bool is_all_zero(DeviceContext&, const std::uint64_t* words, std::int64_t count, Stream) const override {
    return std::all_of(words, words + count, [](std::uint64_t word) { return word == 0; });
  }

  void count_up(DeviceContext&, std::int64_t* out, std::int64_t count, Stream) const override {
    for_each_block(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = i;
    });
  }

 protected:
  std::vector<NumberRange> find_ranges(DeviceContext&, const KeyRows& rows, const std::vector<Digit>& digits,
                                       Stream) const override {
    const int parts = reader_parts(rows.count);
    std::vector<std::vector<NumberRange>> of_parts(static_cast<std::size_t>(parts));
    for_each_part(rows.count, parts, [&](int part, std::int64_t first, std::int64_t last) {
      std::vector<NumberRange> ranges(digits.size());
      in_pieces(first, last, kKeysPerPiece, [&](std::int64_t begin, std::int64_t end) {
        for (; begin < end; begin += kSeen)
          for (std::size_t d = 0; d < digits.size(); ++d) {
            const NumberRange range = range_of(rows, digits[d], begin, std::min(begin + kSeen, end));
            ranges[d].least = std::min(ranges[d].least, range.least);
            ranges[d].most = std::max(ranges[d].most, range.most);
          }
      });
      of_parts[static_cast<std::size_t>(part)] = std::move(ranges);
    });
    std::vector<NumberRange> all(digits.size());
    for (const auto& ranges : of_parts)
      for (std::size_t d = 0; d < ranges.size(); ++d) {
        all[d].least = std::min(all[d].least, ranges[d].least);
        all[d].most = std::max(all[d].most, ranges[d].most);
      }
    return all;
  }

 private:
  static constexpr std::int64_t kNowhere = std::numeric_limits<std::int64_t>::max();

  /// The first row of each word, kNowhere where there is none: [packing.outside].
  static std::vector<std::int64_t> find_first_rows(const KeyRows& rows, const Packing& packing) {
    const int parts = reader_parts(rows.count);
    const auto words = static_cast<std::int64_t>(packing.outside);
    std::vector<std::vector<std::int64_t>> of_parts(static_cast<std::size_t>(parts));
    for_each_part(rows.count, parts, [&](int part, std::int64_t first, std::int64_t last) {
      auto& found = of_parts[static_cast<std::size_t>(part)] = scratch<std::int64_t>(words + 1);  // and `outside`
      std::ranges::fill(found, kNowhere);
      for_each_words_of(rows, packing, first, last,
                        [&](const std::uint64_t* of_rows, std::int64_t begin, std::int64_t end) {
                          for (std::int64_t i = begin; i < end; ++i)
                            if (std::int64_t& row = found[of_rows[i - begin]]; row == kNowhere) row = i;
                        });
    });
    std::vector<std::int64_t> all = std::move(of_parts[0]);
    for (std::size_t part = 1; part < of_parts.size(); ++part)
      for (std::size_t word = 0; word < all.size(); ++word) all[word] = std::min(all[word], of_parts[part][word]);
    all.pop_back();
    return all;
  }

  static bool equal_in_blocks(const KeyRows& a, const KeyRows& b, const std::int64_t* numbers, std::int64_t begin,
                              std::int64_t end) {
    const auto ask_for_block = [&](std::int64_t from) {
      for (std::int64_t j = from; j < std::min(from + kCompared, end); ++j)
        if (numbers[j] >= 0) ask_for(b, numbers[j]);
    };
    ask_for_block(begin);
    for (std::int64_t from = begin; from < end; from += kCompared) {
      ask_for_block(from + kCompared);
      Pair pairs[kCompared];
      std::int64_t count = 0;
      for (std::int64_t j = from; j < std::min(from + kCompared, end); ++j)
        if (numbers[j] >= 0) pairs[count++] = {j, numbers[j]};
      if (!equal_rows(a, b, pairs, count)) return false;
    }
    return true;
  }

  /// Of rows that are no keys only whether both are.
  static bool equal_rows(const KeyRows& a, const KeyRows& b, Pair* pairs, std::int64_t count) {
    if (a.is_key != nullptr || b.is_key != nullptr) {
      std::int64_t kept = 0;
      for (std::int64_t j = 0; j < count; ++j) {
        const bool key_a = a.is_key == nullptr || a.is_key[pairs[j].a];
        const bool key_b = b.is_key == nullptr || b.is_key[pairs[j].b];
        if (key_a != key_b) return false;
        if (key_a) pairs[kept++] = pairs[j];
      }
      count = kept;
    }
    for (std::size_t c = 0; c < a.columns.size(); ++c)
      if (!equal_columns(a.columns[c], b.columns[c], pairs, count)) return false;
    return true;
  }
};

}  // namespace

const ColumnKeys& HostAlgorithms::column_keys() {
  static const auto& column_keys = *new HostColumnKeys;  // never destroyed: threads may work at exit
  return column_keys;
}

}  // namespace gpuhash::host
