#include "cuda/executor.hpp"
#include "cuda/set_routines/set_routines.hpp"

namespace gpuhash::cuda {

const Executors& cuda_executors() {
  static const Executors executors = [] {
    Executors all;
    add_executors_4(all);
    add_executors_8(all);
    add_executors_16(all);
    all.set_routines = &cuda_set_routines();
    return all;
  }();
  return executors;
}

}  // namespace gpuhash::cuda
