#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

namespace kolo::tensors {

/// An option of a parameter group: one number, or several.
struct OptionField {
  std::string name;
  std::vector<double> values;
};

/// The reason why the options cannot be read and written, and what to do; empty if they can.
/// Classes not from LibTorch need serialize() in both directions.
std::string problem_with_options(const torch::optim::OptimizerOptions& options);

/// All options, always in the same order; none if there is a problem with them.
std::vector<OptionField> read_options(const torch::optim::OptimizerOptions& options);

/// Sets the option `name`, if there is one, to as many values as read_options() returns for it.
void write_option(torch::optim::OptimizerOptions& options, const std::string& name,
                  const std::vector<double>& values);

}  // namespace kolo::tensors
