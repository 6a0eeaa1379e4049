#pragma once

#include <cstdint>

#include <gpuhash/call_chain.hpp>
#include "shared/host_device.hpp"

namespace gpuhash {

/// DeviceContext::advance(), for one thread. A chain whose counter another one has is not looked after any more.
GPUHASH_HD void advance_chain(const ChainStep& step) {
  ChainState state = *step.taken;
  ChainCounter& counter = step.counters[state.chain % step.count];
  if (counter.chain < state.chain) counter = {state.chain, 0};
  if (counter.chain == state.chain) {
    if (counter.version == state.version)
      ++counter.version;
    else
      *static_cast<volatile std::int64_t*>(step.misused_by) = state.owner;
  }
  ++state.version;
  *step.next = state;
}

}  // namespace gpuhash
