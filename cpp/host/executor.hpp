#pragma once

#include "table/executor.hpp"

namespace gpuhash {

/// The algorithms on the host for all slot types.
const Executors& host_executors();

/// Defined in one source file per key width, which compile side by side.
void add_host_executors_4(Executors& executors);
void add_host_executors_8(Executors& executors);
void add_host_executors_16(Executors& executors);

}  // namespace gpuhash
