#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpuhash {

/// std::out_of_range where the greatest of all indices is of no row.
inline void throw_if_outside(std::int64_t most, std::int64_t rows) {
  if (most >= rows)
    throw std::out_of_range("index " + std::to_string(most) + " is out of bounds for columns of " +
                            std::to_string(rows) + (rows == 1 ? " row" : " rows") +
                            ": give indices below that, and -1 for the fill value");
}

}  // namespace gpuhash
