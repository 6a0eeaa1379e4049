#include <gpuhash/platform.hpp>

#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <gpuhash/error.hpp>
#include "core/fork_safe_mutex.hpp"

namespace gpuhash {
namespace {

struct PlatformRegistry {
  ForkSafeMutex mutex;
  std::map<std::string, std::unique_ptr<Platform>> platforms;
};

/// Made by whoever comes first, since platforms register while the library's static objects are made, in no set order.
/// Never destroyed: tables that outlive main() still use their platform.
PlatformRegistry& registry() {
  static PlatformRegistry& instance = *new PlatformRegistry;
  return instance;
}

}  // namespace

void register_platform(std::unique_ptr<Platform> platform) {
  const std::string name = platform->name();
  const std::lock_guard lock(registry().mutex);
  if (!registry().platforms.emplace(name, std::move(platform)).second)
    throw std::invalid_argument("a platform named '" + name + "' is already registered");
}

Platform& platform(const std::string& name) {
  const std::lock_guard lock(registry().mutex);
  const auto& platforms = registry().platforms;
  if (const auto found = platforms.find(name); found != platforms.end()) return *found->second;
  std::string message = "no platform named '" + name + "'; this build has";
  for (auto it = platforms.begin(); it != platforms.end(); ++it)
    message += (it == platforms.begin() ? " '" : ", '") + it->first + "'";
  if (name == "cuda")
    message +=
        " only, for it was made without a CUDA compiler: build it again with one, and "
        "GPUHASH_CUDA=ON";
  throw PlatformError(message);
}

std::vector<std::string> platform_names() {
  const std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (const auto& [name, platform] : registry().platforms) names.push_back(name);
  return names;
}

}  // namespace gpuhash
