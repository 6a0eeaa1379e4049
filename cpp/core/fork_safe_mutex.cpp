#include "core/fork_safe_mutex.hpp"

#include <atomic>
#include <stdexcept>

namespace gpuhash {
namespace {

thread_local int held = 0;
thread_local constinit LockHolder this_thread{};
thread_local constinit const LockHolder* works_as = nullptr;

}  // namespace

const LockHolder* lock_holder() noexcept { return works_as != nullptr ? works_as : &this_thread; }
void set_lock_holder(const LockHolder* holder) noexcept { works_as = holder; }

/// The list of all locks, and the lock of the list. Made by whoever comes first and never destroyed: locks of static
/// objects are made before main() and used after it.
class AllLocks {
 public:
  static AllLocks& instance() {
    static AllLocks& all = *new AllLocks;
    return all;
  }

  void add(ForkSafeMutex& mutex) {
    const std::lock_guard lock(list_mutex_);
    mutex.after_ = first_;
    if (first_ != nullptr) first_->before_ = &mutex;
    first_ = &mutex;
  }
  void remove(ForkSafeMutex& mutex) {
    const std::lock_guard lock(list_mutex_);
    (mutex.before_ != nullptr ? mutex.before_->after_ : first_) = mutex.after_;
    if (mutex.after_ != nullptr) mutex.after_->before_ = mutex.before_;
  }

  bool try_lock() {
    if (held != 0) return true;
    if (!list_mutex_.try_lock()) return false;
    for (ForkSafeMutex* mutex = first_; mutex != nullptr; mutex = mutex->after_)
      if (!mutex->mutex_.try_lock()) {
        unlock_until(mutex);
        return false;
      }
    return taken_ = true;
  }
  void unlock() {
    if (taken_) unlock_until(nullptr);
  }

  std::atomic<int> forks{0};  // announced

 private:
  void unlock_until(const ForkSafeMutex* end) {
    taken_ = false;
    for (ForkSafeMutex* mutex = first_; mutex != end; mutex = mutex->after_) mutex->mutex_.unlock();
    list_mutex_.unlock();
  }

  std::mutex list_mutex_;
  ForkSafeMutex* first_ = nullptr;
  bool taken_ = false;  // all locks, by the one that forks
};

ForkSafeMutex::ForkSafeMutex() { AllLocks::instance().add(*this); }
ForkSafeMutex::~ForkSafeMutex() { AllLocks::instance().remove(*this); }

bool ForkSafeMutex::is_held_here() const noexcept {
  const LockHolder* const owner = holder_.load(std::memory_order_relaxed);
  if (owner == nullptr) return false;
  const LockHolder* holder = lock_holder();
  while (holder != nullptr && holder != owner) holder = holder->caller;
  return holder != nullptr;
}

void throw_in_call() {
  throw std::logic_error(
      "a table was used in the middle of a call on it, by a thread of that call, such as by the memory resource that "
      "it "
      "asks for memory: use it before the call or after it");
}

void ForkSafeMutex::lock() {
  if (is_held_here()) throw_in_call();
  mutex_.lock();
  holder_.store(lock_holder(), std::memory_order_relaxed);
  ++held;
}
bool ForkSafeMutex::try_lock() {
  if (is_held_here() || !mutex_.try_lock()) return false;
  holder_.store(lock_holder(), std::memory_order_relaxed);
  ++held;
  return true;
}
void ForkSafeMutex::unlock() {
  --held;
  holder_.store(nullptr, std::memory_order_relaxed);
  mutex_.unlock();
}

int locks_held() noexcept { return held; }
void set_locks_held(int locks) noexcept { held = locks; }

void let_fork_pass() {
  auto& forks = AllLocks::instance().forks;
  for (int announced; (announced = forks.load(std::memory_order_acquire)) != 0 && held == 0;) forks.wait(announced);
}

void announce_fork() { AllLocks::instance().forks.fetch_add(1, std::memory_order_acq_rel); }

bool try_before_fork() { return AllLocks::instance().try_lock(); }

void after_fork() {
  AllLocks& all = AllLocks::instance();
  all.unlock();
  all.forks.fetch_sub(1, std::memory_order_acq_rel);
  all.forks.notify_all();
}

}  // namespace gpuhash
