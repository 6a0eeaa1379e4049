#include "host/executor_impl.hpp"

namespace gpuhash {

/// Tables with 4-byte keys.
void add_host_executors_4(Executors& executors) {
  static const host::HostExecutor<std::uint32_t, NoValue> set;
  static const host::HostExecutor<std::uint32_t, std::uint32_t> map;
  executors.k4 = &set;
  executors.k4v4 = &map;
}

}  // namespace gpuhash
