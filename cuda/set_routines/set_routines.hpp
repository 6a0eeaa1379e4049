#pragma once

#include "table/set_routines.hpp"

namespace gpuhash::cuda {

const SetRoutines& cuda_set_routines();

}  // namespace gpuhash::cuda
