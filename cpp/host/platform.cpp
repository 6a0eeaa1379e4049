#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include <gpuhash/error.hpp>
#include <gpuhash/platform.hpp>
#include "core/interruption.hpp"
#include "core/thread_pool.hpp"
#include "host/executor.hpp"
#include "host/memory/block_memory.hpp"
#include "host/memory/reserved_memory.hpp"
#include "shared/advance_chain.hpp"

namespace gpuhash {
namespace {

class HostMemory final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, Stream) override { return blocks().allocate(bytes); }
  void deallocate(void* data, std::size_t bytes, Stream) noexcept override { blocks().deallocate(data, bytes); }
  std::unique_ptr<GrowingMemory> reserve(std::size_t bytes) override { return host::ReservedMemory::make(bytes); }

 private:
  /// Of the process; never destroyed, since tables may outlive whatever is.
  static host::BlockMemory& blocks() {
    static auto* const memory = new host::BlockMemory;
    return *memory;
  }
};

/// Nothing to wait for: work is done when its call returns.
class HostFence final : public Fence {
 public:
  void record(Stream) override {}
  void wait(Stream) override {}
  void wait_on(const Device&, Stream) override {}
};

class HostContext final : public DeviceContext {
 public:
  explicit HostContext(std::shared_ptr<MemoryResource> memory) : DeviceContext({"cpu", 0}, std::move(memory)) {}

  bool is_host() const noexcept override { return true; }

  void copy(void* to, const void* from, std::size_t bytes, Stream) override {
    constexpr std::size_t kPiece = std::size_t{1} << 26;  // between two points at which Ctrl-C can end it
    for (std::size_t begin = 0; begin < bytes; begin += kPiece) {
      if (begin != 0) interruption_point();
      std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                  std::min(kPiece, bytes - begin));
    }
  }
  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copy(to, from, bytes, stream);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copy(to, from, bytes, stream);
  }
  void fill(void* to, std::uint8_t byte, std::size_t bytes, Stream) override {
    if (bytes != 0) std::memset(to, byte, bytes);
  }
  void copy_from(void* to, DeviceContext& other, const void* from, std::size_t bytes, Stream stream) override {
    if (other.is_host()) return copy(to, from, bytes, stream);
    other.copy_to_host(to, from, bytes, other.own_stream());
  }
  void synchronize(Stream) override {}
  void synchronize_all() override {}
  std::unique_ptr<Fence> make_fence() override { return std::make_unique<HostFence>(); }
  std::uint64_t stream_id(Stream) override { return 0; }
  Stream own_stream() override { return nullptr; }
  bool is_capturing(Stream) override { return false; }
  std::shared_ptr<void> make_mailbox(std::size_t bytes) override { return std::shared_ptr<char[]>(new char[bytes]()); }
  void advance(const ChainStep& step, Stream) override { advance_chain(step); }
  const Executors& executors() const override {
    static const auto& all = *new Executors(Executors::of<host::HostAlgorithms>());  // never destroyed, as these
    return all;
  }
};

class HostPlatform final : public Platform {
 public:
  std::string name() const override { return "cpu"; }
  std::vector<std::string> devices() const override {
    const int threads = thread_count();
    return {"host memory, " + std::to_string(threads) + (threads == 1 ? " thread" : " threads")};
  }
  std::string unavailable_reason() const override { return {}; }
  std::shared_ptr<DeviceContext> make_context(int index, std::shared_ptr<MemoryResource> memory) override {
    if (index != 0)
      throw PlatformError("there is no device cpu:" + std::to_string(index) + "; the host is one device, \"cpu\"");
    if (memory == nullptr) memory = std::make_shared<HostMemory>();
    return std::make_shared<HostContext>(std::move(memory));
  }
};

[[maybe_unused]] const bool registered = (register_platform(std::make_unique<HostPlatform>()), true);

}  // namespace
}  // namespace gpuhash
