#include "host/executor_impl.hpp"

namespace gpuhash::host {

/// Tables with 4-byte keys.
template const Executor<std::uint32_t, NoValue>& HostAlgorithms::executor();
template const Executor<std::uint32_t, std::uint32_t>& HostAlgorithms::executor();

}  // namespace gpuhash::host
