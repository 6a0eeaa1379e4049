#include "cuda/messages.hpp"

#include "cuda/launch.cuh"
#include "shared/advance_chain.hpp"

namespace gpuhash::cuda {
namespace {

__global__ void advance_kernel(ChainStep step) { advance_chain(step); }

__global__ void send_kernel(const std::uint64_t* from, unsigned words, Letter* letter, std::uint64_t number) {
  if (threadIdx.x < words) *static_cast<volatile std::uint64_t*>(letter->words + threadIdx.x) = from[threadIdx.x];
  __threadfence_system();
  __syncwarp();
  if (threadIdx.x == 0) *static_cast<volatile std::uint64_t*>(&letter->number) = number;
}

}  // namespace

void send(const char* action, const std::uint64_t* from, unsigned words, Letter* letter, std::uint64_t number,
          Stream stream) {
  launch(action, send_kernel, 32, 32, stream, from, words, letter, number);
}

void advance(const ChainStep& step, Stream stream) {
  launch("advancing a chain of calls", advance_kernel, 1, 1, stream, step);
}

}  // namespace gpuhash::cuda
