#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

namespace kolo::tensors {

/// Where this rank computes: the current CUDA device of the thread, or the CPU if there is none. If
/// the node has several ranks, that of the local rank becomes the current one before.
c10::Device choose_device();

/// Where a model's parameters are.
c10::Device device_of(const torch::nn::Module& model);

}  // namespace kolo::tensors
