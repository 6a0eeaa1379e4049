#include <gpuhash/pairing.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/random_seed.hpp"
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/pair/key_table.cuh"
#include "cuda/sorts.hpp"

namespace gpuhash::cuda {
namespace {

/// Pairs of a block, which looks for their rows among those between its first and its last one.
constexpr std::int64_t kPairTile = 4 * kPairBlock;

/// How many pairs a left row has.
__device__ __forceinline__ std::int64_t pairs_of(const PairSides& sides, PairKind kind, std::int64_t row) {
  const std::int64_t code = sides.codes[row];
  const bool has_offsets = code >= 0 && sides.offsets != nullptr;
  return pairs_with(has_offsets ? sides.offsets[code + 1] - sides.offsets[code] : code < 0 ? 0 : 1, kind);
}

__global__ void __launch_bounds__(kPairBlock) count_pairs_kernel(PairSides sides, PairKind kind, std::int64_t* counts) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kPairBlock + threadIdx.x;
  if (row < sides.count) counts[row] = pairs_of(sides, kind, row);
}

/// Where pairs [begin, end) go; each may be null.
struct PairOutput {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t* left;
  std::int64_t* right;

  __device__ __forceinline__ void put(std::int64_t pair, std::int64_t row, std::int64_t partner) const {
    if (left != nullptr) __stcs(left + (pair - begin), row);
    if (right != nullptr) __stcs(right + (pair - begin), partner);
  }
};

__device__ __forceinline__ std::int64_t partner_at(const PairSides& sides, std::int64_t at) {
  return sides.partners == nullptr ? at : sides.partners[at];
}

/// Of rows with one pair at most: a thread has a row. ends [count], pairs up to each row and its own.
__global__ void __launch_bounds__(kPairBlock)
    write_single_pairs_kernel(PairSides sides, PairKind kind, const std::int64_t* ends, PairOutput out) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kPairBlock + threadIdx.x;
  if (row >= sides.count || pairs_of(sides, kind, row) == 0) return;
  const std::int64_t pair = ends[row] - 1;
  if (pair < out.begin || pair >= out.end) return;
  const std::int64_t code = sides.codes[row];
  out.put(pair, row, kind == PairKind::kSemi || code < 0 ? -1 : partner_at(sides, code));
}

/// The first of rows [begin, end) whose pairs end after `pair`.
__device__ __forceinline__ std::int64_t row_of(const std::int64_t* ends, std::int64_t begin, std::int64_t end,
                                               std::int64_t pair) {
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (ends[middle] <= pair)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

/// Of rows with any number of pairs: a thread has a pair, so that it does not matter how many one row has.
__global__ void __launch_bounds__(kPairBlock)
    write_pairs_kernel(PairSides sides, const std::int64_t* ends, PairOutput out) {
  const std::int64_t first = out.begin + std::int64_t{blockIdx.x} * kPairTile;
  const std::int64_t last = min(first + kPairTile, out.end) - 1;
  __shared__ std::int64_t rows[2];
  if (threadIdx.x < 2) rows[threadIdx.x] = row_of(ends, 0, sides.count, threadIdx.x == 0 ? first : last);
  __syncthreads();
  for (std::int64_t pair = first + threadIdx.x; pair <= last; pair += kPairBlock) {
    const std::int64_t row = row_of(ends, rows[0], rows[1], pair);
    const std::int64_t code = sides.codes[row];
    const std::int64_t before = row == 0 ? 0 : ends[row - 1];
    out.put(pair, row, code < 0 ? -1 : partner_at(sides, sides.offsets[code] + (pair - before)));
  }
}

/// ends [sides.count], pairs up to each row and its own.
void write_pairs(const PairSides& sides, PairKind kind, const std::int64_t* ends, const PairOutput& out,
                 Stream stream) {
  if (out.begin == out.end) return;
  if (sides.offsets == nullptr || kind == PairKind::kSemi || kind == PairKind::kAnti)
    return launch("writing pairs", write_single_pairs_kernel, sides.count, kPairBlock, stream, sides, kind, ends, out);
  const std::int64_t tiles = (out.end - out.begin + kPairTile - 1) / kPairTile;
  launch("writing pairs", write_pairs_kernel, tiles * kPairBlock, kPairBlock, stream, sides, ends, out);
}

class CudaPairs final : public Pairs {
 public:
  CudaPairs(DeviceContext& context, const PairSides& sides, PairKind kind, Stream stream)
      : context_(context),
        sides_(sides),
        kind_(kind),
        stream_(stream),
        memory_(scratch<std::int64_t>(context, sides.count, stream)) {
    if (sides.count == 0) return;
    auto* const ends = memory_.as<std::int64_t>();
    launch("counting pairs", count_pairs_kernel, sides.count, kPairBlock, stream, sides, kind, ends);
    sum_in_place(context, ends, sides.count, stream);
    context.copy_to_host(&count_, ends + sides.count - 1, sizeof count_, stream);
  }

  void write(std::int64_t begin, std::int64_t end, std::int64_t* left, std::int64_t* right) const override {
    const DeviceGuard guard(context_.device().index);
    write_pairs(sides_, kind_, memory_.as<std::int64_t>(), {begin, end, left, right}, stream_);
  }

 private:
  DeviceContext& context_;
  PairSides sides_;
  PairKind kind_;
  Stream stream_;
  Allocation memory_;  // ends [count] of the left rows' pairs
};

/// By a table of the right keys. A key's number is its slot, or where all right keys are distinct its only row.
class CudaKeyPairs final : public Pairs {
 public:
  CudaKeyPairs(DeviceContext& context, const NumberKeys& left, const NumberKeys& right, PairKind kind, Stream stream)
      : context_(context),
        kind_(kind),
        stream_(stream),
        codes_(scratch<std::int64_t>(context, left.count, stream)),
        ends_(scratch<std::int64_t>(context, left.count + 1, stream)),
        sides_{codes_.as<std::int64_t>(), left.count, nullptr, nullptr} {
    if (left.count == 0) return;
    if (right.bytes() <= 4)
      match<std::uint32_t>(left, right);
    else if (right.bytes() <= 8)
      match<std::uint64_t>(left, right);
    else
      match<Uint128>(left, right);
  }

  void write(std::int64_t begin, std::int64_t end, std::int64_t* left, std::int64_t* right) const override {
    const DeviceGuard guard(context_.device().index);
    write_pairs(sides_, kind_, ends_.as<std::int64_t>(), {begin, end, left, right}, stream_);
  }

 private:
  template <class Key>
  void match(const NumberKeys& left, const NumberKeys& right) {
    const std::int64_t slots = batch_size::slots_for(right.count);
    const Allocation slot_memory = scratch<KeySlot>(context_, slots + 1, stream_);
    const Allocation right_codes = scratch<std::int64_t>(context_, right.count, stream_);
    context_.fill(slot_memory.get(), 0, slot_memory.bytes(), stream_);
    const KeyTable<Key> table{slot_memory.as<KeySlot>(), slots, random_seed(), source_of<Key>(right)};
    launch("inserting keys", insert_keys_kernel<Key>, right.count, kPairBlock, stream_, table, right.count,
           right_codes.as<std::int64_t>());
    auto* const ends = ends_.as<std::int64_t>();
    launch("looking up keys", match_keys_kernel<Key>, left.count, kPairBlock, stream_, table, source_of<Key>(left),
           left.count, kind_, codes_.as<std::int64_t>(), ends);
    sum_in_place(context_, ends, left.count, stream_);
    std::int64_t told[2];
    context_.copy_to_host(told, ends + left.count - 1, sizeof told, stream_);
    count_ = told[0];
    const bool repeats = told[1] != 0;
    if (!repeats || kind_ == PairKind::kSemi || kind_ == PairKind::kAnti) return;
    offsets_.emplace(scratch<std::int64_t>(context_, slots + 1, stream_));
    order_.emplace(scratch<std::int64_t>(context_, right.count, stream_));
    sides_.offsets = offsets_->as<std::int64_t>();
    sides_.partners = order_->as<std::int64_t>();
    sort_positions(context_, right_codes.as<std::int64_t>(), right.count, slots, offsets_->as<std::int64_t>(),
                   order_->as<std::int64_t>(), stream_);
  }

  DeviceContext& context_;
  PairKind kind_;
  Stream stream_;
  Allocation codes_;  // [count] of the left rows
  Allocation ends_;   // [count] of their pairs, and whether right keys repeat
  PairSides sides_;
  std::optional<Allocation> offsets_;  // of the right rows by slot, where keys repeat
  std::optional<Allocation> order_;
};

/// met[codes[i]] = 1.
__global__ void __launch_bounds__(kPairBlock)
    mark_met_kernel(const std::int64_t* codes, std::int64_t count, std::uint8_t* met) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kPairBlock + threadIdx.x;
  if (i < count && codes[i] >= 0) met[codes[i]] = 1;
}

__global__ void __launch_bounds__(kPairBlock)
    keep_met_kernel(const std::int64_t* codes, std::int64_t count, const std::uint8_t* met, std::int64_t* kept) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kPairBlock + threadIdx.x;
  if (i < count) kept[i] = codes[i] >= 0 && met[codes[i]] != 0 ? codes[i] : -1;
}

class CudaPairing final : public Pairing {
 public:
  void group_positions(DeviceContext& context, const std::int64_t* codes, std::int64_t count, std::int64_t groups,
                       std::int64_t* offsets, std::int64_t* order, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    sort_positions(context, codes, count, groups, offsets, order, stream);
  }

  std::unique_ptr<Pairs> pair(DeviceContext& context, const PairSides& sides, PairKind kind,
                              Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    return std::make_unique<CudaPairs>(context, sides, kind, stream);
  }

  std::unique_ptr<Pairs> pair_keys(DeviceContext& context, const NumberKeys& left, const NumberKeys& right,
                                   PairKind kind, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    return std::make_unique<CudaKeyPairs>(context, left, right, kind, stream);
  }

  void keep_common(DeviceContext& context, const std::int64_t* codes, std::int64_t count, const std::int64_t* others,
                   std::int64_t other_count, std::int64_t groups, std::int64_t* kept, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const Allocation met = scratch<std::uint8_t>(context, groups, stream);
    if (groups != 0) context.fill(met.get(), 0, met.bytes(), stream);
    launch("marking partners", mark_met_kernel, other_count, kPairBlock, stream, others, other_count,
           met.as<std::uint8_t>());
    launch("keeping partners", keep_met_kernel, count, kPairBlock, stream, codes, count, met.as<std::uint8_t>(), kept);
  }
};

}  // namespace

const Pairing& CudaAlgorithms::pairing() {
  static const auto& pairing = *new CudaPairing;  // never destroyed: threads may work at exit
  return pairing;
}

}  // namespace gpuhash::cuda
