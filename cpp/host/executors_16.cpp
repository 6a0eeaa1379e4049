#include "host/executor_impl.hpp"

namespace gpuhash {

/// Tables with 16-byte keys.
void add_host_executors_16(Executors& executors) {
  static const host::HostExecutor<Uint128, NoValue> set;
  static const host::HostExecutor<Uint128, std::uint64_t> map;
  executors.k16 = &set;
  executors.k16v8 = &map;
}

}  // namespace gpuhash
