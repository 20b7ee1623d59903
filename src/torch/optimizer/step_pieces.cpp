#include "torch/optimizer/step_pieces.hpp"

#include <utility>
#include <vector>

#include "torch/optimizer/fused_step.hpp"
#include "torch/sharding/swapped_parameters.hpp"

namespace kolo::tensors {

void step_pieces(torch::optim::Optimizer& optimizer, std::size_t group,
                 const ParameterShards& shards, std::size_t bucket, bool fused) {
  std::vector<at::Tensor> pieces;
  for (const ParameterShards::Piece& piece : shards.pieces(bucket)) {
    if (piece.values.grad().defined()) pieces.push_back(piece.values);
  }
  if (pieces.empty()) return;
  const SwappedParameters swapped(optimizer, group, std::move(pieces));
  if (fused) {
    fused_step(optimizer);
  } else {
    optimizer.step();
  }
}

}  // namespace kolo::tensors
