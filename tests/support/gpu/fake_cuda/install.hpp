#pragma once

namespace kolo::test {

/// Each function registers one part of what libtorch_cuda registers, for the rest of the process.
void install_guard();
void install_allocator();
void install_hooks();
void install_operators();

inline void install_fake_cuda() {
  install_guard();
  install_allocator();
  install_hooks();
  install_operators();
}

}  // namespace kolo::test
