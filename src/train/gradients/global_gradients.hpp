#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/process_set.hpp"
#include "kolo/tensor_view.hpp"
#include "train/sharding/parameter_shards.hpp"

namespace kolo::train {

/// The elements of a gradient, for operators on real numbers; of a sparse one, its entries.
at::Tensor real_elements(const at::Tensor& gradient);

/// Unscales and clips the gradients of a step, whose elements may be sharded, with the same result
/// on all ranks. One small all-gather carries both the norm and whether any gradient was not
/// finite; a rank without gradients takes part in it.
class GlobalGradients {
 public:
  /// What unscaling has found on all ranks together.
  enum class Found : std::uint8_t { NoGradients, Finite, Overflow };

  /// Gathers the rows of all ranks, of which this one gives `own`, to `all`. Null if this rank has
  /// all gradients: then nothing is collective.
  using GatherRows = std::function<void(const TensorView& own, void* all)>;

  /// `set` and `sets` outlive this.
  GlobalGradients(ProcessSet& set, const ShardSets& sets, GatherRows gather);

  /// Whether this rank has all gradients.
  bool has_all() const { return !gather_; }

  /// Divides this rank's gradients, dense or sparse, by the scale, and records whether any is not
  /// finite. The next clip() or found() shares this with the other ranks.
  void unscale(const std::vector<at::Tensor>& gradients, double scale);

  /// Scales this rank's gradients so that the norm of all is at most `max_norm`, and returns the
  /// norm before. Collective. Semantics: torch::nn::utils::clip_grad_norm_.
  double clip(const std::vector<at::Tensor>& gradients, double max_norm, double norm_type);

  /// The result of the last unscale(). Collective unless a clip() since then has shared it.
  Found found();
  bool has_found() const { return found_.has_value(); }

 private:
  /// A rank's row: the p-th power of its norm, or the infinity norm; 1 for an overflow; the number
  /// of its gradients; their scale. All zero on a joined rank.
  enum Column : std::int64_t { kNorm, kOverflow, kGradients, kScale, kColumns };
  using Row = std::array<double, kColumns>;

  std::vector<Row> allgather_rows(double norm);
  static Found found_in(const std::vector<Row>& rows);
  void require_equal_scales(const std::vector<Row>& rows) const;

  ProcessSet& set_;
  const ShardSets& sets_;
  const GatherRows gather_;
  Row own_{};                   // of the last unscale()
  std::optional<Found> found_;  // on all ranks together
};

}  // namespace kolo::train
