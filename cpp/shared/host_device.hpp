#pragma once

#include <cstdint>

/// For code that both the host executor and the CUDA kernels call. Such code asks here alone who compiles it, but for
/// the loops of shared/layout.hpp that are not unrolled on a GPU.
#if defined(__CUDACC__)
#define GPUHASH_HD __host__ __device__ __forceinline__
#else
#define GPUHASH_HD inline
#endif

namespace gpuhash {

GPUHASH_HD std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

GPUHASH_HD std::uint32_t multiply_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(a) * b) >> 32);
}

GPUHASH_HD std::uint32_t reversed_bytes(std::uint32_t word) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(word, 0, 0x0123);
#else
  return __builtin_bswap32(word);
#endif
}

GPUHASH_HD std::uint64_t reversed_bytes(std::uint64_t word) {
#if defined(__CUDA_ARCH__)
  const auto low = reversed_bytes(static_cast<std::uint32_t>(word));
  return static_cast<std::uint64_t>(low) << 32 | reversed_bytes(static_cast<std::uint32_t>(word >> 32));
#else
  return __builtin_bswap64(word);
#endif
}

/// Products, sums and roots that are rounded each by itself. A compiler that made a fused operation of two of them, as
/// nvcc does and others may, would round once and give other bits; that for the host is told not to where such code is
/// compiled (CMakeLists.txt).
GPUHASH_HD double rounded_product(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

GPUHASH_HD double rounded_sum(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

GPUHASH_HD float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

GPUHASH_HD float rounded_sum(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

GPUHASH_HD double rounded_root(double a) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(a);
#else
  return __builtin_sqrt(a);
#endif
}

GPUHASH_HD float rounded_root(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

GPUHASH_HD int count_bits(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __popc(bits);
#else
  // Without a machine instruction that every processor has, __builtin_popcount is a call.
  bits -= bits >> 1 & 0x55555555u;
  bits = (bits & 0x33333333u) + (bits >> 2 & 0x33333333u);
  return static_cast<int>(((bits + (bits >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
#endif
}

}  // namespace gpuhash
