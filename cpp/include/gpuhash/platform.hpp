#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gpuhash/device_context.hpp>
#include <gpuhash/export.hpp>

namespace gpuhash {

/// A kind of device ("cpu", "cuda"), registered by name when libgpuhash is loaded. Tables do not ask for this name.
/// They ask their context whether it is the host (`DeviceContext::is_host`), as its work is done when a call returns.
/// The bindings ask for the name, where arrays of other libraries come in and go out.
class GPUHASH_API Platform {
 public:
  virtual ~Platform() = default;
  virtual std::string name() const = 0;
  /// Usable devices, described; empty where there are none.
  virtual std::vector<std::string> devices() const = 0;
  /// Why there are no devices, in one sentence; empty where there are some.
  virtual std::string unavailable_reason() const = 0;
  /// A context for one device. `memory` null: the platform's own resource. Throws PlatformError.
  virtual std::shared_ptr<DeviceContext> make_context(int index, std::shared_ptr<MemoryResource> memory) = 0;
};

GPUHASH_API void register_platform(std::unique_ptr<Platform> platform);
/// Throws PlatformError, which names the platforms of this build.
GPUHASH_API Platform& platform(const std::string& name);
GPUHASH_API std::vector<std::string> platform_names();

}  // namespace gpuhash
