#include "core/random_seed.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

namespace gpuhash {
namespace {

std::uint64_t entropy() {
  std::uint64_t word = 0;
  if (getentropy(&word, sizeof word) != 0)
    throw std::system_error(errno, std::generic_category(), "the system gives no random numbers");
  return word;
}

}  // namespace

/// SplitMix64 (G. L. Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014), from a state that
/// the system gives once: asking it each time would take as long as a small batch.
std::uint64_t random_seed() {
  static std::atomic<std::uint64_t> state{entropy()};
  static const std::uint64_t secret = entropy();
  std::uint64_t z = state.fetch_add(0x9e3779b97f4a7c15ull, std::memory_order_relaxed) + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return (z ^ (z >> 31)) + secret;
}

}  // namespace gpuhash
