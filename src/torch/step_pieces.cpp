#include "torch/step_pieces.hpp"

#include <utility>
#include <vector>

namespace kolo::tensors {
namespace {

/// Holds other parameters in an optimizer's groups as long as it lives.
class Swap {
 public:
  Swap(torch::optim::Optimizer& optimizer, int group, std::vector<at::Tensor> parameters)
      : optimizer_(optimizer) {
    for (auto& each : optimizer_.param_groups()) whole_.push_back(std::exchange(each.params(), {}));
    optimizer_.param_groups()[static_cast<std::size_t>(group)].params() = std::move(parameters);
  }
  ~Swap() {
    for (std::size_t i = 0; i < whole_.size(); ++i) {
      optimizer_.param_groups()[i].params() = std::move(whole_[i]);
    }
  }
  Swap(const Swap&) = delete;  // it swaps back once
  Swap& operator=(const Swap&) = delete;

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> whole_;
};

}  // namespace

void step_pieces(torch::optim::Optimizer& optimizer, int group, const ParameterShards& shards,
                 std::size_t bucket) {
  std::vector<at::Tensor> pieces;
  for (const ParameterShards::Piece& piece : shards.pieces(bucket)) {
    if (piece.values.grad().defined()) pieces.push_back(piece.values);
  }
  if (pieces.empty()) return;
  const Swap swap(optimizer, group, std::move(pieces));
  optimizer.step();
}

}  // namespace kolo::tensors
