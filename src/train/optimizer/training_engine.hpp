#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "insight/recorder.hpp"
#include "train/checkpoint/training_checkpoint.hpp"
#include "train/gradients/global_gradients.hpp"
#include "train/gradients/gradient_reducers.hpp"
#include "train/gradients/training_context.hpp"
#include "train/optimizer/call_rules.hpp"
#include "train/optimizer/local_sgd.hpp"
#include "train/optimizer/loss_normalization.hpp"
#include "train/optimizer/rank_comparison.hpp"
#include "train/optimizer/step_protocol.hpp"
#include "train/optimizer/training_reporter.hpp"
#include "train/optimizer/usage_guards.hpp"
#include "train/wrapped/options.hpp"

namespace kolo::train {

/// The implementation of DistributedOptimizer: it controls the order of a step, and delegates each
/// part of the work to another object. Its functions are those of DistributedOptimizer and
/// GradScaler.
class TrainingEngine {
 public:
  using Groups = TrainingContext::Groups;
  using NamedTensors = TrainingContext::NamedTensors;
  using LossClosure = WrappedOptimizer::LossClosure;

  /// `groups` are the wrapper's own and outlive this. `problem` with the model is an error if there
  /// are several ranks. Collective.
  TrainingEngine(std::unique_ptr<WrappedOptimizer> wrapped, Groups& groups,
                 const ModelSource& model, DistributedOptimizerOptions options,
                 const std::string& problem);
  TrainingEngine(const TrainingEngine&) = delete;  // its parts refer to it
  TrainingEngine& operator=(const TrainingEngine&) = delete;

  void backward(const at::Tensor& loss_sum, std::int64_t count);
  void enter(insight::Phase phase);
  /// Gives the groups of the side that the program has not changed the members of the other.
  void match_groups();
  void synchronize();
  /// Synchronizes unless skip_synchronize() makes each rank step with its own gradients.
  void make_gradients_ready();
  at::Tensor step(const LossClosure& closure);
  /// Discards the gradients that have arrived since the last step, after they have been reduced. If
  /// they cannot be, since a Runtime has ended, discards them on this rank.
  void discard();
  /// How often discard() was called.
  std::uint64_t discards() const { return discards_; }
  bool is_sharded() const { return context_.is_sharded(); }
  /// Whether any gradients have arrived outside no_sync().
  bool has_arrivals() const { return reducers_.any(&GradientReducer::has_arrivals); }
  double clip_grad_norm(double max_norm, double norm_type);
  void clip_grad_value(double max_value);
  int for_each_gradient(const DistributedOptimizer::GradientVisitor& visit);
  DistributedOptimizer::ParameterState parameter_state(const at::Tensor& parameter);
  void reset_parameter_state(const at::Tensor& parameter);
  void require_state_map() const;
  int join();
  void full_parameters(const std::function<void()>& write);
  void set_hook(BucketHook hook);
  void check_replicas();

  /// Divides the gradients by the scale of the loss. `found_in_gradients` then returns, the same on
  /// all ranks, whether they overflowed; if so, `skip_step` ends the step without an update.
  void unscale(double scale);
  GlobalGradients::Found found_in_gradients();
  void skip_step();
  /// The scale of the loss is `factor` times what it was.
  void rescale(double factor) { reducers_.rescale_residuals(factor); }

  Saved save(const std::filesystem::path& folder, const SaveOptions& options);
  std::optional<Saved> wait_for_save() { return checkpoint_.wait(); }
  void finish_save() { checkpoint_.finish(); }
  Loaded load(const std::filesystem::path& path, const LoadOptions& options);
  void save_full_state(const std::filesystem::path& file, int root);
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

  TrainingReport report() const { return reporter_.report(reducers_, checkpoint_.view()); }
  const DistributedOptimizer::StepTimes& times() const { return context_.step.times; }
  int& no_sync_depth() { return context_.step.no_sync; }
  int& skip_synchronize_depth() { return skip_synchronize_; }

 private:
  void merge_options();
  std::unique_ptr<StepProtocol> make_protocol();
  void begin_backward();
  void end_backward();
  void end_pass();
  void forget_dropped();
  void require(Call call);
  void add_new();
  void drop_gradients(bool adds_new);
  void note_dropped(const std::vector<std::string>& parameters);
  void drop_on_all_ranks();
  void require_precise_gradients() const;
  void note_call(const std::string& call, const std::vector<double>& arguments);
  double clip_norm(double max_norm, double norm_type);
  void clip_values(double max_value);
  void divide_gradients(double scale);
  void end_step(StepEnd end);
  void drop_step();
  void abandon_step();
  void average_parameters();
  void reduce(bool is_discarded);

  const std::unique_ptr<WrappedOptimizer> wrapped_;
  TrainingContext context_;
  OptionSync option_sync_;
  GradientReducers reducers_;
  UsageGuards guards_;
  RankComparison comparison_;
  std::unique_ptr<StepProtocol> protocol_;
  GlobalGradients gradients_;
  LossNormalization normalization_;
  LocalSgdSchedule local_;
  TrainingCheckpoint checkpoint_;
  TrainingReporter reporter_;
  // Autograd may report the end of a backward() after this is destroyed.
  const std::shared_ptr<std::function<void()>> end_of_backward_;
  int skip_synchronize_ = 0;  // guards alive
  std::uint64_t discards_ = 0;
  std::uint64_t discards_before_join_ = 0;
};

}  // namespace kolo::train
