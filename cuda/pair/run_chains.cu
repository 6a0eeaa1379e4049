#include <gpuhash/run_chains.hpp>

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/check.hpp"
#include "cuda/executor.hpp"
#include "cuda/launch.cuh"
#include "cuda/sorts.hpp"

namespace gpuhash::cuda {
namespace {

constexpr unsigned kRunBlock = 256;

__global__ void __launch_bounds__(kRunBlock)
    append_runs_kernel(Runs runs, std::int64_t first, std::int64_t base, const std::int64_t* offsets,
                       const std::int64_t* tails, std::int64_t count, std::int64_t* ids) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRunBlock + threadIdx.x;
  if (i >= count) return;
  if (i == 0) runs.begins[first] = base;
  ids[i] = first + i;
  runs.begins[first + i + 1] = base + (offsets == nullptr ? i + 1 : offsets[i + 1]);
  runs.nexts[first + i] = -1;
  if (tails != nullptr && tails[i] >= 0) runs.nexts[tails[i]] = first + i;
}

/// A thread walks along one key's chain.
__global__ void __launch_bounds__(kRunBlock)
    list_runs_kernel(Runs runs, const std::int64_t* heads, const std::int64_t* offsets, std::int64_t count,
                     std::int64_t* listed) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kRunBlock + threadIdx.x;
  if (i >= count) return;
  std::int64_t run = heads[i];
  for (std::int64_t at = offsets[i]; at < offsets[i + 1]; ++at) {
    listed[at] = run;
    run = runs.nexts[run];
  }
}

/// A thread has a word; rows are of `words` words.
template <class Word>
__global__ void __launch_bounds__(kRunBlock)
    gather_words_kernel(const Word* from, std::int64_t words, const std::int64_t* positions, std::int64_t count,
                        Word* to) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kRunBlock + threadIdx.x;
  if (at >= count * words) return;
  const std::int64_t row = at / words;
  __stcs(to + at, from[positions[row] * words + (at - row * words)]);
}

template <class Word>
void gather_as(const void* from, std::int64_t bytes, const std::int64_t* positions, std::int64_t count, void* to,
               Stream stream) {
  const std::int64_t words = bytes / static_cast<std::int64_t>(sizeof(Word));
  launch("gathering values", gather_words_kernel<Word>, count * words, kRunBlock, stream,
         static_cast<const Word*>(from), words, positions, count, static_cast<Word*>(to));
}

class CudaRunChains final : public RunChains {
 public:
  void append(DeviceContext& context, const Runs& runs, std::int64_t first, std::int64_t base,
              const std::int64_t* offsets, const std::int64_t* tails, std::int64_t count, std::int64_t* ids,
              Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("appending runs", append_runs_kernel, count, kRunBlock, stream, runs, first, base, offsets, tails, count,
           ids);
  }

  void list(DeviceContext& context, const Runs& runs, const std::int64_t* heads, const std::int64_t* offsets,
            std::int64_t count, std::int64_t* listed, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    launch("listing runs", list_runs_kernel, count, kRunBlock, stream, runs, heads, offsets, count, listed);
  }

  std::int64_t sum_up(DeviceContext& context, const std::int64_t* counts, std::int64_t count, std::int64_t* offsets,
                      Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    context.fill(offsets, 0, sizeof(std::int64_t), stream);
    if (count == 0) return 0;
    context.copy(offsets + 1, counts, static_cast<std::size_t>(count) * sizeof(std::int64_t), stream);
    sum_in_place(context, offsets + 1, count, stream);
    std::int64_t all = 0;
    context.copy_to_host(&all, offsets + count, sizeof all, stream);
    return all;
  }

  void gather(DeviceContext& context, const void* from, std::int64_t bytes, const std::int64_t* positions,
              std::int64_t count, void* to, Stream stream) const override {
    const DeviceGuard guard(context.device().index);
    const auto alignment = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) |
                           static_cast<std::uintptr_t>(bytes);
    if (alignment % sizeof(uint4) == 0) return gather_as<uint4>(from, bytes, positions, count, to, stream);
    if (alignment % 8 == 0) return gather_as<std::uint64_t>(from, bytes, positions, count, to, stream);
    if (alignment % 4 == 0) return gather_as<std::uint32_t>(from, bytes, positions, count, to, stream);
    gather_as<std::uint8_t>(from, bytes, positions, count, to, stream);
  }
};

}  // namespace

const RunChains& CudaAlgorithms::run_chains() {
  static const auto& run_chains = *new CudaRunChains;  // never destroyed: threads may work at exit
  return run_chains;
}

}  // namespace gpuhash::cuda
