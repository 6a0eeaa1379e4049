#pragma once

#include <cstdint>

#include "core/tuning.hpp"
#include "shared/layout.hpp"

/// What finds most of its memory in the cache of the whole GPU, where other things cost time than beyond it.
namespace gpuhash::cuda {

template <class View>
bool lies_in_l2(const Geometry& geometry) {
  return std::int64_t{geometry.bucket_count} * View::kBucketBytes <= tuning().l2_bytes;
}

}  // namespace gpuhash::cuda
