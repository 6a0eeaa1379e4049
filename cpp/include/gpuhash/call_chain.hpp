#pragma once

#include <cstdint>

namespace gpuhash {

/// What the calls of a chain hand on, each to the next. Lies in the memory of the device that they run on.
struct ChainState {
  std::int64_t owner;     // whose calls they are: any number but 0
  std::uint64_t chain;    // a number from 1, higher for every chain that is begun
  std::uint64_t version;  // calls so far
};

/// How far a chain has come; zeros before its first call.
struct ChainCounter {
  std::uint64_t chain;
  std::uint64_t version;
};

/// One call's step in its chain, see DeviceContext::advance(). A call of a table that is given one makes it on the way,
/// unless it throws: a kernel for it alone took some 3 us, and a lookup of 2^20 keys takes 34 (docs/dead-ends.md).
struct ChainStep {
  const ChainState* taken = nullptr;  // null: no step
  ChainState* next = nullptr;         // may be `taken`
  /// [count], in device memory. Chains whose numbers are alike modulo count share one: it is that of the last of them.
  ChainCounter* counters = nullptr;
  std::uint64_t count = 0;
  std::int64_t* misused_by = nullptr;  // in memory of make_mailbox()
};

}  // namespace gpuhash
