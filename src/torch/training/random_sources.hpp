#pragma once

#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "torch/training/training_view.hpp"

namespace kolo::train {

/// A random number generator of a training run.
struct RandomSource {
  std::string key;  ///< of this rank's state in a checkpoint
  at::Generator generator;

  at::Tensor state() const;
  void restore(const at::Tensor& state);
  /// Throws InvalidArgument, naming the key, if `restore` would fail.
  void require_valid(const at::Tensor& state) const;
};

/// The generators of the CPU and of the model's CUDA device.
std::vector<RandomSource> random_sources(const TrainingView& view);

}  // namespace kolo::train
