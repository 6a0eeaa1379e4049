#include "cuda/executor.cuh"

namespace gpuhash::cuda {

/// Tables with 4-byte keys.
template const Executor<std::uint32_t, NoValue>& CudaAlgorithms::executor();
template const Executor<std::uint32_t, std::uint32_t>& CudaAlgorithms::executor();

}  // namespace gpuhash::cuda
