#include "cuda/executor.cuh"

namespace gpuhash::cuda {

/// Tables with 4-byte keys.
void add_executors_4(Executors& executors) {
  static const CudaExecutor<std::uint32_t, NoValue> set;
  static const CudaExecutor<std::uint32_t, std::uint32_t> map;
  executors.k4 = &set;
  executors.k4v4 = &map;
}

}  // namespace gpuhash::cuda
