#pragma once

#if defined(__x86_64__)
// GCC 12 warns of the words that its AVX-512 intrinsics leave undefined on purpose (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

// What a function that has one of these in front may be compiled to.
#define GPUHASH_AVX2 [[gnu::target("avx2,bmi,bmi2")]]
#define GPUHASH_AVX512 [[gnu::target("avx2,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]]
#endif
