#include <gpuhash/pairing.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/pair/pair_scans.hpp"

namespace gpuhash::cuda {
namespace {

constexpr unsigned kPairBlock = 256;
/// Pairs of a block, which looks for their rows among those between its first and its last one.
constexpr std::int64_t kPairTile = 4 * kPairBlock;

/// How many pairs a left row has.
__device__ __forceinline__ std::int64_t pairs_of(const PairSides& sides, PairKind kind, std::int64_t row) {
  const std::int64_t code = sides.codes[row];
  if (code < 0) return kind == PairKind::kLeft || kind == PairKind::kAnti ? 1 : 0;
  if (kind == PairKind::kAnti) return 0;
  if (kind == PairKind::kSemi || sides.offsets == nullptr) return 1;
  return sides.offsets[code + 1] - sides.offsets[code];
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
    if (begin == end) return;
    const DeviceGuard guard(context_.device().index);
    const auto* const ends = memory_.as<std::int64_t>();
    const PairOutput out{begin, end, left, right};
    if (sides_.offsets == nullptr || kind_ == PairKind::kSemi || kind_ == PairKind::kAnti)
      return launch("writing pairs", write_single_pairs_kernel, sides_.count, kPairBlock, stream_, sides_, kind_, ends,
                    out);
    const std::int64_t tiles = (end - begin + kPairTile - 1) / kPairTile;
    launch("writing pairs", write_pairs_kernel, tiles * kPairBlock, kPairBlock, stream_, sides_, ends, out);
  }

 private:
  DeviceContext& context_;
  PairSides sides_;
  PairKind kind_;
  Stream stream_;
  Allocation memory_;  // ends [count] of the left rows' pairs
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
