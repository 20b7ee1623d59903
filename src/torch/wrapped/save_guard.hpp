#pragma once

#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// While it lives, torch::save of an optimizer throws InvalidArgument, which says what to call
/// instead, rather than silently write this rank's shards of the state.
///
/// It adds an entry to the optimizer's state, of the same class as the others and with empty
/// tensors, so that programs can still visit all entries. Optimizers of classes that are not
/// LibTorch's are left alone.
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
