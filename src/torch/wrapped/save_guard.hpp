#pragma once

#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// While it lives, torch::save of an optimizer throws InvalidArgument that says what to call
/// instead of writing this rank's shards of the state without a word.
///
/// It adds one entry to the optimizer's state, of the same class as the others and with empty
/// tensors, so that a program may still visit all entries. Optimizers of classes that LibTorch does
/// not know are left alone.
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
