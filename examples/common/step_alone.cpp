#include "common/step_alone.hpp"

#include "torch/wrapped/fused_step.hpp"

namespace examples {

void step_alone(torch::optim::Optimizer& optimizer, bool fused) {
  if (fused) {
    kolo::tensors::fused_step(optimizer);
  } else {
    optimizer.step();
  }
}

}  // namespace examples
