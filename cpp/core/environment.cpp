#include "core/environment.hpp"

#include <cstdlib>

namespace gpuhash {
namespace {

std::string read(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace

const Environment& environment() {
  // Never destroyed: threads of the pool outlive main().
  static const auto& values =
      *new Environment{read("GPUHASH_NUM_THREADS"), read("GPUHASH_SIMD"), read("GPUHASH_PEER_ACCESS") != "0"};
  return values;
}

namespace {

[[maybe_unused]] const Environment& read_when_loaded = environment();

}  // namespace
}  // namespace gpuhash
