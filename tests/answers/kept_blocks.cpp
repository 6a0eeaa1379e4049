// What host::KeptBlocks keeps, for tests/test_kept_blocks.py: blocks of as many bytes in all as the argument says.
// Reads lines "take BYTES" and "keep NUMBER", where NUMBER is that of an earlier line "take", from 0. Writes for each
// "take" the number of the block that it got, a new one if it was allocated, and its capacity; for each "keep" nothing.
// For "most BYTES" it writes what is kept where processes have so much memory, and 0; for "memory 0" how much they have
// here, and the machine.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "core/machine_memory.hpp"
#include "host/memory/kept_blocks.hpp"

int main(int, char** arguments) {
  gpuhash::host::KeptBlocks blocks(std::stoull(arguments[1]));
  std::map<void*, std::size_t> numbers;  // of blocks in use or kept
  struct Taken {
    void* data;
    std::size_t bytes;
  };
  std::vector<Taken> taken;
  std::string what;
  for (std::size_t argument; std::cin >> what >> argument;) {
    if (what == "most") {
      std::cout << gpuhash::host::KeptBlocks::most_of(argument) << " 0\n";
      continue;
    }
    if (what == "memory") {
      std::cout << gpuhash::memory_of_container() << ' ' << gpuhash::machine_memory() << '\n';
      continue;
    }
    if (what == "keep") {
      const Taken block = taken.at(argument);
      std::memset(block.data, 1, block.bytes);
      blocks.keep(block.data, blocks.capacity(block.bytes));
      continue;
    }
    const std::size_t capacity = blocks.capacity(argument);
    void* data = blocks.take(capacity);
    const bool is_new = data == nullptr;
    if (is_new && posix_memalign(&data, 64, capacity) != 0) return 1;
    std::memset(data, 2, capacity);
    if (is_new) numbers[data] = taken.size();
    std::cout << numbers[data] << ' ' << capacity << '\n';
    taken.push_back({data, argument});
  }
}
