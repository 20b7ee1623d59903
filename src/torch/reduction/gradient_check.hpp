#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "torch/sharding/shard_sets.hpp"

namespace kolo::tensors {

/// What all ranks must know alike of the gradients of a step, of which each may hold other
/// elements: their norm, and whether any was not finite when their scale was taken away. One
/// reduction tells both; a rank without gradients takes part in it.
class GradientCheck {
 public:
  /// What the ranks have found in their gradients together.
  enum class Found { NoGradients, Finite, Overflow };

  /// `name` names its reductions over `set`, of which `sets` says who has the same gradients; both
  /// outlive this.
  GradientCheck(ProcessSet& set, const ShardSets& sets, std::string name);

  /// Divides this rank's gradients, dense or sparse, by the scale and looks for what is not finite.
  /// With `is_alone` that is all; otherwise the next clip() or found() tells the other ranks.
  void unscale(const std::vector<at::Tensor>& gradients, double scale, bool is_alone);

  /// torch::nn::utils::clip_grad_norm_ for gradients of which each rank has other elements: scales
  /// them such that the norm over all ranks is at most `max_norm`, and returns the one that they
  /// had. Collective.
  double clip(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type);

  /// What the last unscale() has found. Collective unless a clip() since has told.
  Found found();
  bool has_found() const { return found_.has_value(); }

 private:
  // What a rank tells: its norm, or a power of it; 1 for an overflow; how many gradients it has;
  // and the scale that they had. All zero where it has joined.
  enum Column : std::int64_t { kNorm, kOverflow, kGradients, kScale, kColumns };
  using Row = std::array<double, kColumns>;

  std::vector<Row> exchange(double norm);
  static Found found_in(const std::vector<Row>& rows);
  void compare_scales(const std::vector<Row>& rows) const;

  ProcessSet& set_;
  const ShardSets& sets_;
  const std::string name_;
  Row own_{};                   // of the last unscale()
  std::optional<Found> found_;  // … by all ranks
};

}  // namespace kolo::tensors
