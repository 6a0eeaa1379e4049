#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include <gpuhash/device_context.hpp>
#include <gpuhash/export.hpp>
#include "core/fork_safe_mutex.hpp"

namespace gpuhash {

/// Single values in the memory of a table's device, found again by their bytes: defaults of absent keys, and values
/// that go to all keys. Each is copied there once and stays as long as the table, as work on any stream may be reading
/// it, and so may a CUDA graph. There is a bound; values beyond it are copied anew for every call.
class GPUHASH_API Constants {
 public:
  explicit Constants(DeviceContext& context) : context_(context) {}
  Constants(const Constants&) = delete;
  Constants& operator=(const Constants&) = delete;

  /// The value in the device's memory. Waits where it is new. Beyond the bound it lies in `temporary`, which the caller
  /// holds until its work is enqueued on `stream`. Null where it is not there and the stream is being captured: a copy
  /// would be taken only when the graph runs.
  const void* upload(std::string_view bytes, Stream stream, Allocation& temporary);

  /// The stream in whose order the memory is given back: that of the table's last call, as calls follow each other.
  void set_stream(Stream stream) noexcept;
  /// As Allocation::lend().
  void lend(const std::shared_ptr<DeviceContext>& context) noexcept;

 private:
  static constexpr std::size_t kMaxValues = 256;
  static constexpr std::size_t kMaxBytes = std::size_t{4} << 20;

  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  DeviceContext& context_;
  ForkSafeMutex mutex_;
  std::unordered_map<std::string, Allocation, Hash, std::equal_to<>> uploaded_;
  std::size_t bytes_ = 0;
};

}  // namespace gpuhash
