#pragma once

#include <cstdint>

#include <gpuhash/export.hpp>

/// For tests, which cannot make memory or a device fail at will: the points where those can fail ask here whether they
/// shall. (Memory resources are injected anyway, and need nothing of this.)
namespace gpuhash {

enum class Fault : std::uint8_t {
  kScratch,  // scratch memory of the host's algorithms: as if there were no memory
  kLaunch,   // a CUDA kernel: as if the device had no resources for it, so that it does not run
  kMapping,  // memory that grows where it lies, from its first bytes on: as if there were no memory
};

/// Makes the point of this kind that is reached after `after` others fail, once; -1: none. Returns whether the one that
/// was asked for before is still to come.
GPUHASH_API bool inject_fault(Fault kind, std::int64_t after) noexcept;

/// Does the point that asks have to fail? From any thread; true once for each inject_fault().
GPUHASH_API bool fails_here(Fault kind) noexcept;

}  // namespace gpuhash
