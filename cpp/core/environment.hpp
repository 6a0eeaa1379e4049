#pragma once

#include <string>

namespace gpuhash {

/// The variables that the host's algorithms go by, as they were when the library was loaded. Later nobody reads the
/// environment: another thread, in Python for instance, may be changing it, and getenv() would follow freed memory.
struct Environment {
  std::string threads;  // GPUHASH_NUM_THREADS
  std::string simd;     // GPUHASH_SIMD
  /// GPUHASH_PEER_ACCESS is not 0: shards may use each other's memory, where they can. Otherwise all that they exchange
  /// is copied, also between shards of one device, so that a test of it needs no two GPUs.
  bool peer_access;
};

const Environment& environment();

}  // namespace gpuhash
