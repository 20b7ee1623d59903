#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// Keeps the parameter groups of the wrapper and of the wrapped optimizer equal.
///
/// Options are merged against the values of the last call: per group and field, the side that
/// changed wins. For LibTorch's own optimizers every option is a field; for others only the
/// learning rate, if they have one.
class OptionSync {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  /// Both lists must hold equal options.
  explicit OptionSync(Groups& groups);

  /// Adds new parameters and groups of one side to the other. Throws InvalidArgument if both have
  /// new ones.
  void match_members(Groups& ours, Groups& wrapped);

  /// Throws InvalidArgument, naming the group and the field, if both sides changed it to different
  /// values.
  void merge(Groups& ours, Groups& wrapped);

  /// The options of all groups as JSON, and the inverse.
  static nlohmann::json describe(Groups& groups);
  static void apply(const nlohmann::json& options, Groups& groups);

 private:
  struct Field {
    std::string name;
    std::vector<double> values;
  };
  bool have_changed(const Groups& groups) const;
  static std::vector<Field> read(torch::optim::OptimizerOptions& options);
  static void write(torch::optim::OptimizerOptions& options, const std::string& name,
                    const std::vector<double>& values);

  std::vector<std::vector<Field>> last_;  // of each group
  std::vector<std::size_t> members_;      // how many parameters each group had
};

}  // namespace kolo::tensors
