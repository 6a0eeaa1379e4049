#include "host/executor_impl.hpp"

namespace gpuhash::host {

/// Tables with 16-byte keys.
template const Executor<Uint128, NoValue>& HostAlgorithms::executor();
template const Executor<Uint128, std::uint64_t>& HostAlgorithms::executor();

}  // namespace gpuhash::host
