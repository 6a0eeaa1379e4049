// The hashes of the library's own header, for tests/test_golden.py. Arguments, any number of times: bytes per key,
// seed, low word, high word. One line for each four: the hash, and the one that comes in late, of a table given that
// seed.

#include "answers.hpp"

#include <cstdint>
#include <cstdio>
#include <string>

#include "shared/hash.hpp"

namespace {

template <class Key>
void print(const Key& key, std::uint64_t seed) {
  const std::uint64_t late_seed = gpuhash::hash_key(seed, gpuhash::detail::kHashFold);
  std::printf("%llu %lu\n", static_cast<unsigned long long>(gpuhash::hash_key(key, seed)),
              static_cast<unsigned long>(gpuhash::late_hash(key, late_seed)));
}

}  // namespace

int hashes(int count, char** arguments) {
  const auto number = [&](int i) { return std::uint64_t{std::stoull(arguments[i])}; };
  for (int i = 1; i + 3 < count; i += 4) {
    const std::uint64_t seed = number(i + 1), low = number(i + 2), high = number(i + 3);
    switch (number(i)) {
      case 4:
        print(static_cast<std::uint32_t>(low), seed);
        break;
      case 8:
        print(low, seed);
        break;
      default:
        print(gpuhash::Uint128{low, high}, seed);
    }
  }
  return 0;
}
