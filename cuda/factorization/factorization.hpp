#pragma once

#include <gpuhash/factorization.hpp>

namespace gpuhash::cuda {

const Factorizer& cuda_factorizer();

}  // namespace gpuhash::cuda
