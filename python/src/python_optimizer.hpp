#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include "bindings.hpp"
#include "train/checkpoint/training_checkpoint.hpp"
#include "train/wrapped/options.hpp"
#include "train/wrapped/wrapped_optimizer.hpp"

namespace kolo::python {

/// An optimizer of Python, such as torch.optim.Adam. Its parameter groups and its state stay in
/// Python; C++ has a copy of the groups, which `pull` and `push` keep equal.
///
/// Of the options it knows those that are numbers. They are named as those of LibTorch's classes in
/// C++, and so is the state, so that programs of both languages read one another's checkpoints.
class PythonOptimizer final : public train::WrappedOptimizer {
 public:
  /// @param optimizer kept weakly: it owns what owns this. Its class derives from `_Distributed` of
  ///   kolo/torch/optimizer.py
  explicit PythonOptimizer(const py::object& optimizer);
  ~PythonOptimizer() override;

  /// Copies Python's groups to C++. With the lock of the interpreter, before C++ does something.
  void pull();
  /// Gives Python the options that C++ has changed. With the lock, afterwards.
  void push();
  /// From now on, and after the first step, options are those of the groups. Before, they are
  /// zeros, since they may differ between ranks: programs for Horovod broadcast them after a first
  /// step.
  void follow_options() { follows_options_ = true; }

  /// The parameters and buffers of the program's model as they are now. Takes the lock.
  train::NamedModel model() const;

  std::string class_name() const override { return class_name_; }
  std::string problem(const DistributedOptimizerOptions& options) const override;
  Groups& groups() override { return groups_; }
  std::optional<bool> needs_whole_tensors(std::size_t) const override { return needs_whole_; }
  std::shared_ptr<void> keep_groups() override;
  at::Tensor step(const LossClosure& closure) override;
  bool steps_leaves_separately() const override { return false; }
  void step_leaves(std::vector<std::vector<at::Tensor>> leaves) override;
  bool has_state(const at::Tensor& leaf) const override;
  std::optional<std::vector<train::StateField>> state(const at::Tensor& leaf) const override;
  void set_state(const at::Tensor& leaf, const std::vector<train::StateField>& fields) override;
  void erase_state(const at::Tensor& leaf) override;
  void create_expected_state() override {}
  std::vector<train::KnownField> known_fields() override { return {}; }
  std::size_t count_accepted(const std::vector<train::StateField>& fields) override {
    return fields.size();
  }
  void refuse_own_save() override {}  // state_dict() asks for the shard mode
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  void broadcast_state(int root, ProcessSet& set) override;

 private:
  py::object self() const;
  py::object state_of(const at::Tensor& leaf) const;

  py::weakref weak_;
  const std::string class_name_;
  const bool is_of_torch_;  // torch.optim keeps numbers in tensors
  const std::optional<bool> needs_whole_;
  // The names of options that C++'s class lacks and that are 0, and of others that are numbers.
  std::vector<std::string> unfollowed_;
  std::vector<std::string> options_;
  Groups groups_;
  std::vector<std::vector<train::OptionField>> pulled_;
  bool follows_options_ = false;
};

}  // namespace kolo::python
