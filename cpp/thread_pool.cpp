#include "thread_pool.hpp"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace gpuhash {
namespace {

constexpr int kMaxThreads = 1024;

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// One call of parallel_for, on its caller's stack.
struct Job {
  int parts;
  void (*call)(void*, int);
  void* context;
  std::atomic<int> next{0};
  std::mutex error_mutex{};
  std::exception_ptr error{};

  void work() {
    for (int part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
      try {
        call(context, part);
      } catch (...) {
        next.store(parts, std::memory_order_relaxed);
        const std::lock_guard lock(error_mutex);
        if (error == nullptr) error = std::current_exception();
      }
    }
  }
};

/// Its threads sleep between jobs and are never joined: the pool lives as long as the process.
class ThreadPool {
 public:
  ThreadPool() {
    const int threads = thread_count();
    try {
      for (int i = 1; i < threads; ++i) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // The system gives no more threads: those that there are, if only the caller's, do the work.
    }
  }

  /// False where another job has the pool.
  bool run(Job& job) {
    if (busy_.test_and_set(std::memory_order_acquire)) return false;
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      ++generation_;
    }
    wake_.notify_all();
    job.work();
    {
      std::unique_lock lock(mutex_);
      job_ = nullptr;  // who wakes late must not touch the job, which dies with this call
      idle_.wait(lock, [this] { return active_ == 0; });
    }
    busy_.clear(std::memory_order_release);
    return true;
  }

 private:
  [[noreturn]] void serve() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (job_ == nullptr) continue;
      Job& job = *job_;
      ++active_;
      lock.unlock();
      job.work();
      lock.lock();
      if (--active_ == 0) idle_.notify_one();
    }
  }

  std::atomic_flag busy_{};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  int active_ = 0;
};

std::atomic<ThreadPool*> current_pool{nullptr};

/// A forked child has none of the threads, and mutexes in whatever state they were: it forgets the pool and makes
/// another when it needs one.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { current_pool.store(nullptr); });

/// Without a lock, which a fork could leave locked in the child. Two first callers at once make one pool too many,
/// whose threads sleep for ever.
ThreadPool& pool() {
  ThreadPool* existing = current_pool.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  auto* made = new ThreadPool;
  return current_pool.compare_exchange_strong(existing, made, std::memory_order_acq_rel) ? *made : *existing;
}

}  // namespace

int thread_count() {
  const char* text = std::getenv("GPUHASH_NUM_THREADS");
  if (text == nullptr || *text == '\0') return std::min(usable_cores(), kMaxThreads);
  int threads = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, threads);
  if (error != std::errc{} || stop != end || threads < 1)
    throw std::invalid_argument("GPUHASH_NUM_THREADS is '" + std::string(text) + "'; expected a positive number");
  return std::min(threads, kMaxThreads);
}

void detail::run_parts(int parts, void (*call)(void*, int), void* context) {
  Job job{parts, call, context};
  if (parts <= 1 || !pool().run(job)) job.work();
  if (job.error != nullptr) std::rethrow_exception(job.error);
}

}  // namespace gpuhash
