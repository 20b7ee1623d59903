#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "train/buckets/bucket_plan.hpp"

namespace kolo::train {

/// Residuals of a codec or a bucket hook: the encoding errors of each bucket's gradients on this
/// rank.
///
/// A skipped step leaves residuals unchanged: each has a copy from before the step. Residuals
/// belong to parameters, and follow them when buckets are laid out anew.
class Residuals {
 public:
  /// Elements of a bucket, from the first of its gradients on.
  struct Part {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  /// The residual of a parameter's elements, from `begin` on.
  struct ParameterResidual {
    std::int64_t begin;
    at::Tensor now;     ///< [n]
    at::Tensor before;  ///< [n], from before this step
  };
  /// By the address of the parameter.
  using ByParameter = std::unordered_map<const void*, ParameterResidual>;

  /// Lays out residuals for these parts of buckets, none for empty ones, with zeros and the values
  /// of `residuals`. No reduction may be in flight.
  void lay_out(const std::vector<Bucket>& buckets, const std::vector<Part>& parts,
               const std::vector<at::Tensor>& parameters, const ByParameter& residuals);
  /// Moves all residuals out. No reduction may be in flight.
  ByParameter take();

  const Part& part(std::size_t bucket) const { return parts_[bucket]; }
  /// Returns the residual [n] of a bucket for a reduction that begins; undefined if it has none.
  at::Tensor begin(std::size_t bucket);
  /// The results of this step's reductions are used.
  void keep();
  /// They are not used, and have completed: restores the residuals from before the step.
  void restore();
  /// From now on gradients are `factor` times as large, since the scale of the loss has changed.
  void rescale(double factor);

  /// The residuals from before this step, even while its gradients are reduced; views, if no step
  /// has begun. Parameters outside all parts have no entry.
  ByParameter before_step();
  std::size_t size_bytes() const;

 private:
  struct Residual {
    at::Tensor now;     // [n]; undefined: none
    at::Tensor before;  // [n]; its value before the step, once a step has begun
    bool is_open = false;
    double pending = 1.0;  // factor to be applied
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

}  // namespace kolo::train
