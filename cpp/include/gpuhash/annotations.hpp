#pragma once

/// Marks what both the host executor and the CUDA kernels call; the only place that asks which compiler reads it.
#if defined(__CUDACC__)
#define GPUHASH_HD __host__ __device__ __forceinline__
#else
#define GPUHASH_HD inline
#endif

/// Visible outside libgpuhash, which is built with hidden visibility.
#define GPUHASH_API __attribute__((visibility("default")))
