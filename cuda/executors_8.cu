#include "cuda/executor.cuh"

namespace gpuhash::cuda {

/// Tables with 8-byte keys.
template const Executor<std::uint64_t, NoValue>& CudaAlgorithms::executor();
template const Executor<std::uint64_t, std::uint64_t>& CudaAlgorithms::executor();

}  // namespace gpuhash::cuda
