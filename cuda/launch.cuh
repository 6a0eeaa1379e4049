#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "cuda/check.hpp"
#include "cuda/stream.hpp"

/// From host code to kernels.
namespace gpuhash::cuda {

/// How many blocks have at least one thread per item.
inline unsigned blocks(std::int64_t threads, unsigned block) {
  return static_cast<unsigned>((threads + block - 1) / block);
}

/// Launches `kernel` with one thread per item, if there are items.
template <class... Parameters, class... Arguments>
void launch(const char* action, void (*kernel)(Parameters...), std::int64_t threads, unsigned block, Stream stream,
            Arguments&&... arguments) {
  if (threads == 0) return;
  launch_may_fail(action);
  kernel<<<blocks(threads, block), block, 0, handle(stream)>>>(std::forward<Arguments>(arguments)...);
  check_launch(action);
}

/// Launches `kernel` with more shared memory than it could have unasked.
template <class... Parameters, class... Arguments>
void launch_with_shared(const char* action, void (*kernel)(Parameters...), dim3 grid, unsigned block,
                        std::size_t shared_bytes, Stream stream, Arguments&&... arguments) {
  std::optional<BesideCaptures> relaxed(std::in_place);  // the kernel may have to be loaded
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        action);
  relaxed.reset();
  launch_may_fail(action);
  kernel<<<grid, block, shared_bytes, handle(stream)>>>(std::forward<Arguments>(arguments)...);
  check_launch(action);
}

}  // namespace gpuhash::cuda
