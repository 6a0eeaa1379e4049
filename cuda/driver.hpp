#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include <gpuhash/error.hpp>
#include "cuda/check.hpp"

/// The driver's own functions, without a link to libcuda, which machines without a driver lack.
namespace gpuhash::cuda {

/// The function as it was in CUDA 12.0: all that is used here was there by then, with the types that <cuda.h> gives it.
template <class Function>
void look_up(const char* name, Function& function) {
  void* address = nullptr;
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault), "looking up a driver function");
#else
  check(cudaGetDriverEntryPoint(name, &address, cudaEnableDefault), "looking up a driver function");
#endif
  if (address == nullptr) throw CudaError(std::string("the CUDA driver has no function ") + name);
  function = reinterpret_cast<Function>(address);
}

inline void check_driver(CUresult result, const char* action) {
  if (result == CUDA_SUCCESS) return;
  throw CudaError(std::string(action) + " failed: error " + std::to_string(static_cast<int>(result)) +
                  " of the CUDA driver");
}

}  // namespace gpuhash::cuda
