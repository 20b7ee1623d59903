#include "drawn/training.hpp"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/distributed.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/functional/loss.h>

#include "kolo/runtime.hpp"
#include "kolo/torch/tensor_collectives.hpp"

namespace drawn {

void train_epoch(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer,
                 const Pictures& pictures, std::size_t epoch, std::size_t batch) {
  const auto ranks = static_cast<std::size_t>(kolo::size());
  torch::data::samplers::DistributedRandomSampler sampler(*pictures.size(), ranks,
                                                          static_cast<std::size_t>(kolo::rank()));
  sampler.set_epoch(epoch);  // not possible later: the loader copies its sampler
  const auto loader =
      torch::data::make_data_loader(Pictures(pictures).map(torch::data::transforms::Stack<>()),
                                    std::move(sampler), (batch + ranks - 1) / ranks);
  for (auto& mine : *loader) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(mine.data), mine.target).backward();
    optimizer.step();
  }
}

double accuracy(torch::nn::Sequential& model, const Pictures& pictures) {
  const auto ranks = static_cast<std::size_t>(kolo::size());
  const auto rank = static_cast<std::size_t>(kolo::rank());
  const std::size_t count = *pictures.size();
  at::Tensor right = at::zeros({}, at::kLong);
  if (count * rank / ranks < count * (rank + 1) / ranks) {
    const at::NoGradGuard no_gradients;
    const auto share = Pictures(pictures).range(count * rank / ranks, count * (rank + 1) / ranks);
    right += model->forward(share.data).argmax(1).eq(share.target).sum();
  }
  kolo::allreduce_(right, {.op = kolo::ReduceOp::Sum});
  return 100.0 * right.item<double>() / static_cast<double>(count);
}

}  // namespace drawn
