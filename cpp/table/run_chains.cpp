#include <gpuhash/run_chains.hpp>

#include "table/executor.hpp"

namespace gpuhash {

const RunChains& RunChains::of(const DeviceContext& context) { return *context.executors().run_chains; }

}  // namespace gpuhash
