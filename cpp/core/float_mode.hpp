#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace gpuhash {

/// How a thread computes with floats: the register that says whether subnormal numbers are zeros, how is rounded, and
/// what traps. Reading it takes some ns. Of other processors than these it is not known, and 0.
using FloatMode = std::uint64_t;

// Compilers do not know that arithmetic reads these registers: what touches memory, at least, stays on its side.
#if defined(__x86_64__)
inline constexpr FloatMode kFloatModeBits = 0xffc0;  // of MXCSR; the others are flags of what has happened
inline constexpr FloatMode kDefaultFloatMode = 0x1f80;
inline FloatMode float_mode() { return _mm_getcsr(); }
inline void set_float_mode(FloatMode mode) {
  asm volatile("" ::: "memory");
  _mm_setcsr(static_cast<unsigned>(mode));
  asm volatile("" ::: "memory");
}
#elif defined(__aarch64__)
inline constexpr FloatMode kFloatModeBits = ~FloatMode{0};  // of FPCR; the flags are in a register of their own
inline constexpr FloatMode kDefaultFloatMode = 0;
inline FloatMode float_mode() {
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(FloatMode mode) { asm volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
#else
inline constexpr FloatMode kFloatModeBits = 0;
inline constexpr FloatMode kDefaultFloatMode = 0;
inline FloatMode float_mode() { return 0; }
inline void set_float_mode(FloatMode) {}
#endif

/// From now on the thread computes as IEEE 754 says by default: it rounds to nearest, subnormal numbers are what they
/// are, and nothing traps. Returns its mode of before, for restore_float_mode().
inline FloatMode set_default_float_mode() {
  const FloatMode before = float_mode();
  if ((before & kFloatModeBits) != kDefaultFloatMode) set_float_mode(kDefaultFloatMode);
  return before;
}
inline void restore_float_mode(FloatMode before) {
  if ((before & kFloatModeBits) != kDefaultFloatMode) set_float_mode(before);
}

/// As long as it lives, its thread is in the default mode. TensorFlow's and XLA's threads flush subnormal numbers to
/// zero, and so does who calls torch.set_flush_denormal(True): results must not depend on that, and a new thread
/// inherits the mode of the one that starts it.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : before_(set_default_float_mode()) {}
  ~DefaultFloatMode() { restore_float_mode(before_); }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  FloatMode before_;
};

}  // namespace gpuhash
