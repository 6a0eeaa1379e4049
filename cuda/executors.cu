#include "cuda/executor.hpp"
#include "cuda/factorization/factorization.hpp"

namespace gpuhash::cuda {

const Executors& cuda_executors() {
  static const Executors executors = [] {
    Executors all;
    add_executors_4(all);
    add_executors_8(all);
    add_executors_16(all);
    all.factorizer = &cuda_factorizer();
    return all;
  }();
  return executors;
}

}  // namespace gpuhash::cuda
