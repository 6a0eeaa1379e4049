#include "core/machine_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace gpuhash {

std::size_t machine_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page) : 0;
}

std::size_t memory_of_container() {
  std::size_t least = machine_memory();
  // Of version 2, where "max" stands for no limit, and of version 1. A container has its own group there.
  for (const char* const limit : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(limit);
    std::size_t bytes = 0;
    if (file >> bytes) least = std::min(least, bytes);
  }
  return least;
}

}  // namespace gpuhash
