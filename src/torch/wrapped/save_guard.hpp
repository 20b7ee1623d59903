#pragma once

#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// While it lives, torch::save of an optimizer throws InvalidArgument, naming what to call instead,
/// rather than silently writing this rank's shards of the state.
///
/// It adds an entry to the optimizer's state, of the same class as the others and with empty
/// tensors, so that programs can still iterate over all entries. Optimizers of classes not from
/// LibTorch are not changed.
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
