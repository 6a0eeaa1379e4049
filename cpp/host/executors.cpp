#include "host/executor.hpp"
#include "host/set_routines.hpp"

namespace gpuhash {

const Executors& host_executors() {
  static const Executors executors = [] {
    Executors all;
    add_host_executors_4(all);
    add_host_executors_8(all);
    add_host_executors_16(all);
    all.set_routines = &host_set_routines();
    return all;
  }();
  return executors;
}

}  // namespace gpuhash
