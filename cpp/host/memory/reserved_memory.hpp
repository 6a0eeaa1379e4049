#pragma once

#include <cstddef>
#include <memory>

#include <gpuhash/device_context.hpp>

namespace gpuhash::host {

/// Addresses of this process, the first of which can be read and written.
class ReservedMemory final : public GrowingMemory {
 public:
  /// Null where no addresses are to be had, or they are rationed. Throws OutOfMemoryError.
  static std::unique_ptr<ReservedMemory> make(std::size_t bytes);
  ~ReservedMemory() override;

  void grow(std::size_t bytes) override;
  bool wait(Stream) noexcept override { return true; }

 private:
  ReservedMemory() = default;
  bool reserve(std::size_t room);
};

}  // namespace gpuhash::host
