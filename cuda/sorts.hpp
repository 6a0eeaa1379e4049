#pragma once

#include <cstdint>

#include <gpuhash/device_context.hpp>

/// Sums and sorts of CUB's. Its headers and sorts take far longer to compile than other kernels: one file has them all.
namespace gpuhash::cuda {

/// numbers[i] becomes the sum of the first i + 1.
void sum_in_place(DeviceContext& context, std::int64_t* numbers, std::int64_t count, Stream stream);

/// As Pairing::group_positions().
void sort_positions(DeviceContext& context, const std::int64_t* codes, std::int64_t count, std::int64_t groups,
                    std::int64_t* offsets, std::int64_t* order, Stream stream);

}  // namespace gpuhash::cuda
