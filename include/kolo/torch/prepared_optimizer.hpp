#pragma once

#include <concepts>
#include <memory>
#include <utility>

#include <torch/optim/optimizer.h>

#pragma GCC visibility push(default)
namespace kolo {

class Accelerator;

/// The optimizer argument of Accelerator::prepare. Optimizers convert to it:
///
///   accelerator.prepare(*model, torch::optim::AdamW(model->parameters(), 1e-3));
///
///   torch::optim::AdamW adamw(model->parameters(), 1e-3);
///   accelerator.prepare(*model, adamw);
class PreparedOptimizer {
 public:
  /// @param optimizer must outlive the Accelerator
  PreparedOptimizer(torch::optim::Optimizer& optimizer)  // NOLINT(google-explicit-constructor)
      : optimizer_(&optimizer) {}
  /// The Accelerator owns it.
  template <std::derived_from<torch::optim::Optimizer> Own>
  PreparedOptimizer(std::unique_ptr<Own> optimizer)  // NOLINT(google-explicit-constructor)
      : owned_(std::move(optimizer)), optimizer_(owned_.get()) {}
  template <std::derived_from<torch::optim::Optimizer> Own>
  PreparedOptimizer(Own&& optimizer)  // NOLINT(google-explicit-constructor)
      : PreparedOptimizer(std::make_unique<Own>(std::move(optimizer))) {}

 private:
  friend class Accelerator;
  std::unique_ptr<torch::optim::Optimizer> owned_;
  torch::optim::Optimizer* optimizer_;
};

}  // namespace kolo
#pragma GCC visibility pop
