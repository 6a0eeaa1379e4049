#pragma once

#include <cstdint>

#include "shared/layout.hpp"

/// What finds most of its memory in the cache of the whole GPU, where other things cost time than beyond it.
namespace gpuhash::cuda {

/// L2 has 50 to 60 MiB on an H100 or H200; of a table of so many bytes, half of the accesses still meet it.
inline constexpr std::uint64_t kL2Bytes = std::uint64_t{96} << 20;

template <class View>
bool lies_in_l2(const Geometry& geometry) {
  return std::uint64_t{geometry.bucket_count} * View::kBucketBytes <= kL2Bytes;
}

}  // namespace gpuhash::cuda
