#include "host/memory/reserved_memory.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdint>
#include <string>

#include <gpuhash/error.hpp>
#include "core/fault_injection.hpp"
#include "core/machine_memory.hpp"
#include "core/reservation.hpp"
#include "host/memory/huge_pages.hpp"

namespace gpuhash::host {
namespace {

/// `ulimit -v` counts addresses, whether there is memory behind them or not.
bool addresses_are_rationed() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

std::unique_ptr<ReservedMemory> ReservedMemory::make(std::size_t bytes) {
  if (addresses_are_rationed()) return nullptr;
  std::unique_ptr<ReservedMemory> made(new ReservedMemory);
  if (!reserve_addresses(bytes, machine_memory(), kHugePage, [&](std::size_t room) { return made->reserve(room); }))
    return nullptr;
  made->grow(bytes);
  return made;
}

ReservedMemory::~ReservedMemory() {
  if (data_ != nullptr) munmap(data_, room_);
}

/// Without MAP_NORESERVE: memory that can be written is then counted when it can be, and refused where there is too
/// little, as that of malloc() is; addresses that nobody may use are not counted in either case.
bool ReservedMemory::reserve(std::size_t room) {
  void* const mapped = mmap(nullptr, room + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return false;
  char* const first = static_cast<char*>(mapped);
  const std::size_t before =
      round_up(reinterpret_cast<std::uintptr_t>(mapped), kHugePage) - reinterpret_cast<std::uintptr_t>(mapped);
  if (before != 0) munmap(first, before);
  munmap(first + before + room, kHugePage - before);
  data_ = first + before;
  room_ = room;
  wish_for_huge_pages(data_, room_);
  return true;
}

void ReservedMemory::grow(std::size_t bytes) {
  if (bytes <= bytes_) return;
  const std::size_t more = round_up(bytes - bytes_, kHugePage);
  if (fails_here(Fault::kMapping) || mprotect(static_cast<char*>(data_) + bytes_, more, PROT_READ | PROT_WRITE) != 0)
    throw OutOfMemoryError("could not allocate " + std::to_string(more) + " more bytes of host memory");
  bytes_ += more;
}

}  // namespace gpuhash::host
