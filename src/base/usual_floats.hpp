#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kolo {

/// While it lives, this thread rounds to nearest and keeps denormal numbers. The mode belongs to a
/// thread, and an operation runs on any that makes progress: results must not depend on which.
class UsualFloats {
 public:
  UsualFloats() : before_(mode()) {
    if ((before_ & kUnusual) != 0) set_mode(before_ & ~kUnusual);
  }
  UsualFloats(const UsualFloats&) = delete;  // restores the mode once
  UsualFloats& operator=(const UsualFloats&) = delete;
  ~UsualFloats() {
    if ((before_ & kUnusual) != 0) set_mode(before_);
  }

 private:
#if defined(__x86_64__)
  using Mode = unsigned int;
  static constexpr Mode kUnusual = 0xE040;  // MXCSR: flush to zero, rounding, denormals are zeros
  static Mode mode() { return _mm_getcsr(); }
  static void set_mode(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  using Mode = std::uint64_t;
  static constexpr Mode kUnusual = 0x1C80000;  // FPCR: FZ, rounding, FZ16
  static Mode mode() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set_mode(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  using Mode = unsigned int;
  static constexpr Mode kUnusual = 0;
  static Mode mode() { return 0; }
  static void set_mode(Mode) {}
#endif

  const Mode before_;
};

}  // namespace kolo
