#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

namespace kolo::train {

/// What was written, to be read.
inline torch::serialize::InputArchive to_input(torch::serialize::OutputArchive& written) {
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  return archive;
}

/// An option of a parameter group: one number, or several.
struct OptionField {
  std::string name;
  std::vector<double> values;
};

/// "0.9, 0.999".
std::string text_of_values(const std::vector<double>& values);

/// Options of an optimizer that is not written in C++.
struct NamedOptions final : torch::optim::OptimizerCloneableOptions<NamedOptions> {
  std::vector<OptionField> fields;
};

/// The reason why the options cannot be read and written, and what to do; empty if they can.
/// Classes not from LibTorch need serialize() in both directions.
std::string problem_with_options(const torch::optim::OptimizerOptions& options);

/// All options, always in the same order; none if there is a problem with them.
std::vector<OptionField> read_options(const torch::optim::OptimizerOptions& options);

/// Sets the option `name`, if there is one, to as many values as read_options() returns for it.
void write_option(torch::optim::OptimizerOptions& options, const std::string& name,
                  const std::vector<double>& values);

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
  /// moved parameters, new and erased groups. If they have changed, also merges options, as a group
  /// may have been matched with one of other options. Throws InvalidArgument if both sides have
  /// changed, and differ.
  void match_members(Groups& ours, Groups& wrapped);

  /// Matches members, then merges options. Throws InvalidArgument, naming the group and the field,
  /// if both sides changed it to different values, or one to another number of values.
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
  void merge_options(Groups& ours, Groups& wrapped);

  std::vector<Group> last_;
  std::uint64_t version_ = 0;
  std::unordered_map<const void*, std::size_t> group_of_;  // by the address of the parameter
};

}  // namespace kolo::train
