#include "cuda/memory/reserved_memory.hpp"

#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "core/fault_injection.hpp"
#include "core/reservation.hpp"
#include "cuda/check.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace gpuhash::cuda {
namespace {

struct Driver {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetAttribute) device_attribute = nullptr;
  decltype(&cuDeviceTotalMem) device_memory = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_addresses = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
};

const Driver& driver() {
  static const Driver functions = [] {
    Driver found;
    look_up("cuDeviceGet", found.device_get);
    look_up("cuDeviceGetAttribute", found.device_attribute);
    look_up("cuDeviceTotalMem", found.device_memory);
    look_up("cuMemGetAllocationGranularity", found.granularity);
    look_up("cuMemAddressReserve", found.reserve);
    look_up("cuMemAddressFree", found.free_addresses);
    look_up("cuMemCreate", found.create);
    look_up("cuMemRelease", found.release);
    look_up("cuMemMap", found.map);
    look_up("cuMemUnmap", found.unmap);
    look_up("cuMemSetAccess", found.set_access);
    return found;
  }();
  return functions;
}

CUmemLocation location_of(int device) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUmemAllocationProp kind_of_memory(int device) {
  CUmemAllocationProp kind{};
  kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = location_of(device);
  return kind;
}

CUmemAccessDesc access_from(int device) {
  CUmemAccessDesc access{};
  access.location = location_of(device);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

/// Memory that ran out is an OutOfMemoryError here, which promises that nothing has changed.
void check_memory(CUresult result, const std::string& action) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw OutOfMemoryError(action + " failed: out of memory");
  check_driver(result, action.c_str());
}

std::size_t all_memory(int device) {
  CUdevice number = 0;
  std::size_t bytes = 0;
  check_driver(driver().device_get(&number, device), "choosing the CUDA device");
  check_driver(driver().device_memory(&bytes, number), "asking for the size of a GPU's memory");
  return bytes;
}

}  // namespace

class ReservedMemories::Memory final : public GrowingMemory {
 public:
  explicit Memory(ReservedMemories& owner) : owner_(owner) {
    const std::lock_guard lock(owner_.mutex_);
    owner_.all_.insert(this);
  }

  ~Memory() override {
    const std::lock_guard lock(owner_.mutex_);
    owner_.all_.erase(this);
    try {
      const DeviceGuard guard(owner_.device_);
      const BesideCaptures relaxed;
      // Each piece by itself: what was mapped by one call is unmapped by one.
      for (const Piece& piece : pieces_) (void)driver().unmap(piece.first, piece.bytes);
      if (data_ != nullptr) (void)driver().free_addresses(first(), room_);
    } catch (const std::exception&) {
      // At exit the driver may be gone before the last table; its memory went with it.
    }
  }

  bool reserve(std::size_t room) {
    CUdeviceptr first = 0;
    if (driver().reserve(&first, room, 0, 0, 0) != CUDA_SUCCESS) return false;
    data_ = reinterpret_cast<void*>(first);
    room_ = room;
    return true;
  }

  void grow(std::size_t bytes) override {
    if (bytes <= bytes_) return;
    const std::size_t more = round_up(bytes - bytes_, owner_.unit());
    const std::string action = "allocating " + std::to_string(more) + " more bytes of GPU memory";
    if (fails_here(Fault::kMapping)) check_memory(CUDA_ERROR_OUT_OF_MEMORY, action);
    pieces_.reserve(pieces_.size() + 1);
    const DeviceGuard guard(owner_.device_);
    const BesideCaptures relaxed;
    map(create(more, action), more, action);
  }

  bool wait(Stream stream) noexcept override {
    try {
      const DeviceGuard guard(owner_.device_);
      const BesideCaptures relaxed;
      if (cudaStreamSynchronize(handle(stream)) == cudaSuccess) return true;
      (void)cudaGetLastError();
      const bool done = cudaDeviceSynchronize() == cudaSuccess;  // the stream is no more
      (void)cudaGetLastError();
      return done;
    } catch (const std::exception&) {
      return false;  // at exit the driver may be gone before the last table
    }
  }

  void let_in(const CUmemAccessDesc& access) {
    for (const Piece& piece : pieces_)
      check_driver(driver().set_access(piece.first, piece.bytes, &access, 1), "giving another GPU access to memory");
  }

 private:
  struct Piece {
    CUdeviceptr first;
    std::size_t bytes;
  };

  CUdeviceptr first() const { return reinterpret_cast<CUdeviceptr>(data_); }

  CUmemGenericAllocationHandle create(std::size_t bytes, const std::string& action) {
    const CUmemAllocationProp kind = kind_of_memory(owner_.device_);
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = driver().create(&handle, bytes, &kind, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      owner_.free_unused_();
      result = driver().create(&handle, bytes, &kind, 0);
    }
    check_memory(result, action);
    return handle;
  }

  /// Behind what there is. Takes the handle, whatever happens.
  void map(CUmemGenericAllocationHandle handle, std::size_t bytes, const std::string& action) {
    const std::lock_guard lock(owner_.mutex_);
    const Piece piece{first() + bytes_, bytes};
    CUresult result = driver().map(piece.first, piece.bytes, 0, handle, 0);
    const bool is_mapped = result == CUDA_SUCCESS;
    if (is_mapped) result = driver().set_access(piece.first, piece.bytes, owner_.access_.data(), owner_.access_.size());
    if (is_mapped && result != CUDA_SUCCESS) (void)driver().unmap(piece.first, piece.bytes);
    (void)driver().release(handle);  // from now on the mapping alone keeps the memory
    check_memory(result, action);
    pieces_.push_back(piece);
    bytes_ += bytes;
  }

  ReservedMemories& owner_;
  std::vector<Piece> pieces_;  // one behind the other
};

ReservedMemories::ReservedMemories(int device, std::function<void()> free_unused)
    : device_(device), free_unused_(std::move(free_unused)), access_{access_from(device)} {}

std::size_t ReservedMemories::unit() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(asked_, true)) return unit_;
  CUdevice number = 0;
  int is_there = 0;
  const CUmemAllocationProp kind = kind_of_memory(device_);
  if (driver().device_get(&number, device_) != CUDA_SUCCESS ||
      driver().device_attribute(&is_there, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, number) !=
          CUDA_SUCCESS ||
      is_there == 0 || driver().granularity(&unit_, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
    unit_ = 0;
  return unit_;
}

std::unique_ptr<GrowingMemory> ReservedMemories::make(std::size_t bytes) {
  const DeviceGuard guard(device_);
  const BesideCaptures relaxed;
  const std::size_t unit = this->unit();
  if (unit == 0) return nullptr;
  auto memory = std::make_unique<Memory>(*this);
  if (!reserve_addresses(bytes, all_memory(device_), unit, [&](std::size_t room) { return memory->reserve(room); }))
    return nullptr;
  try {
    memory->grow(bytes);
  } catch (const CudaError&) {
    return nullptr;  // not for want of memory: the driver does not give this kind, or says in other calls what is wrong
  }
  return memory;
}

bool ReservedMemories::let_in(int device) {
  const std::lock_guard lock(mutex_);
  const auto known = reached_by_.find(device);
  if (known != reached_by_.end()) return known->second;
  const DeviceGuard guard(device_);
  const BesideCaptures relaxed;
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, device, device_), "asking for access between GPUs");
  if (can != 0) {
    const CUmemAccessDesc access = access_from(device);
    for (Memory* const memory : all_) memory->let_in(access);
    access_.push_back(access);
  }
  return reached_by_[device] = can != 0;
}

}  // namespace gpuhash::cuda
