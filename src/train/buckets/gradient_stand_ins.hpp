#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kolo::train {

/// Stand-ins for the gradients of sharded parameters, which grad() is from the moment a gradient is
/// taken for its reduction until the step ends. They have no memory: each access throws, since it
/// would read nothing, and a change would be lost. A program drops a gradient by undefining grad().
class GradientStandIns {
 public:
  /// `parameters` outlive this.
  GradientStandIns(const std::vector<at::Tensor>& parameters, std::vector<std::string> names);
  ~GradientStandIns() { remove_all(); }
  GradientStandIns(const GradientStandIns&) = delete;  // it removes the stand-ins once
  GradientStandIns& operator=(const GradientStandIns&) = delete;

  void place(std::size_t parameter);
  /// Undefines the parameter's grad(), if it is a stand-in; or those of all parameters.
  void remove(std::size_t parameter);
  void remove_all();

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

}  // namespace kolo::train
