#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kolo::tensors {

/// Stand-ins for the gradients of sharded parameters, which grad() is from the moment a gradient is
/// taken for its reduction until the step ends. They have no memory: each access throws, since it
/// would read nothing, and a change would be lost. A program drops a gradient by undefining grad().
class WithheldGradients {
 public:
  /// `parameters` outlive this.
  WithheldGradients(const std::vector<at::Tensor>& parameters, std::vector<std::string> names);
  ~WithheldGradients() { take_away(); }
  WithheldGradients(const WithheldGradients&) = delete;  // it takes the stand-ins away once
  WithheldGradients& operator=(const WithheldGradients&) = delete;

  void place(std::size_t parameter);
  /// Undefines the parameter's grad(), if it is a stand-in; or those of all parameters.
  void take_away(std::size_t parameter);
  void take_away();

  bool is_in_place(std::size_t parameter) const {
    return is_placed_[parameter] && parameters_[parameter].grad().is_same(stand_ins_[parameter]);
  }
  /// Whether the program has undefined or replaced the stand-in.
  bool is_gone(std::size_t parameter) const {
    return is_placed_[parameter] && !is_in_place(parameter);
  }

 private:
  const std::vector<at::Tensor>& parameters_;
  const std::vector<std::string> names_;
  std::vector<at::Tensor> stand_ins_;  // of each parameter, once it was needed
  std::vector<bool> is_placed_;
};

}  // namespace kolo::tensors
