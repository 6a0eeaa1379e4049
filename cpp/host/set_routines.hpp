#pragma once

#include "table/set_routines.hpp"

namespace gpuhash {

const SetRoutines& host_set_routines();

}  // namespace gpuhash
