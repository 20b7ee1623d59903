#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torch/buckets/bucket_plan.hpp"

namespace kolo::tensors {

/// Error feedback of a codec or a bucket hook: what it has lost so far of each bucket's gradients
/// on this rank.
///
/// A step that is not used leaves residuals as they were: of each one there is a copy from before
/// the step. Residuals belong to parameters, and follow them when buckets are laid out anew.
class Residuals {
 public:
  /// Elements of a bucket, from the first of its gradients on.
  struct Part {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  /// What is residuals of a parameter's elements, from `begin` on.
  struct ParameterResidual {
    std::int64_t begin;
    at::Tensor now;     ///< [n]
    at::Tensor before;  ///< [n], without what this step has changed
  };
  /// By the address of the parameter.
  using ByParameter = std::unordered_map<const void*, ParameterResidual>;

  /// Has zeros for these parts of buckets, none for empty ones, and what is residuals of their
  /// parameters. No reduction may be in flight.
  void lay_out(const std::vector<Bucket>& buckets, const std::vector<Part>& parts,
               const std::vector<at::Tensor>& parameters, const ByParameter& residuals);
  /// Everything; nothing is left. No reduction may be in flight.
  ByParameter take();

  const Part& part(std::size_t bucket) const { return parts_[bucket]; }
  /// The residual [n] of a bucket, for a reduction that begins now; undefined if it has none.
  at::Tensor begin(std::size_t bucket);
  /// The results of this step's reductions are used.
  void keep();
  /// They are not, and have completed: residuals are again what they were before the step.
  void restore();
  /// From now on gradients are `factor` times as large, as with another scale of the loss.
  void rescale(double factor);

  /// What is residuals without the gradients of this step, even while they are reduced: views, if no
  /// step has begun. A parameter that lies in no part has none.
  ByParameter before_step();
  std::size_t size_bytes() const;

 private:
  struct Residual {
    at::Tensor now;     // [n]; undefined: none
    at::Tensor before;  // [n]; what it was before the step, once one has begun
    bool is_open = false;
    double pending = 1.0;  // factor of what is residuals
  };

  /// Calls `visit(parameter, first element in it, first in the part, count)`.
  template <class Visit>
  void for_each_member(std::size_t bucket, const Visit& visit) const;
  void zero_gaps(std::size_t bucket);
  static void apply_factor(Residual& residual);

  std::vector<Bucket> buckets_;
  std::vector<Part> parts_;
  std::vector<at::Tensor> parameters_;
  std::vector<Residual> residuals_;  // of each bucket
};

}  // namespace kolo::tensors
