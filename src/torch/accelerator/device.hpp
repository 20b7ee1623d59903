#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace kolo::tensors {

/// The device of this rank: the thread's current CUDA device, or the CPU if there is none. If the
/// node has several ranks, makes the local rank's device current first.
c10::Device choose_device();

/// The device of a model's parameters.
c10::Device device_of(const torch::nn::Module& model);

}  // namespace kolo::tensors
