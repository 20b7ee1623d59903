#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>
#include <torch/optim/optimizer.h>

#include "torch/wrapped/option_fields.hpp"

namespace kolo::tensors {

/// Keeps the parameter groups of the wrapper and of the wrapped optimizer equal.
///
/// The side whose groups have changed since the last call determines the members of all groups.
/// Options are merged against the values of the last call: per group and field, the side that
/// changed wins.
class OptionSync {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  /// A group as it was at the last call.
  struct Group {
    std::vector<OptionField> options;
    std::vector<at::Tensor> members;
  };

  /// Both lists must hold equal options.
  explicit OptionSync(Groups& groups);

  /// Gives the groups of the side that has not changed the members of the other: added, removed and
  /// moved parameters, new and erased groups. Throws InvalidArgument if both sides have changed,
  /// and differ.
  void match_members(Groups& ours, Groups& wrapped);

  /// Matches members, then merges options. Throws InvalidArgument, naming the group and the field,
  /// if both sides changed it to different values.
  void merge(Groups& ours, Groups& wrapped);

  const std::vector<Group>& groups() const { return last_; }
  /// Increases with each change of groups().
  std::uint64_t version() const { return version_; }
  /// The place in groups() of a parameter's group; none if it has left the optimizer.
  std::optional<std::size_t> group_of(const at::Tensor& parameter) const;

  /// The options of all groups as JSON, and the inverse.
  static nlohmann::json describe(Groups& groups);
  static void apply(const nlohmann::json& options, Groups& groups);

 private:
  bool have_changed(const Groups& groups) const;
  std::vector<std::optional<std::size_t>> places_of(const Groups& groups) const;
  void note_members(std::vector<Group> groups);

  std::vector<Group> last_;
  std::uint64_t version_ = 0;
  std::unordered_map<const void*, std::size_t> group_of_;  // by the address of the parameter
};

}  // namespace kolo::tensors
