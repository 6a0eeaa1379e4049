#pragma once

#include <exception>

#include <gpuhash/export.hpp>

/// How a long operation on the host comes to an end before it is done, as by Ctrl-C.
namespace gpuhash {

/// An operation was asked to end. What it had done by then stays, and the table is whole. Python: KeyboardInterrupt.
class GPUHASH_API Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "the operation was interrupted"; }
};

/// Shall the calling thread's operation end? Called every tenth of a second by operations that take that long, on the
/// thread that called them. Null, the default: never.
using InterruptionTest = bool (*)();
GPUHASH_API void set_interruption_test(InterruptionTest test) noexcept;

/// The operations of one thread between two of these are one: the first tenth of a second is counted anew.
void begin_operation() noexcept;

/// To be called between pieces of work of some milliseconds, from any thread of a parallel_for as well. Throws
/// Interrupted in all of them once one was asked to end.
GPUHASH_API void interruption_point();

}  // namespace gpuhash
