#pragma once

#include <gpuhash/export.hpp>

namespace gpuhash {

/// Threads that parallel_for may use, its caller among them: as many as set_thread_count() says; otherwise
/// GPUHASH_NUM_THREADS as it was when the library was loaded, std::invalid_argument where that is not a positive
/// number; otherwise the cores that this process may run on.
GPUHASH_API int thread_count();
/// From the next batch on, in all threads. 0: as if it had never been called.
GPUHASH_API void set_thread_count(int threads) noexcept;

namespace detail {
enum class Threads { kForWork, kForLaunches };
GPUHASH_API void run_parts(Threads threads, int parts, void (*call)(void* context, int part), void* context);
}  // namespace detail

/// Calls fn(part) once for every part in [0, parts), on the caller's thread and on a pool's; returns when all are done.
/// Parts may run in any order and one after the other (they do while another caller has the pool), so they must not
/// wait for each other. What a part throws reaches the caller; the parts that had not started then are not run. The
/// pool's threads watch for the next call for a while before they sleep.
template <class Fn>
void parallel_for(int parts, Fn&& fn) {
  detail::run_parts(
      detail::Threads::kForWork, parts, [](void* context, int part) { (*static_cast<Fn*>(context))(part); }, &fn);
}

/// The same for launches on several GPUs: on threads of their own, which no work of other callers keeps busy.
template <class Fn>
void launch_side_by_side(int parts, Fn fn) {
  detail::run_parts(
      detail::Threads::kForLaunches, parts, [](void* context, int part) { (*static_cast<Fn*>(context))(part); }, &fn);
}

}  // namespace gpuhash
