#include "cuda/executor.cuh"

namespace gpuhash::cuda {

/// Tables with 16-byte keys.
void add_executors_16(Executors& executors) {
  static const CudaExecutor<Uint128, NoValue> set;
  static const CudaExecutor<Uint128, std::uint64_t> map;
  executors.k16 = &set;
  executors.k16v8 = &map;
}

}  // namespace gpuhash::cuda
