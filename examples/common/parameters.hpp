#pragma once

#include <cstdint>

#include <torch/nn/module.h>

#include "common/digest.hpp"

namespace examples {

std::int64_t count_parameters(const torch::nn::Module& model);
Digest digest_of_parameters(const torch::nn::Module& model);

}  // namespace examples
