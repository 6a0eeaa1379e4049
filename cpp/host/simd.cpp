#include "host/simd.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/environment.hpp"
#include "core/test_partition_threshold.hpp"

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

/// Plain stores read each line before they write it, which is cheap as long as it lies in a cache nearby. On an EPYC of
/// the third generation, 32 MB of L3, 2^22 words and positions (50 MB) take a thread 3.0 ns each and streams 3.7; 2^23
/// take 3.8 to 6.2 and 3.6 to 4.6, 2^24 6.3 to 9.6 and 3.8 to 5.2, and 2^26 12 to 15 and 5.0. On a Xeon of the fifth
/// generation, whose 300 MB of L3 lie farther away and are everybody's, streams are no slower from 2^21 on: 2^22
/// take 5.5 to 9.6 and 4.8 to 7.0, and two threads 3.4 to 4.7 and 2.9 to 3.3.
std::int64_t least_streamed_bytes() {
  if (test_partition_threshold() >= 0) return 0;
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) return std::int64_t{24} << 20;
#endif
  return std::int64_t{96} << 20;
}

}  // namespace gpuhash::host
