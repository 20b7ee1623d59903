#pragma once

#include <cstddef>

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include "drawn/pictures.hpp"

namespace drawn {

/// One pass over `pictures`, in an order that depends on `epoch` alone; this rank takes its share.
/// All ranks together take about `batch` pictures per step, and all ranks take equally many steps.
/// Collective.
void train_epoch(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer,
                 const Pictures& pictures, std::size_t epoch, std::size_t batch);

/// The percentage of `pictures` that `model` classifies correctly. Every rank evaluates its share.
/// Collective.
double accuracy(torch::nn::Sequential& model, const Pictures& pictures);

}  // namespace drawn
