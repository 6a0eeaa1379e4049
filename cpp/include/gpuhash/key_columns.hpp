#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <gpuhash/device_context.hpp>
#include <gpuhash/dtype.hpp>
#include <gpuhash/export.hpp>
#include <gpuhash/span.hpp>

namespace gpuhash {

/// A column of keys of any width, dense, in the context's memory. Entries compare as Factorization compares keys.
struct KeyColumn {
  const void* data = nullptr;  // [n, elements]; of strings their bytes
  DType dtype = DType::kInt64;
  std::int64_t elements = 1;              // per entry; of strings 1
  const bool* valid = nullptr;            // [n], false: a null, which equals nulls alone; null: there are none
  const std::int64_t* offsets = nullptr;  // [n + 1], entry i is bytes [offsets[i], offsets[i + 1]); null: no strings

  std::int64_t bytes() const { return static_cast<std::int64_t>(itemsize(dtype)) * elements; }
};

/// Rows of one or more columns, each row a key.
struct KeyRows {
  std::vector<KeyColumn> columns;
  std::int64_t count = 0;
  const bool* is_key = nullptr;  // [n], false: the row is no key, and all such are alike; null: all are keys
};

/// The numbers of a column that occur, as order words (shared/key_numbers.hpp): none where least > most.
struct NumberRange {
  std::uint64_t least = ~std::uint64_t{0};
  std::uint64_t most = 0;
};

/// What one number of each row adds to the row's word.
struct Digit {
  std::int64_t column = 0;
  std::int64_t element = 0;
  DType dtype = DType::kInt64;
  std::uint64_t least = 0;   // order word that has the digit `base`
  std::uint64_t most = 0;    // last order word that has a digit: none has where most < least
  std::uint64_t base = 0;    // digits are base + (order word - least)
  std::uint64_t null = 0;    // the digit of a null
  bool has_null = true;      // false: a null is outside
  std::uint64_t factor = 1;  // what a digit counts
};

/// How rows become words that tell them apart: a word is the sum of its digits, and words have the rows' order, with
/// nulls last.
struct Packing {
  std::vector<Digit> digits;
  std::uint64_t outside = 0;  // the word of rows that are no keys, or have a number without a digit; above all others

  /// Bytes of a word, 4 or 8.
  std::int64_t bytes() const { return outside >> 32 == 0 ? 4 : 8; }
  /// The same words for rows of columns that may be of other integer dtypes.
  GPUHASH_API Packing of(const std::vector<KeyColumn>& columns) const;
};

/// A column of which entries are taken.
struct TakenColumn {
  const void* data = nullptr;  // [rows, bytes]
  std::int64_t bytes = 8;      // per entry
  const void* fill = nullptr;  // [bytes], the entry of negative indices; null: zeros
  void* out = nullptr;         // [count, bytes]
  bool is_bool = false;        // bytes but 0 become 1
};

/// Keys of any width, and of several columns: as words that tell them apart where that is possible, and otherwise by
/// fingerprints, which is exact once all_equal() has said that rows of one fingerprint are equal. All work is enqueued
/// on the stream. What gives an answer to the host waits.
class GPUHASH_API ColumnKeys {
 public:
  virtual ~ColumnKeys() = default;
  /// That of the context's platform.
  static const ColumnKeys& of(const DeviceContext& context);

  /// How to pack the rows, from the numbers that occur in them: nothing where they have more than 2^64 - 1 words, or
  /// columns that are no single numbers. Waits.
  std::optional<Packing> find_packing(DeviceContext&, const KeyRows&, Stream) const;
  /// words [n], of packing.bytes() each. The packing is that of these columns' dtypes.
  virtual void pack(DeviceContext&, const KeyRows&, const Packing&, void* words, Stream) const = 0;
  /// The words that occur get numbers in order of first occurrence, or of the words: codes [n], -1 for packing.outside,
  /// and firsts [packing.outside], the first row of each number. Returns how many there are. For words of 4 bytes, and
  /// few of them. Waits for the number.
  virtual std::int64_t number_listed(DeviceContext&, const KeyRows&, const Packing&, bool sorted, std::int64_t* codes,
                                     std::int64_t* firsts, Stream) const = 0;
  /// numbers[word] = codes[i], where word is that of row i; -1 where no row has the word. numbers [packing.outside].
  virtual void list_numbers(DeviceContext&, const KeyRows&, const Packing&, const std::int64_t* codes,
                            std::int64_t* numbers, Stream) const = 0;
  /// codes[i] = numbers[word of row i]; -1 where the word is packing.outside.
  virtual void find_listed(DeviceContext&, const KeyRows&, const Packing&, const std::int64_t* numbers,
                           std::int64_t* codes, Stream) const = 0;
  /// words [n]: hashes of whole rows, equal for equal rows. by_value: of integers that shall equal those of other
  /// dtypes. Only the bits of `mask` are kept.
  virtual void fingerprint(DeviceContext&, const KeyRows&, std::uint64_t seed, bool by_value, std::uint64_t mask,
                           std::uint64_t* words, Stream) const = 0;
  /// Is row j of `a` equal to row numbers[j] of `b`, for all j with numbers[j] >= 0? numbers [a.count]. Columns differ
  /// in dtype only if both are integers. Waits.
  virtual bool all_equal(DeviceContext&, const KeyRows& a, const KeyRows& b, const std::int64_t* numbers,
                         Stream) const = 0;

  /// is_key[i]: none of the masks [n] is false at i.
  virtual void combine_valid(DeviceContext&, Span<const bool* const> masks, std::int64_t count, bool* is_key,
                             Stream) const = 0;
  /// mask[i]: values[i], of floats or complex ones, is not NaN, and valid[i] is not false. valid: [count], or null.
  virtual void mark_numbers(DeviceContext&, const void* values, DType, std::int64_t count, const bool* valid,
                            bool* mask, Stream) const = 0;
  /// The first i with a false mask[i]; count where there is none. Waits.
  virtual std::int64_t find_invalid(DeviceContext&, const bool* mask, std::int64_t count, Stream) const = 0;
  /// Codes [n] without the number that codes[at] is: it becomes -1, and those above it one less. Returns it. Waits.
  virtual std::int64_t leave_out(DeviceContext&, std::int64_t* codes, std::int64_t count, std::int64_t at,
                                 Stream) const = 0;
  /// codes[i] = numbers[codes[i]], where that is not negative.
  virtual void renumber(DeviceContext&, std::int64_t* codes, std::int64_t count, const std::int64_t* numbers,
                        Stream) const = 0;
  /// codes[i] = -1 where is_key[i] is false.
  virtual void mask_codes(DeviceContext&, std::int64_t* codes, std::int64_t count, const bool* is_key,
                          Stream) const = 0;
  /// mask[i] = (codes[i] >= 0) != invert.
  virtual void mark_found(DeviceContext&, const std::int64_t* codes, std::int64_t count, bool invert, bool* mask,
                          Stream) const = 0;

  /// out[j] = data[index[j]] of every column, or its fill. std::out_of_range where an index is `rows` or more, before
  /// anything is written; waits for that. No `rows`: the caller knows that none is.
  virtual void take(DeviceContext&, Span<const TakenColumn>, std::optional<std::int64_t> rows,
                    const std::int64_t* index, std::int64_t count, Stream) const = 0;
  /// The offsets [count + 1] of taken strings; those of negative indices are empty. Returns the last one. Waits.
  virtual std::int64_t take_offsets(DeviceContext&, const std::int64_t* offsets, std::int64_t rows,
                                    const std::int64_t* index, std::int64_t count, std::int64_t* out, Stream) const = 0;
  /// Their bytes.
  virtual void take_bytes(DeviceContext&, const void* data, const std::int64_t* offsets, const std::int64_t* index,
                          std::int64_t count, const std::int64_t* out_offsets, void* out, Stream) const = 0;
  /// words [n, 2], which have the order of one part of each entry: of the number `part`, or of bytes [8 * part, 8 *
  /// part
  /// + 8) of strings, of which all parts together have the order. Nulls get any.
  virtual void order_words(DeviceContext&, const KeyColumn&, std::int64_t count, std::int64_t part,
                           std::uint64_t* words, Stream) const = 0;
  /// Are all words 0? Waits.
  virtual bool is_all_zero(DeviceContext&, const std::uint64_t* words, std::int64_t count, Stream) const = 0;
  /// out[i] = i.
  virtual void count_up(DeviceContext&, std::int64_t* out, std::int64_t count, Stream) const = 0;

 protected:
  /// Of numbers [digits.size()], where they are valid. `digits` says where they are, and nothing else.
  virtual std::vector<NumberRange> find_ranges(DeviceContext&, const KeyRows&, const std::vector<Digit>& digits,
                                               Stream) const = 0;
};

}  // namespace gpuhash
