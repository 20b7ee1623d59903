#pragma once

#include <cstdint>

#include <torch/torch.h>

#include "train/models.hpp"

namespace kolo::test {

/// Parameters of all kinds: of two dtypes, frozen, used twice, smaller than the number of ranks,
/// without elements, and used only in some steps or on some ranks.
struct Zoo : torch::nn::Module {
  Zoo() {
    torch::manual_seed(5);
    tied = register_parameter("tied", torch::randn({7, 7}));
    frozen = register_parameter("frozen", torch::randn({7}), false);
    tiny = register_parameter("tiny", torch::randn({1}));
    empty = register_parameter("empty", torch::zeros({0, 3}));
    wide = register_parameter("wide", torch::randn({5, 7}).to(torch::kFloat64));
    sometimes = register_parameter("sometimes", torch::randn({33}));
    on_one_rank = register_parameter("on_one_rank", torch::randn({17}));
    never = register_parameter("never", torch::randn({3}));
  }
  at::Tensor forward(const at::Tensor& rows, int step, int rank) {
    at::Tensor x = torch::tanh(rows.matmul(tied) + frozen).matmul(tied) * tiny;
    at::Tensor loss = x.to(torch::kFloat64).matmul(wide.t()).pow(2).mean();
    if (step % 3 == 1) loss = loss + (sometimes * sometimes).sum() * (rank + 1);
    if (rank == step % 2) loss = loss + on_one_rank.pow(3).sum();
    return loss;
  }
  at::Tensor tied, frozen, tiny, empty, wide, sometimes, on_one_rank, never;
};

}  // namespace kolo::test
