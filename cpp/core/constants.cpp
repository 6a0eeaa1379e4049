#include "core/constants.hpp"

#include <mutex>
#include <utility>

namespace gpuhash {

const void* Constants::upload(std::string_view bytes, Stream stream, Allocation& temporary) {
  let_fork_pass();
  const std::lock_guard lock(mutex_);
  if (const auto known = uploaded_.find(bytes); known != uploaded_.end()) return known->second.get();
  if (context_.is_capturing(stream)) return nullptr;
  Allocation memory(context_, bytes.size(), stream);
  context_.copy_from_host(memory.get(), bytes.data(), bytes.size(), stream);
  // So that work on other streams may read it as well, and so that the caller's bytes may go.
  context_.synchronize(stream);
  if (uploaded_.size() < kMaxValues && bytes_ + bytes.size() <= kMaxBytes) {
    bytes_ += bytes.size();
    return uploaded_.emplace(bytes, std::move(memory)).first->second.get();
  }
  temporary = std::move(memory);
  return temporary.get();
}

void Constants::set_stream(Stream stream) noexcept {
  for (auto& [bytes, memory] : uploaded_) memory.set_stream(stream);
}

void Constants::lend(const std::shared_ptr<DeviceContext>& context) noexcept {
  for (auto& [bytes, memory] : uploaded_) memory.lend(context);
}

}  // namespace gpuhash
