#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

#include "kolo/torch/activation_checkpoint.hpp"
#include "kolo/torch/autocast.hpp"
#include "train/tensors/generator_state.hpp"

namespace kolo::train {

/// The state on which a function's results depend besides its inputs, so that it can be called
/// again.

/// The states of the random number generators that a function may use.
class RandomNumbers {
 public:
  /// Captures those of the CPU and of the GPUs of `tensors`.
  explicit RandomNumbers(const std::vector<at::Tensor>& tensors) {
    add(at::kCPU);
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined() && tensor.is_cuda()) add(tensor.device());
    }
  }
  void restore() const {
    for (const auto& [device, state] : states_) set_state_of(generator(device), state);
  }

 private:
  static at::Generator generator(at::Device device) {
    return at::globalContext().defaultGenerator(device);
  }
  void add(at::Device device) {
    for (const auto& [known, state] : states_) {
      if (known == device) return;
    }
    states_.emplace_back(device, state_of(generator(device)));
  }

  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

/// Restores the program's random numbers in its destructor.
class RandomNumbersGuard {
 public:
  explicit RandomNumbersGuard(const std::vector<at::Tensor>& tensors) : states_(tensors) {}
  ~RandomNumbersGuard() { states_.restore(); }
  RandomNumbersGuard(const RandomNumbersGuard&) = delete;  // it restores once
  RandomNumbersGuard& operator=(const RandomNumbersGuard&) = delete;

 private:
  RandomNumbers states_;
};

/// The autocast regions in which a function is called.
class AutocastState {
 public:
  /// Calls `function` in these regions. A cast in LibTorch's cache belongs to the graph in which it
  /// was made, so the cache is cleared before and after.
  std::vector<at::Tensor> call(const TensorFunction& function,
                               const std::vector<at::Tensor>& inputs) const {
    std::array<std::optional<Autocast>, kDevices.size()> regions;
    bool is_any_enabled = false;
    for (std::size_t i = 0; i < kDevices.size(); ++i) {
      if (!enabled_[i] && !at::autocast::is_autocast_enabled(kDevices[i])) continue;
      regions[i].emplace(dtypes_[i], kDevices[i], enabled_[i], is_cache_enabled_);
      is_any_enabled = true;
    }
    if (!is_any_enabled) return function(inputs);
    at::autocast::clear_cache();
    std::vector<at::Tensor> results = function(inputs);
    at::autocast::clear_cache();
    return results;
  }

 private:
  static constexpr std::array kDevices{at::kCPU, at::kCUDA};
  template <class Value>
  static std::array<Value, kDevices.size()> of_devices(Value (*now)(at::DeviceType)) {
    return {now(kDevices[0]), now(kDevices[1])};
  }

  std::array<bool, kDevices.size()> enabled_ = of_devices(at::autocast::is_autocast_enabled);
  std::array<at::ScalarType, kDevices.size()> dtypes_ =
      of_devices(at::autocast::get_autocast_dtype);
  bool is_cache_enabled_ = at::autocast::is_autocast_cache_enabled();
};

}  // namespace kolo::train
