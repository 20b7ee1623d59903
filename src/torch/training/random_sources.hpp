#pragma once

#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "torch/training/training_view.hpp"

namespace kolo::tensors {

/// A generator of random numbers that a training run draws from.
struct RandomSource {
  std::string key;  ///< of its state on this rank, in a checkpoint
  at::Generator generator;

  at::Tensor state() const;
  void restore(const at::Tensor& state);
  /// Throws InvalidArgument, naming the key, where `restore` would fail.
  void require_valid(const at::Tensor& state) const;
};

/// The CPU's, and that of the model's CUDA device.
std::vector<RandomSource> random_sources(const TrainingView& view);

}  // namespace kolo::tensors
