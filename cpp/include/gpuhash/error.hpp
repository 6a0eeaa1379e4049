#pragma once

#include <stdexcept>

#include <gpuhash/export.hpp>

/// One exception per cause; the bindings give each its Python type. Messages say what was given, what was expected and
/// what to do.
namespace gpuhash {

/// A dtype that the table cannot take. Python: TypeError.
class GPUHASH_API DTypeError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A shape, device or parameter that does not fit. Python: ValueError (std::invalid_argument likewise).
class GPUHASH_API ShapeError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A table that may not grow has no room for the batch. Python: gpuhash.TableFullError.
class GPUHASH_API TableFullError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The memory resource gave no memory. Python: MemoryError.
class GPUHASH_API OutOfMemoryError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The CUDA runtime reported trouble. Python: gpuhash.CudaError.
class GPUHASH_API CudaError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A platform that is not there on this machine, or not in this build. Python: gpuhash.PlatformError (a RuntimeError).
class GPUHASH_API PlatformError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace gpuhash
