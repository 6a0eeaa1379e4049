#include <gpuhash/pairing.hpp>

#include "table/executor.hpp"

namespace gpuhash {

const Pairing& Pairing::of(const DeviceContext& context) { return *context.executors().pairing; }

}  // namespace gpuhash
