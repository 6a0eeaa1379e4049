#include <cuda_runtime.h>

#include <cub/device/device_scan.cuh>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/atomics.cuh"
#include "cuda/batch.cuh"
#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/rows.cuh"
#include "shared/owner.hpp"
#include "table/splitter.hpp"

/// Splitting a batch by owners, in tiles of kTileKeys keys. One kernel reads the keys, and leaves for each its rank in
/// its tile's owners' order (2 bytes) and for each tile how many keys every shard gets. Sums over all tiles tell where
/// each tile's part of each list begins. All that follows moves items by ranks and needs no keys: a tile of items is
/// sorted in shared memory and goes out in runs, one per shard, which over NVLink are stores of whole lines; answers
/// are read back from runs, which neighbouring threads share.
///
/// Nothing in it depends on timing: each list is in the order of the batch.
namespace gpuhash::cuda {
namespace {

constexpr unsigned kSplitBlock = 256;
constexpr int kSplitWarps = kSplitBlock / 32;
constexpr int kRounds = 16;
constexpr int kTileKeys = kSplitBlock * kRounds;
constexpr int kMaxShards = static_cast<int>(Splitter::kMaxShards);

/// What all kernels after the first one are given.
struct Ranked {
  const std::uint16_t* ranks;  // [n]
  const std::int64_t* begins;  // [shards, tiles]: where the tile's part begins in the owners' order; then n
  std::int64_t count;
  std::int64_t tiles;
  int shards;

  __device__ __forceinline__ std::int64_t begin(int shard, std::int64_t tile) const {
    return begins[shard * tiles + tile];
  }
  /// Keys of the tile that belong to the shard.
  __device__ __forceinline__ int size(int shard, std::int64_t tile) const {
    const std::int64_t at = shard * tiles + tile;
    return static_cast<int>(begins[at + 1] - begins[at]);
  }
};

struct Targets {
  std::byte* lists[kMaxShards];
};

/// Which lanes have the same owner.
__device__ __forceinline__ unsigned same_owner(std::uint32_t owner, bool valid, int owner_bits) {
  unsigned same = __ballot_sync(kAllLanes, valid);
  for (int bit = 0; bit < owner_bits; ++bit) {
    const bool set = owner >> bit & 1;
    const unsigned with = __ballot_sync(kAllLanes, set);
    same &= set ? with : ~with;
  }
  return same;
}

template <class Key>
__global__ void __launch_bounds__(kSplitBlock)
    rank_kernel(KeyBatch keys, bool whole, std::uint64_t seed, int shards, int owner_bits, std::uint16_t* ranks,
                std::int64_t* sizes, std::int64_t tiles) {
  __shared__ std::uint32_t counts[kSplitWarps][kMaxShards];  // then where each warp's part of each owner begins
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const std::int64_t tile = blockIdx.x;
  const std::int64_t first = tile * kTileKeys + warp * (kTileKeys / kSplitWarps) + lane;
  for (int shard = lane; shard < shards; shard += 32) counts[warp][shard] = 0;
  __syncwarp();

  std::uint32_t places[kRounds];  // owner << 16 | rank among the warp's keys of the owner
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t i = first + round * 32;
    const bool valid = i < keys.count;
    std::uint32_t owner = 0;
    if (valid) owner = owner_of(load_key<Key>(keys, i, whole), seed, static_cast<std::uint32_t>(shards));
    const unsigned same = same_owner(owner, valid, owner_bits);
    std::uint32_t before = 0;
    if (valid) before = counts[warp][owner] + __popc(same & ((1u << lane) - 1));
    __syncwarp();
    if (valid && (same & ((1u << lane) - 1)) == 0) counts[warp][owner] += __popc(same);
    __syncwarp();
    places[round] = owner << 16 | before;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    std::uint32_t sum = 0;
    for (int shard = 0; shard < shards; ++shard) {
      const std::uint32_t begin = sum;
      for (int w = 0; w < kSplitWarps; ++w) {
        const std::uint32_t size = counts[w][shard];
        counts[w][shard] = sum;
        sum += size;
      }
      sizes[shard * tiles + tile] = sum - begin;
    }
    if (tile == 0) sizes[shards * tiles] = 0;  // so that the sums end with that of all
  }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t i = first + round * 32;
    if (i < keys.count)
      ranks[i] = static_cast<std::uint16_t>(counts[warp][places[round] >> 16] + (places[round] & 0xffff));
  }
}

/// Where the runs of a tile lie.
struct Runs {
  int ends[kMaxShards];              // in the tile's sorted order
  std::int64_t offsets[kMaxShards];  // what turns a place in it into one of the list

  /// The whole block calls it.
  __device__ __forceinline__ void load(const Ranked& ranked, std::int64_t tile, bool in_lists) {
    if (threadIdx.x < ranked.shards) {
      const int shard = static_cast<int>(threadIdx.x);
      ends[shard] = ranked.size(shard, tile);
      offsets[shard] = ranked.begin(shard, tile) - (in_lists ? ranked.begin(shard, 0) : 0);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int sum = 0;
      for (int shard = 0; shard < ranked.shards; ++shard) {
        offsets[shard] -= sum;
        ends[shard] = sum += ends[shard];
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ int owner(int place, int shards) const {
    int shard = 0;
    while (shard + 1 < shards && place >= ends[shard]) ++shard;
    return shard;
  }
};

template <class Word>
__global__ void __launch_bounds__(kSplitBlock) scatter_kernel(Ranked ranked, const Word* items, Targets to) {
  __shared__ Word sorted[kTileKeys];
  __shared__ Runs runs;
  const std::int64_t tile = blockIdx.x;
  const std::int64_t base = tile * kTileKeys;
  const int size = static_cast<int>(min(std::int64_t{kTileKeys}, ranked.count - base));
#pragma unroll 4
  for (int j = threadIdx.x; j < size; j += kSplitBlock) sorted[ranked.ranks[base + j]] = __ldcs(items + base + j);
  runs.load(ranked, tile, true);
#pragma unroll 4
  for (int j = threadIdx.x; j < size; j += kSplitBlock) {
    const int shard = runs.owner(j, ranked.shards);
    reinterpret_cast<Word*>(to.lists[shard])[runs.offsets[shard] + j] = sorted[j];
  }
}

/// Items of any width: each moved by `shape.lanes` neighbouring threads.
template <class Word>
__global__ void __launch_bounds__(kSplitBlock)
    scatter_rows_kernel(Ranked ranked, const Word* items, RowShape shape, Targets to) {
  __shared__ Runs runs;
  const std::int64_t tile = blockIdx.x;
  const std::int64_t base = tile * kTileKeys;
  const int size = static_cast<int>(min(std::int64_t{kTileKeys}, ranked.count - base));
  runs.load(ranked, tile, true);
  const int at_once = static_cast<int>(kSplitBlock) / shape.lanes;
  for (int j = static_cast<int>(threadIdx.x) / shape.lanes; j < size; j += at_once) {
    const int place = ranked.ranks[base + j];
    const int shard = runs.owner(place, ranked.shards);
    Word* const target = reinterpret_cast<Word*>(to.lists[shard]) + (runs.offsets[shard] + place) * shape.words;
    const Word* const source = items + (base + j) * shape.words;
    for (std::int64_t w = threadIdx.x % shape.lanes; w < shape.words; w += shape.lanes)
      __stcs(target + w, load_row_word(source + w));
  }
}

template <class Word>
__global__ void __launch_bounds__(kSplitBlock)
    gather_kernel(Ranked ranked, const Word* items, RowShape shape, GatherOptions options, Word* out) {
  __shared__ Runs runs;
  const std::int64_t tile = blockIdx.x;
  const std::int64_t base = tile * kTileKeys;
  const int size = static_cast<int>(min(std::int64_t{kTileKeys}, ranked.count - base));
  runs.load(ranked, tile, false);
  const auto* const fallback = static_cast<const Word*>(options.fallback);
  const int at_once = static_cast<int>(kSplitBlock) / shape.lanes;
#pragma unroll 4
  for (int j = static_cast<int>(threadIdx.x) / shape.lanes; j < size; j += at_once) {
    const int place = ranked.ranks[base + j];
    const std::int64_t position = runs.offsets[runs.owner(place, ranked.shards)] + place;
    const Word* source = items + position * shape.words;
    if (options.found_out != nullptr && threadIdx.x % shape.lanes == 0)
      options.found_out[base + j] = options.found[position];
    if (fallback != nullptr && !options.found[position])
      source = fallback + (options.fallback_per_key ? (base + j) * shape.words : 0);
    for (std::int64_t w = threadIdx.x % shape.lanes; w < shape.words; w += shape.lanes)
      __stcs(out + (base + j) * shape.words + w, source[w]);
  }
}

__global__ void __launch_bounds__(kSplitBlock)
    gather_row_numbers_kernel(Ranked ranked, const std::int64_t* rows, std::int64_t* out) {
  __shared__ Runs runs;
  const std::int64_t tile = blockIdx.x;
  const std::int64_t base = tile * kTileKeys;
  const int size = static_cast<int>(min(std::int64_t{kTileKeys}, ranked.count - base));
  runs.load(ranked, tile, false);
  for (int j = threadIdx.x; j < size; j += kSplitBlock) {
    const int place = ranked.ranks[base + j];
    const int shard = runs.owner(place, ranked.shards);
    const std::int64_t row = rows[runs.offsets[shard] + place];
    out[base + j] = row < 0 ? row : std::int64_t{shard} << kShardShift | row;
  }
}

__global__ void number_rows_kernel(std::int64_t* rows, std::int64_t count, std::int64_t number) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) rows[i] |= number;
}

/// Calls run(word, shape) for items that are one word, of up to 8 bytes, or of several words.
template <class One, class Several>
void with_items(std::int64_t bytes, std::initializer_list<const void*> arrays, One one, Several several) {
  std::uint64_t bits = static_cast<std::uint64_t>(bytes);
  for (const void* const array : arrays) bits |= reinterpret_cast<std::uintptr_t>(array);
  if (bytes == 8 && bits % 8 == 0) return one(std::uint64_t{});
  if (bytes == 4 && bits % 4 == 0) return one(std::uint32_t{});
  if (bytes == 2 && bits % 2 == 0) return one(std::uint16_t{});
  if (bytes == 1) return one(std::uint8_t{});
  with_row_words(bytes, arrays, several);
}

class CudaSplit final : public Split {
 public:
  CudaSplit(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, std::size_t shards, Stream stream)
      : Split(shards),
        context_(context),
        stream_(stream),
        count_(keys.count),
        tiles_((keys.count + kTileKeys - 1) / kTileKeys),
        sums_(tiles_ * static_cast<std::int64_t>(shards) + 1) {
    const DeviceGuard guard(context.device().index);
    int owner_bits = 0;
    while (std::size_t{1} << owner_bits < shards) ++owner_bits;
    std::size_t workspace_bytes = 0;
    check(cub::DeviceScan::ExclusiveSum(nullptr, workspace_bytes, sizes(), begins(), sums_, handle(stream)),
          "splitting a batch");
    const std::size_t words = 2 * static_cast<std::size_t>(sums_) * sizeof(std::int64_t);
    const std::size_t ranks_end = words + static_cast<std::size_t>(count_) * sizeof(std::uint16_t);
    const std::size_t workspace = (ranks_end + 255) / 256 * 256;
    memory_ = Allocation(context, workspace + workspace_bytes, stream);
    const auto rank = [&](auto key) {
      using Key = decltype(key);
      launch("splitting a batch", rank_kernel<Key>, tiles_ * kSplitBlock, kSplitBlock, stream, keys,
             keys.bytes == sizeof(Key) && is_aligned<Key>(keys.data), seed, static_cast<int>(shards), owner_bits,
             ranks(), sizes(), tiles_);
    };
    if (keys.bytes <= 4)
      rank(std::uint32_t{});
    else if (keys.bytes <= 8)
      rank(std::uint64_t{});
    else
      rank(Uint128{});
    launch_may_fail("splitting a batch");
    check(cub::DeviceScan::ExclusiveSum(memory_.as<std::byte>() + workspace, workspace_bytes, sizes(), begins(), sums_,
                                        handle(stream)),
          "splitting a batch");
    note_launched_kernel();
  }

  void wait() override {
    const DeviceGuard guard(context_.device().index);
    std::vector<std::int64_t> begins(counts_.size() + 1);
    check(cudaMemcpy2DAsync(begins.data(), sizeof(std::int64_t), this->begins(), tiles_ * sizeof(std::int64_t),
                            sizeof(std::int64_t), begins.size(), cudaMemcpyDeviceToHost, handle(stream_)),
          "reading how a batch is split");
    context_.synchronize(stream_);
    for (std::size_t shard = 0; shard < counts_.size(); ++shard) counts_[shard] = begins[shard + 1] - begins[shard];
    set_offsets();
  }

  void scatter(const void* items, std::int64_t bytes, const std::vector<void*>& to, Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    Targets targets{};
    for (std::size_t shard = 0; shard < to.size(); ++shard) targets.lists[shard] = static_cast<std::byte*>(to[shard]);
    with_items(
        bytes, {items},
        [&](auto word) {
          using Word = decltype(word);
          launch("sending a batch to its shards", scatter_kernel<Word>, tiles_ * kSplitBlock, kSplitBlock, stream,
                 ranked(), static_cast<const Word*>(items), targets);
        },
        [&](auto word, RowShape shape) {
          using Word = decltype(word);
          launch("sending a batch to its shards", scatter_rows_kernel<Word>, tiles_ * kSplitBlock, kSplitBlock, stream,
                 ranked(), static_cast<const Word*>(items), shape, targets);
        });
  }

  void gather(const void* items, std::int64_t bytes, void* out, const GatherOptions& options,
              Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    const auto run = [&](auto word, RowShape shape) {
      using Word = decltype(word);
      launch("gathering answers", gather_kernel<Word>, tiles_ * kSplitBlock, kSplitBlock, stream, ranked(),
             static_cast<const Word*>(items), shape, options, static_cast<Word*>(out));
    };
    with_items(bytes, {items, out, options.fallback}, [&](auto word) { run(word, RowShape{1, 1}); }, run);
  }

  void gather_rows(const std::int64_t* rows, std::int64_t* out, Stream stream) const override {
    const DeviceGuard guard(context_.device().index);
    launch("gathering row numbers", gather_row_numbers_kernel, tiles_ * kSplitBlock, kSplitBlock, stream, ranked(),
           rows, out);
  }

 private:
  Ranked ranked() const { return {ranks(), begins(), count_, tiles_, static_cast<int>(counts_.size())}; }

  std::int64_t* sizes() const { return memory_.as<std::int64_t>(); }
  std::int64_t* begins() const { return sizes() + sums_; }
  std::uint16_t* ranks() const { return reinterpret_cast<std::uint16_t*>(begins() + sums_); }

  DeviceContext& context_;
  Stream stream_;
  std::int64_t count_;
  std::int64_t tiles_;
  std::int64_t sums_;  // shards x tiles, and one more: the last sum is that of all
  Allocation memory_;  // sizes int64 [sums], begins int64 [sums], ranks uint16 [n], and what their sums take
};

class CudaSplitter final : public Splitter {
 public:
  std::unique_ptr<Split> split(DeviceContext& context, const KeyBatch& keys, std::uint64_t seed, std::size_t shards,
                               Stream stream) const override {
    return std::make_unique<CudaSplit>(context, keys, seed, shards, stream);
  }
  void number_rows(DeviceContext& context, std::int64_t* rows, std::int64_t count, std::size_t shard,
                   Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("numbering rows", number_rows_kernel, count, kSplitBlock, stream, rows, count,
           static_cast<std::int64_t>(shard) << kShardShift);
  }
};

}  // namespace

const Splitter& CudaAlgorithms::splitter() {
  static const CudaSplitter splitter;
  return splitter;
}

}  // namespace gpuhash::cuda
