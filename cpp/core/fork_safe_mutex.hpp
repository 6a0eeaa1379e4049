#pragma once

#include <atomic>
#include <mutex>

#include <gpuhash/export.hpp>

/// Locks and fork(). A child has only the thread that forked: a lock that another thread held stays locked in it for
/// ever, and what it guards stays half changed. So whoever forks takes all locks first (before_fork), and gives them
/// back in both processes (after_fork). Python does so by os.register_at_fork.
namespace gpuhash {

/// Whom locks belong to: a thread, or one part of a job that a thread does for a caller. The caller waits for the job
/// and keeps its own locks meanwhile, so that whoever does a part would wait for these for ever. Locks that other parts
/// of the job have taken come free.
struct LockHolder {
  const LockHolder* caller = nullptr;  // null: nobody waits for this one
};

/// Whom what this thread takes now belongs to.
const LockHolder* lock_holder() noexcept;
void set_lock_holder(const LockHolder* holder) noexcept;

/// A mutex that before_fork() takes. For everybody else as std::mutex, but that a thread which holds it is told so,
/// instead of waiting for itself, and so is one that works for a caller who holds it.
class GPUHASH_API ForkSafeMutex {
 public:
  ForkSafeMutex();
  ~ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  /// Throws std::logic_error where the thread holds it, or its caller.
  void lock();
  bool try_lock();
  void unlock();
  /// By the thread or its caller. Does not wait.
  bool is_held_here() const noexcept;

 private:
  friend class AllLocks;

  std::mutex mutex_;
  std::atomic<const LockHolder*> holder_ = nullptr;  // null where nobody holds it; never read through
  ForkSafeMutex* before_ = nullptr;
  ForkSafeMutex* after_ = nullptr;
};

/// What lock() throws, for who has to look before it takes another lock.
[[noreturn]] void throw_in_call();

/// Returns when no thread is about to fork. Called before a lock is taken that is held for long: else calls that follow
/// each other would keep the one that forks waiting for ever. Not with Python's GIL, which the one that forks needs;
/// and at once where the thread holds another lock, for which the one that forks is waiting.
GPUHASH_API void let_fork_pass();

/// How many locks the thread holds. A thread that works for another one, which waits for it, takes over that one's
/// number: so it does not wait for a fork that waits for the other's locks.
int locks_held() noexcept;
void set_locks_held(int locks) noexcept;

/// Tries to take all locks; false where one of them is held: then it has none, and the caller lets others work and
/// tries again. The caller says first, and only once, that it is about to fork. Never waits, so that it may be called
/// with the GIL, for which those who hold a lock may be waiting. A thread that forks with a lock in its hand, as a
/// memory resource may, takes no others.
GPUHASH_API void announce_fork();
GPUHASH_API bool try_before_fork();
/// In the parent and in the child.
GPUHASH_API void after_fork();

}  // namespace gpuhash
