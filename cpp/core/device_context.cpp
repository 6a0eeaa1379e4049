#include <gpuhash/device_context.hpp>

#include <atomic>
#include <exception>
#include <utility>
#include <vector>

#include "core/fork_safe_mutex.hpp"

namespace gpuhash {
namespace {

std::atomic<CaptureTest> capture_test{nullptr};
std::atomic<IgnoredErrorReport> ignored_error_report{nullptr};
thread_local std::uint64_t kernels = 0;

/// Lent memory that could not be given back yet, since a stream was being captured. Never destroyed: at exit the driver
/// may be gone before it.
struct Postponed {
  ForkSafeMutex mutex;
  std::vector<Allocation> memory;
};

Postponed& postponed() {
  static Postponed& instance = *new Postponed;
  return instance;
}

bool is_capturing_here(DeviceContext& context) {
  const CaptureTest test = capture_test.load(std::memory_order_acquire);
  return test != nullptr && test(context);
}

}  // namespace

std::uint64_t launched_kernels() noexcept { return kernels; }

void note_launched_kernel() noexcept { ++kernels; }

void set_capture_test(CaptureTest test) noexcept { capture_test.store(test, std::memory_order_release); }

void set_ignored_error_report(IgnoredErrorReport report) noexcept {
  ignored_error_report.store(report, std::memory_order_release);
}

void report_ignored_error(const char* while_doing) noexcept {
  if (const IgnoredErrorReport report = ignored_error_report.load(std::memory_order_acquire))
    report(while_doing, std::current_exception());
}

Allocation Allocation::growing(DeviceContext& context, std::size_t bytes, Stream stream) {
  std::unique_ptr<GrowingMemory> memory = context.memory().reserve(bytes);
  if (memory == nullptr) return {context, bytes, stream};
  Allocation made;
  made.memory_ = context.shared_memory();
  made.data_ = memory->data();
  made.bytes_ = memory->bytes();
  made.stream_ = stream;
  made.growing_ = std::move(memory);
  return made;
}

void Allocation::give_back_lent(Allocation lent) noexcept {
  std::vector<Allocation> all;
  try {
    {
      const std::lock_guard lock(postponed().mutex);
      all.swap(postponed().memory);
    }
    all.push_back(std::move(lent));
    for (Allocation& each : all) {
      if (is_capturing_here(*each.lent_)) throw std::exception();
      each.lent_->synchronize_all();
      each.set_stream(each.lent_->own_stream());  // the one of before may have been destroyed
      each.lent_.reset();
    }
  } catch (const std::exception&) {
    // Readers may still be at work, and nothing tells when they end: with the next lent memory, or never.
    const std::lock_guard lock(postponed().mutex);
    for (Allocation& each : all)
      if (each.lent_ != nullptr) postponed().memory.push_back(std::move(each));
  }
}

}  // namespace gpuhash
