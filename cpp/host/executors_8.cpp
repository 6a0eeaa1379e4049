#include "host/executor_impl.hpp"

namespace gpuhash::host {

/// Tables with 8-byte keys.
template const Executor<std::uint64_t, NoValue>& HostAlgorithms::executor();
template const Executor<std::uint64_t, std::uint64_t>& HostAlgorithms::executor();

}  // namespace gpuhash::host
