#pragma once

#include <tuple>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace kolo::tensors {

/// An optimizer class of LibTorch with its options and its state for a parameter.
template <class OptimizerType, class OptionsType, class StateType>
struct LibTorchClass {
  using Optimizer = OptimizerType;
  using Options = OptionsType;
  using State = StateType;
};

/// All LibTorch optimizers that keep their state per parameter. LBFGS does not.
using LibTorchClasses = std::tuple<
    LibTorchClass<torch::optim::SGD, torch::optim::SGDOptions, torch::optim::SGDParamState>,
    LibTorchClass<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>,
    LibTorchClass<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>,
    LibTorchClass<torch::optim::RMSprop, torch::optim::RMSpropOptions,
                  torch::optim::RMSpropParamState>,
    LibTorchClass<torch::optim::Adagrad, torch::optim::AdagradOptions,
                  torch::optim::AdagradParamState>>;

/// Calls `visit` with each LibTorchClass until it returns true; returns whether it did.
template <class Visit>
bool visit_libtorch_classes(Visit visit) {
  return std::apply([&](auto... known) { return (visit(known) || ...); }, LibTorchClasses{});
}

}  // namespace kolo::tensors
