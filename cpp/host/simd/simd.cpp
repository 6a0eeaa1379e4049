#include "host/simd/simd.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/environment.hpp"
#include "core/tuning.hpp"

namespace gpuhash::host {
namespace {

InstructionSet best_supported() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return InstructionSet::kAvx512;
  if (avx2) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kPortable;
}

InstructionSet chosen() {
  const std::string& wish = environment().simd;
  InstructionSet most = InstructionSet::kAvx512;
  if (wish == "portable")
    most = InstructionSet::kPortable;
  else if (wish == "avx2")
    most = InstructionSet::kAvx2;
  else if (!wish.empty() && wish != "avx512")
    throw std::invalid_argument("GPUHASH_SIMD is '" + wish +
                                "'; expected portable, avx2 or avx512: set it so, or unset it, and start again");
  return std::min(most, best_supported());
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet set = chosen();
  return set;
}

std::int64_t least_streamed_bytes() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) return tuning().intel_streamed_bytes;
#endif
  return tuning().streamed_bytes;
}

}  // namespace gpuhash::host
