#include "host/executor_impl.hpp"

namespace gpuhash {

/// Tables with 8-byte keys.
void add_host_executors_8(Executors& executors) {
  static const host::HostExecutor<std::uint64_t, NoValue> set;
  static const host::HostExecutor<std::uint64_t, std::uint64_t> map;
  executors.k8 = &set;
  executors.k8v8 = &map;
}

}  // namespace gpuhash
