#pragma once

#include <mutex>

#include <ATen/core/Generator.h>

namespace kolo::train {

/// The states of LibTorch's random number generators, which any thread may use.

inline at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

inline void set_state_of(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace kolo::train
