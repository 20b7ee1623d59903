#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::train {

/// What one rank must own of a parameter to step it; see kolo::TensorNeeds.
struct Wholeness {
  bool is_needed;
  bool was_probed;
  std::string problem;  ///< why it cannot be sharded, and what to do; empty if it can
};

/// How a class says it, for error texts.
inline constexpr const char* kHowToSay =
    "Derive the class from kolo::WholeTensors or kolo::Elementwise, or in Python give it the "
    "attribute needs_whole_tensors = True or False";

/// What the parameter group `group` needs, of whose parameters `some` are about to be sharded.
/// Leaves no state, but steps a probe if nothing else tells. Not collective.
Wholeness wholeness_of(WrappedOptimizer& optimizer, std::size_t group,
                       const std::vector<at::Tensor>& some);

}  // namespace kolo::train
