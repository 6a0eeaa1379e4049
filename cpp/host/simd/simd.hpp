#pragma once

#include <cstdint>

#include "host/simd/avx2.hpp"
#include "host/simd/avx512.hpp"
#include "host/simd/intrinsics.hpp"
#include "host/simd/looks.hpp"
#include "host/simd/portable.hpp"

/// Comparing a whole bucket at once, with what the processor has. The package is built for any x86-64, so the widest
/// instructions are chosen when it runs: with_simd() runs a loop with one of the types below.
namespace gpuhash::host {

enum class InstructionSet { kPortable, kAvx2, kAvx512 };

/// The best that this processor has; GPUHASH_SIMD ("portable", "avx2", "avx512") asks for less. Looked up once.
InstructionSet instruction_set();

/// What is dealt out to hundreds of places is streamed there, past the caches, if it has so many bytes or more.
std::int64_t least_streamed_bytes();

namespace detail {

// flatten: everything that the loop calls becomes part of this function and is compiled for its instruction set.
#if defined(__x86_64__)
template <class Loop>
GPUHASH_AVX512 [[gnu::flatten]] void run_avx512(const Loop& loop) {
  loop(Avx512{});
}
template <class Loop>
GPUHASH_AVX2 [[gnu::flatten]] void run_avx2(const Loop& loop) {
  loop(Avx2{});
}
#endif
template <class Loop>
[[gnu::flatten]] void run_portable(const Loop& loop) {
  loop(Portable{});
}

}  // namespace detail

/// Calls loop(simd), a template over the type of `simd`.
template <class Loop>
void with_simd(const Loop& loop) {
  switch (instruction_set()) {
#if defined(__x86_64__)
    case InstructionSet::kAvx512:
      return detail::run_avx512(loop);
    case InstructionSet::kAvx2:
      return detail::run_avx2(loop);
#endif
    default:
      return detail::run_portable(loop);
  }
}

}  // namespace gpuhash::host
