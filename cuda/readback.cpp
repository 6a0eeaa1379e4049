#include "cuda/readback.hpp"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "core/fork_safe_mutex.hpp"
#include "cuda/check.hpp"
#include "cuda/mailbox.hpp"
#include "cuda/messages.hpp"
#include "cuda/stream.hpp"

namespace gpuhash::cuda {
namespace {

/// Letters for all contexts of the process. Pinned memory takes long to get, so what is there is kept until exit.
class Letters {
 public:
  static Letters& all() {
    static Letters* const letters = new Letters;  // kernels may still write at exit
    return *letters;
  }

  Letter* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) collect();
    if (free_.empty()) make();
    Letter* const letter = free_.back();
    free_.pop_back();
    return letter;
  }

  /// Others get it when its last number has come.
  void give_back(Letter* letter, std::uint64_t last) noexcept {
    const std::lock_guard lock(mutex_);
    if (has_come(letter, last))
      free_.push_back(letter);
    else
      awaited_.push_back({letter, last});
  }

  static bool has_come(Letter* letter, std::uint64_t number) {
    return std::atomic_ref(letter->number).load(std::memory_order_acquire) == number;
  }

 private:
  struct Awaited {
    Letter* letter;
    std::uint64_t number;
  };
  static constexpr std::size_t kAtOnce = 256;

  void collect() {
    std::erase_if(awaited_, [&](const Awaited& awaited) {
      if (!has_come(awaited.letter, awaited.number)) return false;
      free_.push_back(awaited.letter);
      return true;
    });
  }

  /// give_back() must not have to allocate.
  void make() {
    void* memory = nullptr;
    const BesideCaptures relaxed;
    check(cudaHostAlloc(&memory, kAtOnce * sizeof(Letter), cudaHostAllocPortable | cudaHostAllocMapped),
          "allocating pinned host memory");
    std::memset(memory, 0, kAtOnce * sizeof(Letter));
    made_ += kAtOnce;
    free_.reserve(made_);
    awaited_.reserve(made_);
    for (std::size_t i = 0; i < kAtOnce; ++i) free_.push_back(static_cast<Letter*>(memory) + i);
  }

  ForkSafeMutex mutex_;
  std::vector<Letter*> free_;
  std::vector<Awaited> awaited_;
  std::size_t made_ = 0;
};

class CudaReadback final : public Readback {
 public:
  CudaReadback(DeviceContext& context, const char* action)
      : context_(context), action_(action), letter_(Letters::all().take()), last_(letter_->number) {}
  ~CudaReadback() override { Letters::all().give_back(letter_, last_); }

  void send(const void* from, std::size_t bytes, Stream stream) override {
    const DeviceGuard guard(context_.device().index);
    cuda::send(action_, static_cast<const std::uint64_t*>(from), static_cast<unsigned>(bytes / sizeof(std::uint64_t)),
               letter_, last_ + 1, stream);
    ++last_;
  }
  const void* arrived() const override { return Letters::has_come(letter_, last_) ? letter_->words : nullptr; }
  const void* wait(Stream stream) override {
    wait_for_number(context_, letter_->number, last_, stream, action_);
    return letter_->words;
  }

 private:
  DeviceContext& context_;
  const char* action_;
  Letter* letter_;
  std::uint64_t last_;
};

}  // namespace

std::unique_ptr<Readback> make_readback(DeviceContext& context) {
  const DeviceGuard guard(context.device().index);
  return std::make_unique<CudaReadback>(context, "reading counters");
}

bool read_back(DeviceContext& context, void* to, const void* from, std::size_t bytes, Stream stream,
               const char* action) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  if (bytes > Readback::kMostBytes || bytes % kWord != 0 || reinterpret_cast<std::uintptr_t>(from) % kWord != 0)
    return false;
  const DeviceGuard guard(context.device().index);
  if (is_capturing(stream)) return false;  // each replay would write into the letter, whoever has it then
  std::optional<CudaReadback> readback;
  try {
    readback.emplace(context, action);
  } catch (const OutOfMemoryError&) {
    return false;  // no pinned memory
  }
  readback->send(from, bytes, stream);
  std::memcpy(to, readback->wait(stream), bytes);
  return true;
}

}  // namespace gpuhash::cuda
