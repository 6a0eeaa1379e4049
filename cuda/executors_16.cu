#include "cuda/executor.cuh"

namespace gpuhash::cuda {

/// Tables with 16-byte keys.
template const Executor<Uint128, NoValue>& CudaAlgorithms::executor();
template const Executor<Uint128, std::uint64_t>& CudaAlgorithms::executor();

}  // namespace gpuhash::cuda
