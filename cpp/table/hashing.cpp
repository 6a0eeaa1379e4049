#include <gpuhash/hashing.hpp>

#include "table/executor.hpp"

namespace gpuhash {

const Hasher& Hasher::of(const DeviceContext& context) { return *context.executors().hasher; }

}  // namespace gpuhash
