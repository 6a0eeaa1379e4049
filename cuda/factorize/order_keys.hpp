#pragma once

#include <cstdint>

#include <gpuhash/device_context.hpp>

namespace gpuhash::cuda {

/// sorted_ids[j] = the rank of key j in ascending order. low and high are the order words of the keys [count],
/// distinct, and scratch from then on; `bits` is how many low bits of both together can be set: up to 64, high is not
/// read.
void order_keys(DeviceContext& context, std::uint64_t* low, std::uint64_t* high, std::uint32_t bits, std::int64_t count,
                std::int64_t* sorted_ids, Stream stream);

}  // namespace gpuhash::cuda
