#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kolo/handle.hpp"
#include "kolo/process_set.hpp"
#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"

namespace kolo::train {

/// A problem with the arguments of DistributedOptimizer::backward().
enum class CountProblem : std::int64_t { None, NegativeCount, UndefinedLoss, DetachedLoss };

/// A rank's row about the counted passes of its step; all zero on a joined rank.
struct CountRow {
  std::int64_t count = 0;
  std::int64_t is_active = 0;
  std::int64_t has_counted = 0;
  std::int64_t has_uncounted = 0;
  CountProblem problem = CountProblem::None;
  std::int64_t wrong_count = 0;  ///< the count of the call with the problem
};

/// The rows of all ranks, gathered with a sum to which joined ranks contribute zeros.
class CountRows {
 public:
  /// This rank's row alone.
  CountRows(const CountRow& own, ProcessSet& set);
  /// Starts gathering all rows under `name`. Collective over the set, and does not block.
  CountRows(const CountRow& own, ProcessSet& set, const std::string& name);

  void wait() { handle_.wait(); }
  std::int64_t total() const;
  int active_ranks() const;
  /// Throws InvalidArgument, naming the ranks, if rows are inconsistent.
  void require_consistent() const;

 private:
  std::string ranks_with(std::int64_t CountRow::* column) const;

  ProcessSet& set_;
  std::shared_ptr<std::vector<CountRow>> rows_;
  Handle handle_;
};

/// Divides the gradients of a step by the total count of all ranks, see
/// DistributedOptimizer::backward().
///
/// Losses are divided by a reference before their backward(), so that gradients have ordinary
/// magnitudes when they are rounded to 16 bits; the reduced gradients are multiplied once by the
/// remaining factor. The reference is a power of two near the count of a rank's last step, the same
/// on all ranks. For the first step, ranks agree on one only if float16 could overflow.
class LossNormalization {
 public:
  /// The arguments outlive this.
  LossNormalization(TrainingContext& context, GradientReducers& reducers)
      : context_(context), reducers_(reducers) {}

  /// Implements DistributedOptimizer::backward(). Called after dropped gradients are forgotten.
  void backward(const at::Tensor& loss_sum, std::int64_t count);
  /// A backward() starts to produce gradients, either this one or LibTorch's.
  void note_pass();
  /// Whether other ranks may wait for this one in the reductions of counted passes.
  bool has_passes() const { return has_common_passes_; }
  /// Forgets the passes of the step, whose gradients are dropped.
  void restart();
  /// Forgets the passes if all were under no_sync and the program has dropped their gradients
  /// without zero_grad() of the DistributedOptimizer. Called between passes.
  void forget_dropped();

  /// Before the reductions of a step: starts the reduction of counts, if this rank has counted.
  void begin();
  /// After the reductions, on all ranks: waits for the counts and forgets the passes. If the passes
  /// of any rank are inconsistent, clears gradients and throws on all ranks, but not if these are
  /// dropped anyway. Also called after failed reductions, and does not throw then.
  void finish(bool have_succeeded, bool are_dropped);
  /// After finish(): normalises the reduced gradients.
  void normalize();
  /// Normalises this rank's gradients by its own count; not collective.
  void finish_alone();
  /// Whether the passes of the last step that was reduced, or finished alone, had counts. If so, it
  /// is a step even without gradients.
  bool has_counted() const { return has_counted_; }
  /// Called on all ranks after a join, since some do not know the last counts.
  void forget_reference() { set_reference({}); }

 private:
  double reference() const { return context_.step.loss_reference.value_or(1.0); }
  void set_reference(std::optional<double> reference);
  bool needs_agreement() const;
  void agree_on_reference(std::int64_t count);
  bool has_gradients() const;
  CountRow own_row() const;
  void require_consistent(const CountRows& counts);
  void scale(double factor);

  TrainingContext& context_;
  GradientReducers& reducers_;
  bool is_counting_ = false;                   // backward() is running
  bool has_common_passes_ = false;             // counted passes outside no_sync
  bool has_uncounted_alone_ = false;           // passes under no_sync; gradients may be dropped
  bool has_counted_alone_ = false;             // counted passes only under no_sync, with gradients
  CountProblem problem_ = CountProblem::None;  // the first of this step
  std::int64_t wrong_count_ = 0;               // with it
  std::int64_t count_ = 0;                     // of this step
  std::optional<CountRows> counts_;            // in flight
  bool has_counted_ = false;                   // in the last step
  double factor_ = 1.0;                        // for normalize()
};

}  // namespace kolo::train
