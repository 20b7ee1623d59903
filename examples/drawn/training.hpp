#pragma once

#include <cstddef>

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include "drawn/pictures.hpp"

namespace drawn {

/// One pass over `pictures`, in an order that depends on `epoch` alone; this rank takes its share.
/// All ranks together take about `batch` pictures a step, and equally many steps. Collective.
void train_epoch(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer,
                 const Pictures& pictures, std::size_t epoch, std::size_t batch);

/// Per cent of `pictures` that `model` names right. Every rank judges its share. Collective.
double accuracy(torch::nn::Sequential& model, const Pictures& pictures);

}  // namespace drawn
