#pragma once

#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// As long as it lives, torch::save of an optimizer throws InvalidArgument that says what to call
/// instead: it would write this rank's part of the state without a word.
///
/// It is one more entry in the optimizer's state, of the class that the others have, with tensors
/// without elements, so that a program may go through them all. Optimizers of classes that LibTorch
/// does not know are left alone.
class SaveGuard {
 public:
  explicit SaveGuard(torch::optim::Optimizer& optimizer);
  ~SaveGuard();
  SaveGuard(const SaveGuard&) = delete;  // its address is the entry's key
  SaveGuard& operator=(const SaveGuard&) = delete;

 private:
  torch::optim::Optimizer& optimizer_;
};

}  // namespace kolo::tensors
