#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <torch/optim/optimizer.h>

#include "kolo/bucket_hook.hpp"
#include "kolo/checkpoint.hpp"
#include "kolo/distributed_optimizer.hpp"
#include "kolo/process_set.hpp"
#include "kolo/training_report.hpp"
#include "torch/optimizer/option_sync.hpp"
#include "torch/reduction/gradient_check.hpp"
#include "torch/reduction/gradient_reducer.hpp"
#include "torch/training/training_view.hpp"

namespace kolo::tensors {

struct TrainingDetails;

/// What lies behind a DistributedOptimizer: the wrapped optimizer, the reducers of its gradients,
/// and where the step stands.
class OptimizerEngine {
 public:
  using Groups = OptionSync::Groups;

  /// `groups` are the wrapper's own, and outlive this. Collective.
  OptimizerEngine(torch::optim::Optimizer& wrapped, Groups& groups,
                  const DistributedOptimizer::NamedParameters& names,
                  const DistributedOptimizer::NamedParameters& buffers,
                  DistributedOptimizerOptions options);
  ~OptimizerEngine();
  OptimizerEngine(const OptimizerEngine&) = delete;  // its reducers refer to it
  OptimizerEngine& operator=(const OptimizerEngine&) = delete;

  torch::optim::Optimizer& wrapped() { return wrapped_; }
  const DistributedOptimizer::StepTimes& times() const { return step_->times; }

  /// Makes changed options the same on both sides.
  void merge_options() { option_sync_.merge(groups_, wrapped_.param_groups()); }

  void synchronize();
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure);
  /// What has arrived since the last step is taken from its parameters, and reductions are over.
  void discard();
  double clip_grad_norm(double max_norm, double norm_type);
  /// Takes the scale of the loss from the gradients. `found_in_gradients` says on all ranks alike
  /// what came of it; where that was an overflow, `skip_step` ends the step without one.
  void unscale(double scale);
  GradientCheck::Found found_in_gradients();
  void skip_step();
  int join();
  void save(const std::filesystem::path& folder, const SaveOptions& options);
  Loaded load(const std::filesystem::path& path, const LoadOptions& options);
  void save_full_state(const std::filesystem::path& file, int root);
  void set_hook(BucketHook hook);
  TrainingReport report() const;

  /// Throws InvalidArgument, which names `what`, where the optimizer is sharded.
  void require_whole(const std::string& what) const;
  /// Throws InvalidArgument, which names `what`, where each rank has a part of the state.
  void require_undivided(const std::string& what) const;

  int& no_sync_depth() { return step_->no_sync; }
  int& skip_synchronize_depth() { return skip_synchronize_; }

 private:
  std::string name_of(const at::Tensor& parameter, std::size_t index) const;
  std::vector<ReducedParameter> unknown_parameters() const;
  void wire_all(const std::string& defect);
  void wire_new_parameters();
  void wire(std::vector<ReducedParameter> parameters, const std::string& defect);
  void reduce_all();
  void begin_backward();
  at::Tensor step_whole(const torch::optim::Optimizer::LossClosure& closure);
  at::Tensor step_shards(const torch::optim::Optimizer::LossClosure& closure);
  void update_parts();
  void make_gradients_ready();
  void drop_gradients();
  std::vector<at::Tensor> own_gradients() const;
  void require_untouched() const;
  std::string changed_since_arrival() const;
  void expect_reason(const std::string& changed);

  int join_whole();
  int join_divided();
  void align_with(int root);
  bool have_some_joined() const;
  nlohmann::json announce(const nlohmann::json& deed);
  bool follow();

  TrainingView view() const;
  static std::size_t peak_resident();
  std::uint64_t bytes_sent() const;
  double gpu_seconds() const;
  Loaded load_checkpoint(const std::filesystem::path& path, const LoadOptions& options);
  nlohmann::json layout() const;
  void follow_layout(const TrainingDetails& details);
  bool is_in_flight() const;

  torch::optim::Optimizer& wrapped_;
  Groups& groups_;
  DistributedOptimizerOptions options_;
  ProcessSet& set_;
  const std::string prefix_;  // of the names of its operations
  DistributedOptimizer::NamedParameters named_;
  DistributedOptimizer::NamedParameters buffers_;
  std::unordered_map<const void*, std::string> names_;
  OptionSync option_sync_;
  BucketHook hook_;
  int skip_synchronize_ = 0;
  std::int64_t steps_ = 0;
  int unused_changes_ = 0;  // since the last step: parameters changed, gradients were thrown away
  std::uint64_t sent_before_ = 0;  // up to the last step
  std::uint64_t sent_per_step_ = 0;
  double gpu_seconds_before_ = 0.0;  // up to the last step
  double gpu_seconds_per_step_ = 0.0;
  std::size_t peak_at_construction_ = 0;

  ShardSets sets_;
  GradientCheck check_;
  std::optional<int> last_heard_of_;  // the last of the active ranks, while some have joined
  std::shared_ptr<StepState> step_;   // shared with backward(), whose end may come later
  std::int64_t wirings_ = 0;
  std::int64_t saves_ = 0;  // and loads
  /// One for the parameters that were there at first, and one for each batch that came later.
  std::vector<std::unique_ptr<GradientReducer>> reducers_;
};

}  // namespace kolo::tensors
