#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// Keeps two lists of parameter groups equal, whichever of the two somebody changes.
///
/// Of options, a three-way merge against the values of the last call: per group and field the side
/// that changed wins. For LibTorch's own optimizers every option is a field; for others the
/// learning rate is, if they have one.
class OptionSync {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  /// Both lists hold equal options now.
  explicit OptionSync(Groups& groups);

  /// Adds parameters and groups that one side has got since to the other. Throws InvalidArgument
  /// where both have got some.
  void match_members(Groups& ours, Groups& wrapped);

  /// Throws InvalidArgument, naming the group and the field, where both sides changed it to
  /// different values.
  void merge(Groups& ours, Groups& wrapped);

  /// The options of all groups, in a form that ranks and files can take, and the inverse.
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
