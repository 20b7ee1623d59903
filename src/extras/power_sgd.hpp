#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/collectives.hpp"
#include "kolo/extras/power_sgd.hpp"
#include "kolo/torch/bucket_hook.hpp"
#include "kolo/torch/tensor_handle.hpp"

namespace kolo::extras {

/// Makes the columns of a row-major matrix with `columns` columns orthonormal: Gram-Schmidt in
/// float64, one element after another, so that equal matrices have equal results on all ranks for
/// any number of threads. A column that depends on the ones before it becomes zero. A column with a
/// value that is not finite becomes NaN, as do those after it.
template <class Number>
void orthonormalize(std::span<Number> matrix, std::size_t columns);

/// The Qs [m, rank] of parameters, by name, with orthonormal columns, from which the next
/// approximations start. The same on all ranks.
using WarmStarts = std::map<std::string, at::Tensor>;

/// The reduction of one bucket: begin() in backward(), finish() when the first operation has ended.
class LowRankReduction {
 public:
  /// `options` and `warm_starts` outlive this.
  LowRankReduction(const PowerSgdOptions& options, WarmStarts& warm_starts, GradientBucket bucket);

  /// Starts the reductions of P and of uncompressed gradients.
  TensorHandle begin();
  /// Runs the remaining reductions. Blocks. Returns the bucket's reduced gradients.
  at::Tensor finish();

 private:
  /// A compressed gradient.
  struct Matrix {
    std::size_t parameter;  // its index in the bucket
    at::Tensor view;        // [n, m], in the bucket
    at::Tensor sum;         // view and residual; in the memory of the view unless that is narrower
    at::Tensor p;           // [n, rank], and
    at::Tensor q;           // [m, rank], in the memory of their all-reduces
    /// This rank's Q, before the all-reduce: P * own_q' approximates `sum` alone. The difference is
    /// this rank's residual, even if other ranks have joined.
    at::Tensor own_q{};
  };

  bool compresses(const at::Tensor& gradient) const;
  at::Tensor add_residual(std::size_t parameter, at::ScalarType type) const;
  void lay_out();
  void reduce_q();
  void assign(const Matrix& matrix);
  at::Tensor first_q(const Matrix& matrix) const;
  at::Tensor random_q(std::int64_t rows) const;
  at::Tensor next_q(const at::Tensor& q) const;
  AllreduceOptions average(const std::string& suffix) const;

  const PowerSgdOptions& options_;
  WarmStarts& warm_starts_;
  const GradientBucket bucket_;
  const at::TensorOptions type_;  // of P and Q
  std::vector<Matrix> matrices_;
  std::vector<std::size_t> others_;  // indices of uncompressed gradients
  at::Tensor all_p_, all_q_;
  std::optional<TensorsHandle> reduced_others_;
};

/// Implements the hook of a PowerSgd. Keeps its state by parameter name, since names outlive
/// layouts of buckets.
class PowerSgdReducer {
 public:
  /// `options` are in range and name the process set.
  explicit PowerSgdReducer(const PowerSgdOptions& options)
      : options_(options), set_(options.process_set->shared_from_this()) {}

  const PowerSgdOptions& options() const { return options_; }

  /// Starts the reduction of a bucket.
  TensorHandle reduce(GradientBucket bucket);

  /// Saves and restores the state; Qs of another shape are not used.
  const WarmStarts& state() const { return warm_starts_; }
  void set_state(const WarmStarts& state) { warm_starts_ = state; }

 private:
  const PowerSgdOptions options_;
  const std::shared_ptr<ProcessSet> set_;  // may outlive its Runtime
  WarmStarts warm_starts_;
};

}  // namespace kolo::extras
