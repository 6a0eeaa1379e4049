#pragma once

#include <string>

namespace gpuhash {

/// The variables that the host's algorithms go by, as they were when the library was loaded. Later nobody reads the
/// environment: another thread, in Python for instance, may be changing it, and getenv() would follow freed memory.
struct Environment {
  std::string threads;  // GPUHASH_NUM_THREADS
  std::string simd;     // GPUHASH_SIMD
  bool peer_access;     // GPUHASH_PEER_ACCESS is not 0: GPUs may use each other's memory, where they can
};

const Environment& environment();

}  // namespace gpuhash
