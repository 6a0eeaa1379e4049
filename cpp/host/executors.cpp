#include "host/executor.hpp"
#include "host/factorization.hpp"

namespace gpuhash {

const Executors& host_executors() {
  static const Executors executors = [] {
    Executors all;
    add_host_executors_4(all);
    add_host_executors_8(all);
    add_host_executors_16(all);
    all.factorizer = &host_factorizer();
    return all;
  }();
  return executors;
}

}  // namespace gpuhash
