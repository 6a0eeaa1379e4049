#pragma once

#include <cstdint>

#include <gpuhash/device_context.hpp>

/// Kernels of one warp, by which a stream tells others how far it is.
namespace gpuhash::cuda {

/// What a kernel writes, in pinned memory.
struct Letter {
  std::uint64_t words[Readback::kMostBytes / sizeof(std::uint64_t)];
  std::uint64_t number;  // of the letter; written last
};
static_assert(sizeof(Letter) == 256);

/// Copies words from the device's memory into the letter, and then its number. `action` is what errors name.
void send(const char* action, const std::uint64_t* from, unsigned words, Letter* letter, std::uint64_t number,
          Stream stream);

/// advance_chain() on the device.
void advance(const ChainStep& step, Stream stream);

}  // namespace gpuhash::cuda
