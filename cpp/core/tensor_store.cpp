#include <gpuhash/tensor_store.hpp>

#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include <gpuhash/platform.hpp>
#include "core/fork_safe_mutex.hpp"

namespace gpuhash::tensor_store {
namespace {

struct Entries {
  ForkSafeMutex mutex;  // entries end outside of it: giving memory back may take Python's GIL
  std::map<std::string, std::shared_ptr<const Entry>> by_name;
};

/// Never destroyed: at exit, Python objects and CUDA may already be gone when a tensor would be freed.
Entries& entries() {
  static auto* entries = new Entries;
  return *entries;
}

/// One context per device, kept for ever, as making one asks the driver.
std::shared_ptr<DeviceContext> context_of(const Device& device) {
  static auto& mutex = *new ForkSafeMutex;
  static auto& contexts = *new std::map<std::pair<std::string, int>, std::shared_ptr<DeviceContext>>;
  const std::lock_guard lock(mutex);
  std::shared_ptr<DeviceContext>& context = contexts[{device.platform, device.index}];
  if (context == nullptr) context = platform(device.platform).make_context(device.index, nullptr);
  return context;
}

/// Memory of one stream, used by the work of another: goes back once that work is done, without the host waiting.
class Loan {
 public:
  Loan(std::shared_ptr<void> memory, std::shared_ptr<DeviceContext> context, Stream user, Stream owner)
      : memory_(std::move(memory)), context_(std::move(context)), user_(user), owner_(owner) {}

  void operator()(void*) noexcept {
    try {
      if (!context_->is_capturing(user_) && !context_->is_capturing(owner_)) {
        const std::unique_ptr<Fence> done = context_->make_fence();
        done->record(user_);
        done->wait(owner_);
      }
    } catch (const std::exception&) {
      // One of the streams was destroyed, or the driver is gone at exit: there is no order left to keep.
    }
    memory_.reset();
  }

 private:
  std::shared_ptr<void> memory_;
  std::shared_ptr<DeviceContext> context_;
  Stream user_;
  Stream owner_;
};

}  // namespace

Entry::Entry(StoredTensor tensor) : tensor_(std::move(tensor)), context_(context_of(tensor_.device)) {
  if (context_->is_capturing(tensor_.stream)) return;
  filled_by_ = context_->stream_id(tensor_.stream);
  filled_ = context_->make_fence();
  filled_->record(tensor_.stream);
}

void Entry::wait(Stream stream) const {
  if (filled_ == nullptr || context_->is_capturing(stream) || context_->stream_id(stream) == filled_by_) return;
  filled_->wait(stream);
}

StoredTensor Entry::lend(Stream stream) const {
  wait(stream);
  StoredTensor lent = tensor_;
  if (filled_ == nullptr || context_->stream_id(stream) != filled_by_) {
    void* const data = tensor_.memory.get();
    lent.memory = std::shared_ptr<void>(data, Loan(tensor_.memory, context_, stream, tensor_.stream));
  }
  return lent;
}

void put(const std::string& name, StoredTensor tensor) {
  std::shared_ptr<const Entry> entry = std::make_shared<Entry>(std::move(tensor));
  const std::lock_guard lock(entries().mutex);
  entries().by_name[name].swap(entry);  // what had the name ends with `entry`, after the lock
}

std::optional<StoredTensor> get(const std::string& name, Stream stream) {
  const std::shared_ptr<const Entry> entry = find(name);
  if (entry == nullptr) return std::nullopt;
  return entry->lend(stream);
}

std::shared_ptr<const Entry> find(const std::string& name) {
  const std::lock_guard lock(entries().mutex);
  const auto found = entries().by_name.find(name);
  return found == entries().by_name.end() ? nullptr : found->second;
}

bool remove(const std::string& name) {
  std::shared_ptr<const Entry> entry;  // ends after the lock
  const std::lock_guard lock(entries().mutex);
  const auto found = entries().by_name.find(name);
  if (found == entries().by_name.end()) return false;
  entry = std::move(found->second);
  entries().by_name.erase(found);
  return true;
}

std::vector<std::string> names() {
  const std::lock_guard lock(entries().mutex);
  std::vector<std::string> names;
  for (const auto& entry : entries().by_name) names.push_back(entry.first);
  return names;
}

}  // namespace gpuhash::tensor_store
