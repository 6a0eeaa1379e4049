#include <gpuhash/factorization.hpp>

#include "table/executor.hpp"

namespace gpuhash {

const Factorizer& Factorizer::of(const DeviceContext& context) { return *context.executors().factorizer; }

}  // namespace gpuhash
