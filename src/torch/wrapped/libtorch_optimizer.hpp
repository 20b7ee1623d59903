#pragma once

#include <optional>
#include <string>
#include <vector>

#include "torch/wrapped/save_guard.hpp"
#include "torch/wrapped/wrapped_optimizer.hpp"

namespace kolo::tensors {

/// A torch::optim::Optimizer, stepped by its own step() or by LibTorch's fused kernels.
class LibTorchOptimizer final : public WrappedOptimizer {
 public:
  /// `optimizer` outlives this.
  LibTorchOptimizer(torch::optim::Optimizer& optimizer, bool fused)
      : optimizer_(optimizer), fused_(fused) {}

  std::string class_name() const override;
  std::string problem() const override;
  Groups& groups() override { return optimizer_.param_groups(); }
  at::Tensor step(const LossClosure& closure) override;
  bool steps_leaves_separately() const override;
  void step_leaves(std::vector<std::vector<at::Tensor>> leaves) override;
  bool has_state(const at::Tensor& leaf) const override;
  std::optional<std::vector<StateField>> state(const at::Tensor& leaf) const override;
  void set_state(const at::Tensor& leaf, const std::vector<StateField>& fields) override;
  void erase_state(const at::Tensor& leaf) override;
  void create_expected_state() override;
  std::vector<KnownField> known_fields() override;
  std::size_t count_accepted(const std::vector<StateField>& fields) override;
  void refuse_own_save() override { save_guard_.emplace(optimizer_); }
  void save(torch::serialize::OutputArchive& archive) const override { optimizer_.save(archive); }
  void load(torch::serialize::InputArchive& archive) override { optimizer_.load(archive); }
  void broadcast_state(int root, ProcessSet& set) override;

 private:
  torch::optim::Optimizer& optimizer_;
  const bool fused_;
  std::optional<SaveGuard> save_guard_;
};

}  // namespace kolo::tensors
