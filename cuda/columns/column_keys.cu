#include <gpuhash/key_columns.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/columns/entries.cuh"
#include "cuda/columns/listed_words.cuh"
#include "cuda/columns/packed_rows.cuh"
#include "cuda/columns/taken.hpp"
#include "cuda/executor.hpp"
#include "cuda/factorize/first_bits.cuh"
#include "cuda/launch.cuh"
#include "cuda/stream.hpp"
#include "shared/row_hash.hpp"

namespace gpuhash::cuda {
namespace {

/// Of the order words of numbers. All zeros: there are none.
struct DeviceRange {
  Counter below;  // the least one, inverted
  Counter most;
};

/// Enough for all multiprocessors, and so few that hardly any wait for each other to write the range.
constexpr unsigned kMostRangeBlocks = 4 * 132;

/// Calls visit(order) for a block's share of numbers that lie side by side and compare as their bits.
template <class Number, class Visit>
__device__ __forceinline__ void visit_integers(const DigitColumn& column, std::int64_t count, Visit visit) {
  const auto* const numbers = reinterpret_cast<const Number*>(column.first);
  const Number sign = column.format.is_signed ? Number{1} << (8 * sizeof(Number) - 1) : Number{0};
  const std::int64_t stride = std::int64_t{gridDim.x} * (kRows * kColumnBlock);
  for (std::int64_t first = first_row_of_thread(); first < count; first += stride) {
    std::int64_t rows[kRows];
    Number read[kRows];
    rows_from(first, count, rows);
#pragma unroll
    for (int r = 0; r < kRows; ++r) read[r] = numbers[rows[r] < 0 ? first : rows[r]];
#pragma unroll
    for (int r = 0; r < kRows; ++r) visit(static_cast<Number>(read[r] ^ sign));
  }
}

/// The same, of any numbers that are no nulls.
template <class Visit>
__device__ __forceinline__ void visit_numbers(const DigitColumn& column, std::int64_t count, Visit visit) {
  const std::int64_t stride = std::int64_t{gridDim.x} * (kRows * kColumnBlock);
  for (std::int64_t first = first_row_of_thread(); first < count; first += stride) {
    std::int64_t rows[kRows];
    bool is_valid[kRows];
    std::uint64_t orders[kRows];
    rows_from(first, count, rows);
    column.read_valid(rows, is_valid);
    column.read_orders(rows, orders);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (is_valid[r]) visit(orders[r]);
  }
}

/// Keeps the least and the greatest of what it is called with.
template <class Number>
struct RangeOf {
  Number least = static_cast<Number>(~Number{0});
  Number most = 0;
  __device__ __forceinline__ void operator()(Number order) {
    least = min(least, order);
    most = max(most, order);
  }
};

/// Digit blockIdx.y of all rows.
__global__ void __launch_bounds__(kColumnBlock)
    find_ranges_kernel(const __grid_constant__ Several<DigitColumn> digits, std::int64_t count, DeviceRange* ranges) {
  const DigitColumn& column = digits.items[blockIdx.y];
  RangeOf<Counter> range;
  if (column.plain_width() == 4) {
    RangeOf<unsigned> narrow;
    visit_integers<unsigned>(column, count, [&](unsigned order) { narrow(order); });
    if (narrow.least <= narrow.most) range = {narrow.least, narrow.most};
  } else if (column.plain_width() == 8) {
    visit_integers<Counter>(column, count, [&](Counter order) { range(order); });
  } else {
    visit_numbers(column, count, [&](std::uint64_t order) { range(order); });
  }
  __shared__ DeviceRange of_warps[kColumnBlock / 32];
  DeviceRange mine{~range.least, range.most};
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    mine.below = max(mine.below, __shfl_xor_sync(~0u, mine.below, lanes));
    mine.most = max(mine.most, __shfl_xor_sync(~0u, mine.most, lanes));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const DeviceRange& other : of_warps) mine = {max(mine.below, other.below), max(mine.most, other.most)};
  DeviceRange* const all = ranges + blockIdx.y;
  if (mine.below > __ldcg(&all->below)) atomicMax(&all->below, mine.below);
  if (mine.most > __ldcg(&all->most)) atomicMax(&all->most, mine.most);
}

template <class Rows, class Word>
__global__ void __launch_bounds__(kColumnBlock) pack_kernel(const __grid_constant__ Rows rows, Word* words) {
  rows.template visit<Word>(first_row_of_thread(), [&](std::int64_t row, Word word) { words[row] = word; });
}

/// Equal rows write the same.
__global__ void __launch_bounds__(kColumnBlock)
    list_numbers_kernel(PackedRows packed, const std::int64_t* codes, std::int64_t* numbers) {
  packed.visit<std::uint64_t>(first_row_of_thread(), [&](std::int64_t row, std::uint64_t word) {
    if (word != packed.outside) numbers[word] = codes[row];
  });
}

__global__ void __launch_bounds__(kColumnBlock)
    find_listed_kernel(PackedRows packed, const std::int64_t* numbers, std::int64_t* codes) {
  packed.visit<std::uint64_t>(first_row_of_thread(), [&](std::int64_t row, std::uint64_t word) {
    codes[row] = word == packed.outside ? -1 : numbers[word];
  });
}

__device__ __forceinline__ std::uint64_t hash_entry(std::uint64_t hash, const EntryColumn& column, std::int64_t row,
                                                    bool by_value, const RowSecrets& secrets) {
  if (!column.is_valid(row)) return hash_null(hash, secrets);
  const std::byte* const entry = column.entry(row);
  const auto load = [&](std::int64_t begin, std::int64_t count) { return column.load(entry, begin, count); };
  if (column.offsets != nullptr) return hash_string(hash, column.length(row), secrets, load);
  if (!by_value || !column.is_integer) return hash_bytes(hash, column.bytes, column.format, secrets, load);
  const std::int64_t width = column.format.bits / 8;
  for (std::int64_t at = 0; at < column.bytes; at += width) {
    const std::uint64_t number = extended(load(at, width), column.format);
    hash = hash_value(hash, number, is_negative(number, column.format), secrets);
  }
  return hash;
}

struct FingerprintPass {
  RowSecrets secrets;
  std::uint64_t mask;
  const bool* is_key;
  bool by_value;
  bool is_first;  // of the launches that the columns take
  bool is_last;
};

__global__ void __launch_bounds__(kColumnBlock)
    fingerprint_kernel(Several<EntryColumn> columns, std::int64_t count, FingerprintPass pass, std::uint64_t* words) {
  const std::int64_t row = row_of_thread();
  if (row >= count) return;
  std::uint64_t hash = pass.is_first ? pass.secrets.begin : words[row];
  for (int c = 0; c < columns.count; ++c) hash = hash_entry(hash, columns.items[c], row, pass.by_value, pass.secrets);
  if (pass.is_last) hash = pass.is_key == nullptr || pass.is_key[row] ? hash & pass.mask : 0;
  words[row] = hash;
}

/// A column of both sides.
struct ComparedColumn {
  EntryColumn a;
  EntryColumn b;
  bool is_by_value;
};

__device__ __forceinline__ bool are_equal(const ComparedColumn& column, std::int64_t row_a, std::int64_t row_b) {
  const EntryColumn& a = column.a;
  const EntryColumn& b = column.b;
  const bool valid = a.is_valid(row_a);
  if (valid != b.is_valid(row_b)) return false;
  if (!valid) return true;
  const std::int64_t bytes = a.length(row_a);
  const std::byte* const in_a = a.entry(row_a);
  const std::byte* const in_b = b.entry(row_b);
  if (column.is_by_value) {
    const std::int64_t width_a = a.format.bits / 8;
    const std::int64_t width_b = b.format.bits / 8;
    for (std::int64_t e = 0; e < bytes / width_a; ++e) {
      const std::uint64_t number_a = extended(a.load(in_a, e * width_a, width_a), a.format);
      const std::uint64_t number_b = extended(b.load(in_b, e * width_b, width_b), b.format);
      if (number_a != number_b || is_negative(number_a, a.format) != is_negative(number_b, b.format)) return false;
    }
    return true;
  }
  if (bytes != b.length(row_b)) return false;
  for (std::int64_t at = 0; at < bytes; at += 8) {
    const std::int64_t count = bytes - at < 8 ? bytes - at : 8;
    if (canonical(a.load(in_a, at, count), a.format) != canonical(b.load(in_b, at, count), b.format)) return false;
  }
  return true;
}

__global__ void __launch_bounds__(kColumnBlock)
    compare_kernel(Several<ComparedColumn> columns, std::int64_t count, const bool* key_a, const bool* key_b,
                   const std::int64_t* numbers, unsigned* differ) {
  const std::int64_t row = row_of_thread();
  if (row >= count) return;
  const std::int64_t other = numbers[row];
  if (other < 0) return;
  const bool is_key = key_a == nullptr || key_a[row];
  bool equal = is_key == (key_b == nullptr || key_b[other]);
  for (int c = 0; c < columns.count && equal && is_key; ++c) equal = are_equal(columns.items[c], row, other);
  if (!equal) *differ = 1;
}

__global__ void __launch_bounds__(kColumnBlock)
    combine_valid_kernel(Several<const bool*> masks, std::int64_t count, bool is_first, bool* is_key) {
  const std::int64_t row = row_of_thread();
  if (row >= count) return;
  bool all = is_first || is_key[row];
  for (int m = 0; m < masks.count; ++m) all = all && masks.items[m][row];
  is_key[row] = all;
}

template <class Word>
__global__ void __launch_bounds__(kColumnBlock)
    mark_numbers_kernel(const Word* numbers, NumberFormat format, std::int64_t count, const bool* valid, bool* mask) {
  const std::int64_t row = row_of_thread();
  if (row < count) mask[row] = (valid == nullptr || valid[row]) && !has_nan(numbers + row * format.elements, format);
}

__global__ void __launch_bounds__(kColumnBlock)
    find_invalid_kernel(const bool* mask, std::int64_t count, Counter* first) {
  const std::int64_t row = row_of_thread();
  if (row < count && !mask[row] && static_cast<Counter>(row) < *first) atomicMin(first, static_cast<Counter>(row));
}

__global__ void __launch_bounds__(kColumnBlock)
    leave_out_kernel(std::int64_t* codes, std::int64_t count, std::int64_t number) {
  const std::int64_t row = row_of_thread();
  if (row >= count) return;
  const std::int64_t code = codes[row];
  if (code >= number) codes[row] = code == number ? -1 : code - 1;
}

__global__ void __launch_bounds__(kColumnBlock)
    renumber_kernel(std::int64_t* codes, std::int64_t count, const std::int64_t* numbers) {
  const std::int64_t row = row_of_thread();
  if (row < count && codes[row] >= 0) codes[row] = numbers[codes[row]];
}

__global__ void __launch_bounds__(kColumnBlock)
    mask_codes_kernel(std::int64_t* codes, std::int64_t count, const bool* is_key) {
  const std::int64_t row = row_of_thread();
  if (row < count && !is_key[row]) codes[row] = -1;
}

__global__ void __launch_bounds__(kColumnBlock)
    mark_found_kernel(const std::int64_t* codes, std::int64_t count, bool invert, bool* mask) {
  const std::int64_t row = row_of_thread();
  if (row < count) mask[row] = (codes[row] >= 0) != invert;
}

/// Words [n, 2]: of a number the high and the low word of its order, of a string 8 bytes and how many there are.
__global__ void __launch_bounds__(kColumnBlock)
    order_words_kernel(EntryColumn column, std::int64_t count, std::int64_t part, int width, std::uint64_t* words) {
  const std::int64_t row = row_of_thread();
  if (row >= count) return;
  const std::byte* const entry = column.entry(row);
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  if (column.offsets != nullptr) {
    const std::int64_t left = column.length(row) - 8 * part;
    const int bytes = static_cast<int>(left < 0 ? 0 : left < 8 ? left : 8);
    for (int b = 0; b < bytes; ++b) high |= column.load(entry, 8 * part + b, 1) << (56 - 8 * b);
    low = static_cast<std::uint64_t>(left < 0 ? 0 : left < 9 ? left : 9);
  } else {
    const std::int64_t begin = part * width;
    Uint128 key{column.load(entry, begin, width < 8 ? width : 8), 0};
    if (width > 8) key.high = column.load(entry, begin + 8, width - 8);
    const Uint128 word = order_word(canonical(key, column.format), column.format);
    high = word.high;
    low = word.low;
  }
  words[2 * row] = high;
  words[2 * row + 1] = low;
}

__global__ void __launch_bounds__(kColumnBlock)
    find_nonzero_kernel(const std::uint64_t* words, std::int64_t count, unsigned* found) {
  const std::int64_t i = row_of_thread();
  if (i < count && words[i] != 0) *found = 1;
}

__global__ void __launch_bounds__(kColumnBlock) count_up_kernel(std::int64_t* out, std::int64_t count) {
  const std::int64_t i = row_of_thread();
  if (i < count) out[i] = i;
}

/// Calls run(several, is_first, is_last) for up to kColumns items at a time, once at least.
template <class Item, class Run>
void in_launches(const std::vector<Item>& items, const Run& run) {
  std::size_t begin = 0;
  do {
    Several<Item> several{};
    const std::size_t end = std::min(items.size(), begin + kColumns);
    for (std::size_t i = begin; i < end; ++i) several.items[several.count++] = items[i];
    run(several, begin == 0, end == items.size());
    begin = end;
  } while (begin < items.size());
}

/// A word on the device that says whether something was found.
class Finding {
 public:
  Finding(DeviceContext& context, Stream stream)
      : context_(context), stream_(stream), word_(scratch<unsigned>(context, 1, stream)) {
    context.fill(word_.get(), 0, word_.bytes(), stream);
  }

  unsigned* get() const { return word_.as<unsigned>(); }
  /// Waits.
  bool is_found() const {
    unsigned found = 0;
    context_.copy_to_host(&found, word_.get(), sizeof found, stream_);
    return found != 0;
  }

 private:
  DeviceContext& context_;
  Stream stream_;
  Allocation word_;
};

class CudaColumnKeys final : public ColumnKeys {
 public:
  void pack(DeviceContext& context, const KeyRows& rows, const Packing& packing, void* words,
            Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const auto pack_as = [&]<class Rows, class Word>(const Rows& packed, Word* out) {
      launch("packing keys", pack_kernel<Rows, Word>, threads_of(rows.count), kColumnBlock, stream, packed, out);
    };
    with_rows(rows, packing, [&](const auto& packed) {
      if (packing.bytes() == 4)
        pack_as(packed, static_cast<std::uint32_t*>(words));
      else
        pack_as(packed, static_cast<std::uint64_t*>(words));
    });
  }

  std::int64_t number_listed(DeviceContext& context, const KeyRows& rows, const Packing& packing, bool sorted,
                             std::int64_t* codes, std::int64_t* firsts, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    if (rows.count == 0) return 0;
    const auto words = static_cast<std::int64_t>(packing.outside);
    const auto outside = static_cast<std::uint32_t>(packing.outside);
    const Allocation of_rows = scratch<std::uint32_t>(context, rows.count, stream);
    pack(context, rows, packing, of_rows.get(), stream);
    const Allocation list = scratch<Counter>(context, words, stream);
    context.fill(list.get(), 0xff, list.bytes(), stream);
    find_first_rows(of_rows.as<std::uint32_t>(), rows.count, outside, list.as<Counter>(), stream);

    FirstBits bits(context, sorted ? words : rows.count, stream);
    const Allocation ranks = scratch<Rank<std::uint64_t>>(context, words_for(sorted ? words : rows.count), stream);
    const Allocation distinct = scratch<Counter>(context, 1, stream);
    bits.clear(context, stream);
    launch("marking first rows", mark_listed_kernel, words, kColumnBlock, stream, list.as<Counter>(), words, sorted,
           bits.get());
    bits.count(ranks.as<Rank<std::uint64_t>>(), distinct.as<Counter>(), stream);
    const std::unique_ptr<Readback> count = context.make_readback();
    count->send(distinct.get(), sizeof(Counter), stream);
    bits.finish(ranks.as<Rank<std::uint64_t>>(), stream);
    launch("ranking first rows", rank_listed_kernel, words, kColumnBlock, stream, list.as<Counter>(), words, sorted,
           ranks.as<const Rank<std::uint64_t>>(), firsts);
    launch("numbering keys", number_rows_kernel, threads_of(rows.count), kColumnBlock, stream,
           of_rows.as<const std::uint32_t>(), rows.count, outside, list.as<const std::int64_t>(), codes);
    return static_cast<std::int64_t>(*static_cast<const Counter*>(count->wait(stream)));
  }

  void list_numbers(DeviceContext& context, const KeyRows& rows, const Packing& packing, const std::int64_t* codes,
                    std::int64_t* numbers, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    context.fill(numbers, 0xff, packing.outside * sizeof *numbers, stream);
    launch("listing keys", list_numbers_kernel, threads_of(rows.count), kColumnBlock, stream,
           PackedRows::of(rows, packing), codes, numbers);
  }

  void find_listed(DeviceContext& context, const KeyRows& rows, const Packing& packing, const std::int64_t* numbers,
                   std::int64_t* codes, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("looking up keys", find_listed_kernel, threads_of(rows.count), kColumnBlock, stream,
           PackedRows::of(rows, packing), numbers, codes);
  }

  void fingerprint(DeviceContext& context, const KeyRows& rows, std::uint64_t seed, bool by_value, std::uint64_t mask,
                   std::uint64_t* words, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    std::vector<EntryColumn> columns;
    for (const KeyColumn& column : rows.columns) columns.push_back(EntryColumn::of(column));
    in_launches(columns, [&](const Several<EntryColumn>& several, bool is_first, bool is_last) {
      launch("hashing keys", fingerprint_kernel, rows.count, kColumnBlock, stream, several, rows.count,
             FingerprintPass{row_secrets(seed), mask, rows.is_key, by_value, is_first, is_last}, words);
    });
  }

  bool all_equal(DeviceContext& context, const KeyRows& a, const KeyRows& b, const std::int64_t* numbers,
                 Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    std::vector<ComparedColumn> columns;
    for (std::size_t c = 0; c < a.columns.size(); ++c)
      columns.push_back(
          {EntryColumn::of(a.columns[c]), EntryColumn::of(b.columns[c]), a.columns[c].dtype != b.columns[c].dtype});
    const Finding difference(context, stream);
    in_launches(columns, [&](const Several<ComparedColumn>& several, bool, bool) {
      launch("comparing keys", compare_kernel, a.count, kColumnBlock, stream, several, a.count, a.is_key, b.is_key,
             numbers, difference.get());
    });
    return !difference.is_found();
  }

  void combine_valid(DeviceContext& context, Span<const bool* const> masks, std::int64_t count, bool* is_key,
                     Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    in_launches(std::vector<const bool*>(masks.begin(), masks.end()), [&](const Several<const bool*>& several,
                                                                          bool is_first, bool) {
      launch("combining masks", combine_valid_kernel, count, kColumnBlock, stream, several, count, is_first, is_key);
    });
  }

  void mark_numbers(DeviceContext& context, const void* values, DType dtype, std::int64_t count, const bool* valid,
                    bool* mask, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const NumberFormat format = number_format(dtype, 1);
    visit_float_word(format, [&]<class Word>(Word) {
      launch("looking for NaN", mark_numbers_kernel<Word>, count, kColumnBlock, stream,
             static_cast<const Word*>(values), format, count, valid, mask);
    });
  }

  std::int64_t find_invalid(DeviceContext& context, const bool* mask, std::int64_t count,
                            Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const Allocation memory = scratch<Counter>(context, 1, stream);
    Counter first = static_cast<Counter>(count);
    context.copy_from_host(memory.get(), &first, sizeof first, stream);
    launch("looking for nulls", find_invalid_kernel, count, kColumnBlock, stream, mask, count, memory.as<Counter>());
    context.copy_to_host(&first, memory.get(), sizeof first, stream);
    return static_cast<std::int64_t>(first);
  }

  std::int64_t leave_out(DeviceContext& context, std::int64_t* codes, std::int64_t count, std::int64_t at,
                         Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    std::int64_t number = 0;
    context.copy_to_host(&number, codes + at, sizeof number, stream);
    launch("leaving out nulls", leave_out_kernel, count, kColumnBlock, stream, codes, count, number);
    return number;
  }

  void renumber(DeviceContext& context, std::int64_t* codes, std::int64_t count, const std::int64_t* numbers,
                Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("ordering keys", renumber_kernel, count, kColumnBlock, stream, codes, count, numbers);
  }

  void mask_codes(DeviceContext& context, std::int64_t* codes, std::int64_t count, const bool* is_key,
                  Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("leaving out nulls", mask_codes_kernel, count, kColumnBlock, stream, codes, count, is_key);
  }

  void mark_found(DeviceContext& context, const std::int64_t* codes, std::int64_t count, bool invert, bool* mask,
                  Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("marking keys", mark_found_kernel, count, kColumnBlock, stream, codes, count, invert, mask);
  }

  void take(DeviceContext& context, Span<const TakenColumn> columns, std::optional<std::int64_t> rows,
            const std::int64_t* index, std::int64_t count, Stream stream) const override {
    take_columns(context, columns, rows, index, count, stream);
  }
  std::int64_t take_offsets(DeviceContext& context, const std::int64_t* offsets, std::int64_t rows,
                            const std::int64_t* index, std::int64_t count, std::int64_t* out,
                            Stream stream) const override {
    return take_string_offsets(context, offsets, rows, index, count, out, stream);
  }
  void take_bytes(DeviceContext& context, const void* data, const std::int64_t* offsets, const std::int64_t* index,
                  std::int64_t count, const std::int64_t* out_offsets, void* out, Stream stream) const override {
    take_string_bytes(context, data, offsets, index, count, out_offsets, out, stream);
  }

  void order_words(DeviceContext& context, const KeyColumn& column, std::int64_t count, std::int64_t part,
                   std::uint64_t* words, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("ordering keys", order_words_kernel, count, kColumnBlock, stream, EntryColumn::of(column), count, part,
           static_cast<int>(itemsize(column.dtype)), words);
  }

  bool is_all_zero(DeviceContext& context, const std::uint64_t* words, std::int64_t count,
                   Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const Finding nonzero(context, stream);
    launch("ordering keys", find_nonzero_kernel, count, kColumnBlock, stream, words, count, nonzero.get());
    return !nonzero.is_found();
  }

  void count_up(DeviceContext& context, std::int64_t* out, std::int64_t count, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("numbering keys", count_up_kernel, count, kColumnBlock, stream, out, count);
  }

 protected:
  std::vector<NumberRange> find_ranges(DeviceContext& context, const KeyRows& rows, const std::vector<Digit>& digits,
                                       Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    Several<DigitColumn> columns{};
    for (const Digit& digit : digits) columns.items[columns.count++] = DigitColumn::of(rows, digit);
    std::vector<DeviceRange> found(digits.size());
    const Allocation memory = scratch<DeviceRange>(context, columns.count, stream);
    context.fill(memory.get(), 0, memory.bytes(), stream);
    constexpr const char* kAction = "finding the ranges of keys";
    if (rows.count != 0) {
      launch_may_fail(kAction);
      const dim3 grid(std::min(blocks(threads_of(rows.count), kColumnBlock), kMostRangeBlocks),
                      static_cast<unsigned>(columns.count));
      find_ranges_kernel<<<grid, kColumnBlock, 0, handle(stream)>>>(columns, rows.count, memory.as<DeviceRange>());
      check_launch(kAction);
    }
    context.copy_to_host(found.data(), memory.get(), memory.bytes(), stream);
    std::vector<NumberRange> ranges;
    for (const DeviceRange& range : found) ranges.push_back({~range.below, range.most});
    return ranges;
  }

 private:
  /// first_rows [outside], kNoRow everywhere, gets the first row of each word.
  static void find_first_rows(const std::uint32_t* words, std::int64_t count, std::uint32_t outside,
                              Counter* first_rows, Stream stream) {
    const auto run = [&](auto kernel, std::int64_t begin, std::int64_t end, std::size_t shared) {
      constexpr const char* kAction = "finding first rows";
      constexpr unsigned kMostBlocks = 8 * 132;
      launch_may_fail(kAction);
      kernel<<<std::min(blocks(threads_of(end - begin), kColumnBlock), kMostBlocks), kColumnBlock, shared,
               handle(stream)>>>(words, begin, end, outside, first_rows);
      check_launch(kAction);
    };
    if (outside <= kWordsOfBlock) return run(find_first_rows_kernel<true>, 0, count, outside * sizeof(Counter));
    // After some rows most words are known, also in the caches next to the threads, which nobody brings up to date.
    const std::int64_t early = std::min(count, 8 * std::int64_t{outside});
    run(find_first_rows_kernel<false>, 0, early, 0);
    if (early < count) run(find_first_rows_kernel<false>, early, count, 0);
  }
};

}  // namespace

const ColumnKeys& CudaAlgorithms::column_keys() {
  static const auto& column_keys = *new CudaColumnKeys;  // never destroyed: threads may work at exit
  return column_keys;
}

}  // namespace gpuhash::cuda
