#include "core/thread_pool.hpp"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/environment.hpp"
#include "core/float_mode.hpp"
#include "core/fork_safe_mutex.hpp"
#include "core/interruption.hpp"

namespace gpuhash {
namespace {

using Clock = std::chrono::steady_clock;

/// Ctrl-C ends an operation within some of these.
constexpr std::chrono::milliseconds kBetweenTests{100};

std::atomic<InterruptionTest> interruption_test{nullptr};

/// 0: nobody has set a number.
std::atomic<int> threads_set{0};

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
  int locks_held;
  const LockHolder* caller;
  std::atomic<int> next{0};
  std::atomic<bool> interrupted{false};
  std::mutex error_mutex{};
  std::exception_ptr error{};

  void work();

  void fail(std::exception_ptr reason) {
    next.store(parts, std::memory_order_relaxed);
    const std::lock_guard lock(error_mutex);
    if (error == nullptr) error = std::move(reason);
  }
};

/// What a thread is doing.
struct Activity {
  Job* job = nullptr;        // the one that it works for
  bool is_workers = false;   // the thread is the pool's: only the one that called asks whether to end
  int points = 0;            // interruption points that the operation has passed, up to two
  Clock::time_point next{};  // from the second one on: when to ask next
};

thread_local Activity activity;

/// True every kBetweenTests, if then the thread shall end its operation. The clock is not read at the first point, as
/// most operations have no other.
bool is_asked_to_end() {
  if (activity.is_workers) return false;
  if (activity.points == 0) {
    activity.points = 1;
    return false;
  }
  const InterruptionTest test = interruption_test.load(std::memory_order_acquire);
  if (test == nullptr) return false;
  const Clock::time_point now = Clock::now();
  const bool is_second = std::exchange(activity.points, 2) == 1;
  if (!is_second && now < activity.next) return false;
  activity.next = now + kBetweenTests;
  return !is_second && test();
}

void Job::work() {
  Job* const outer = std::exchange(activity.job, this);
  const LockHolder holder{caller};
  const LockHolder* const outer_holder = lock_holder();
  set_lock_holder(&holder);
  for (int part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
    try {
      call(context, part);
    } catch (const Interrupted&) {
      interrupted.store(true, std::memory_order_relaxed);
      fail(std::current_exception());
    } catch (...) {
      fail(std::current_exception());
    }
  }
  set_lock_holder(outer_holder);
  activity.job = outer;
}

/// For so long threads watch for the next job, and callers for the last thread, before they sleep: who sleeps comes 50
/// to 150 us late, and a large batch is a job after the other, some 300 us long.
constexpr std::chrono::microseconds kWatch{200};

/// Its threads are never joined: the pool lives as long as the process.
class ThreadPool {
 public:
  /// False where another job has the pool.
  bool run(Job& job) {
    const int helpers = std::min(job.parts, thread_count()) - 1;
    if (busy_.test_and_set(std::memory_order_acquire)) return false;
    start_threads(helpers);
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    job.work();
    watch_until([&] { return active_.load(std::memory_order_acquire) == 0; });
    {
      std::unique_lock lock(mutex_);
      job_ = nullptr;  // who wakes late must not touch the job, which dies with this call
      const auto all_idle = [this] { return active_.load(std::memory_order_relaxed) == 0; };
      while (!idle_.wait_for(lock, kBetweenTests, all_idle)) {
        lock.unlock();  // the test may wait for the GIL
        // Heard at the interruption points of the parts that are left. Those that have none are done whole, and so is
        // what their caller does with them.
        if (is_asked_to_end()) job.interrupted.store(true, std::memory_order_relaxed);
        lock.lock();
      }
    }
    busy_.clear(std::memory_order_release);
    return true;
  }

 private:
  void start_threads(int wanted) {
    try {
      for (; threads_ < wanted; ++threads_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // The system gives no more threads: those that there are, if only the caller's, do the work.
    }
  }

  [[noreturn]] void serve() {
    activity.is_workers = true;
    const DefaultFloatMode float_mode;  // not that of the thread which happened to start it
    std::uint64_t seen = 0;
    const auto has_next = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, has_next);
      seen = generation_.load(std::memory_order_relaxed);
      if (job_ == nullptr) continue;
      Job& job = *job_;
      active_.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      set_locks_held(job.locks_held);
      job.work();
      set_locks_held(0);
      lock.lock();
      if (active_.fetch_sub(1, std::memory_order_release) == 1) idle_.notify_one();
      lock.unlock();
      watch_until(has_next);
      lock.lock();
    }
  }

  template <class Done>
  static void watch_until(Done done) {
    for (const auto end = Clock::now() + kWatch; !done() && Clock::now() < end;) std::this_thread::yield();
  }

  std::atomic_flag busy_{};
  int threads_ = 0;  // under busy_
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Job* job_ = nullptr;
  std::atomic<std::uint64_t> generation_{0};  // written under the lock
  std::atomic<int> active_{0};                // likewise
};

std::atomic<ThreadPool*> pools[2] = {nullptr, nullptr};

/// A forked child has none of the threads, and mutexes in whatever state they were: it forgets the pools and makes
/// others when it needs them.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] {
  for (auto& pool : pools) pool.store(nullptr);
});

/// Without a lock, which a fork could leave locked in the child. Two first callers at once make one pool too many,
/// which never gets any threads.
ThreadPool& pool(detail::Threads threads) {
  auto& current = pools[threads == detail::Threads::kForLaunches];
  ThreadPool* existing = current.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  auto* made = new ThreadPool;
  if (current.compare_exchange_strong(existing, made, std::memory_order_acq_rel)) return *made;
  delete made;
  return *existing;
}

}  // namespace

void set_thread_count(int threads) noexcept {
  threads_set.store(std::clamp(threads, 0, kMaxThreads), std::memory_order_relaxed);
}

int thread_count() {
  if (const int set = threads_set.load(std::memory_order_relaxed); set != 0) return set;
  const std::string& text = environment().threads;
  if (text.empty()) return std::min(usable_cores(), kMaxThreads);
  int threads = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, threads);
  if (error != std::errc{} || stop != end || threads < 1)
    throw std::invalid_argument("GPUHASH_NUM_THREADS is '" + text +
                                "'; expected a positive number: set it so, or unset it, and start again");
  return std::min(threads, kMaxThreads);
}

void set_interruption_test(InterruptionTest test) noexcept { interruption_test.store(test, std::memory_order_release); }

void begin_operation() noexcept { activity.points = 0; }

void interruption_point() {
  if (activity.job != nullptr && activity.job->interrupted.load(std::memory_order_relaxed)) throw Interrupted();
  if (is_asked_to_end()) throw Interrupted();
}

void detail::run_parts(Threads threads, int parts, void (*call)(void*, int), void* context) {
  const DefaultFloatMode float_mode;
  Job job{parts, call, context, locks_held(), lock_holder()};
  if (parts <= 1 || !pool(threads).run(job)) job.work();
  if (job.error != nullptr) std::rethrow_exception(job.error);
}

}  // namespace gpuhash
