#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/bucket_hook.hpp"
#include "kolo/collectives.hpp"
#include "kolo/power_sgd.hpp"
#include "kolo/tensor_handle.hpp"

namespace kolo::tensors {

/// What is kept of a parameter [n, ...] from step to step.
struct LowRankState {
  at::Tensor error{};  ///< [n, m]: what this rank's approximations have left out so far
  at::Tensor q{};      ///< [m, rank]: orthonormal columns; the same on all ranks
};

/// A gradient that is compressed, and its state.
struct LowRankGradient {
  std::size_t parameter;  ///< its place in the bucket
  at::Tensor view;        ///< [n, m], in the bucket
  LowRankState* state;
};

/// The reduction of one bucket with matrices to compress: begin() in backward(), finish() when P is
/// reduced.
class LowRankReduction {
 public:
  /// `gradients` is not empty, and its states outlive this.
  LowRankReduction(const PowerSgdOptions& options, GradientBucket bucket,
                   const std::vector<LowRankGradient>& gradients);

  /// Starts the reductions of P and of the gradients that are not compressed.
  TensorHandle begin();
  /// Blocks for those that remain. Returns the bucket's reduced gradients.
  at::Tensor finish();

 private:
  struct Matrix {
    LowRankGradient gradient;
    at::Tensor
        sum;       // gradient and residual, [n, m]; in the bucket's memory unless that is narrower
    at::Tensor p;  // [n, rank], and
    at::Tensor q;  // [m, rank], in the memory of their all-reduces
    at::Tensor
        own_q{};  // before its all-reduce: P times it is the approximation of `sum` alone, and
                  // the rest is this rank's residual, also while others have joined
  };

  at::Tensor first_q(const Matrix& matrix) const;
  at::Tensor random_q(std::int64_t rows) const;
  at::Tensor next_q(const at::Tensor& q) const;
  void assign(const Matrix& matrix);
  AllreduceOptions average(const char* suffix) const;

  const PowerSgdOptions& options_;
  const GradientBucket bucket_;
  at::TensorOptions type_;
  std::vector<Matrix> matrices_;
  at::Tensor all_p_, all_q_;
  std::optional<TensorsHandle> others_;
};

}  // namespace kolo::tensors
