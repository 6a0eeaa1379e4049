#include "cuda/executor.cuh"

namespace gpuhash::cuda {

/// Tables with 8-byte keys.
void add_executors_8(Executors& executors) {
  static const CudaExecutor<std::uint64_t, NoValue> set;
  static const CudaExecutor<std::uint64_t, std::uint64_t> map;
  executors.k8 = &set;
  executors.k8v8 = &map;
}

}  // namespace gpuhash::cuda
