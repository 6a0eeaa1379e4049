#pragma once

#include <gpuhash/factorization.hpp>

namespace gpuhash {

const Factorizer& host_factorizer();

}  // namespace gpuhash
