#include "common/step_alone.hpp"

#include "train/wrapped/fused_step.hpp"

namespace examples {

void step_alone(torch::optim::Optimizer& optimizer, bool fused) {
  if (fused) {
    kolo::train::fused_step(optimizer);
  } else {
    optimizer.step();
  }
}

}  // namespace examples
