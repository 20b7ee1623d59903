#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "kolo/torch/grad_scaler.hpp"
#include "train/random/plan.hpp"

/// Random training programs: what each call must do, from the same training in one process, with
/// plain LibTorch in float64; or how it is refused, on all ranks.
namespace kolo::random_training {

/// How a call must end.
struct Expected {
  enum class End { Returns, Throws, NotMade };

  End end = End::Returns;
  std::vector<std::string> words{};   ///< Throws: in the text; otherwise names of `tensors`
  bool is_mismatch = false;           ///< Throws: a MismatchError, not an InvalidArgument
  bool is_of_program = false;         ///< Throws: the program's own exception
  std::vector<at::Tensor> tensors{};  ///< results
  std::vector<double> numbers{};      ///< results

  static Expected not_made() { return {.end = End::NotMade}; }
  static Expected refused(std::vector<std::string> words) {
    return {.end = End::Throws, .words = std::move(words)};
  }
  static Expected number(double value) { return {.numbers = {value}}; }
  bool returns() const { return end == End::Returns; }
  bool is_made() const { return end != End::NotMade; }
};

inline constexpr int kMaxRanks = 4;

/// A rank's part of a batch.
struct Share {
  int rows = 1;
  Layers used = ~Layers{0};
};

/// One pass of backward().
struct Pass {
  int batch = 0;  ///< number, of the rows
  Layers networks = 1;
  std::vector<Share> shares{};  ///< of each rank
  bool is_counted = false;      ///< DistributedOptimizer::backward(loss_sum, count)
  bool is_local = false;        ///< under no_sync()
  int failing = -1;             ///< a layer whose backward() throws
  int overflowing = -1;         ///< a rank whose gradients are not finite

  double weight = 1.0;  ///< of its gradients

  const Share& of(int rank) const { return shares[static_cast<std::size_t>(rank)]; }
};

/// One step of an Accelerator.
struct AcceleratedStep {
  std::vector<Pass> passes{};  ///< all but the last are local
  double max_norm = 0.0;       ///< of clip_grad_norm_(); 0: not called
  bool is_skipped = false;     ///< optimizer().zero_grad() after the last backward()
};

/// The optimizers on which a program can change groups and options.
enum class Side { Wrapper, Wrapped };
enum class Option { Rate, Decay };
enum class Zeroing { Wrapper, Wrapped, Model };

class Reference {
 public:
  explicit Reference(const Plan& plan);

  /// The optimizers are wrapped anew.
  void begin_part(const Setup& setup);
  Structure structure() const;
  const Setup& setup() const { return setup_; }
  const Plan& plan() const { return plan_; }
  const Model& model() const { return model_; }

  // --- a step ---
  Expected backward(const Pass& pass);
  Expected synchronize(int optimizer);
  /// for_each_gradient(): halves the gradients of a layer, or drops them.
  Expected visit(int optimizer, int layer, bool drops);
  Expected clip_norm(int optimizer, double max_norm, double norm_type);
  Expected clip_value(int optimizer, double max_value);
  /// Undefines grad() of a layer.
  Expected drop(int layer);
  Expected step(int optimizer);
  Expected step_with_closure(const Pass& pass);
  /// A step of each rank alone, with the batch of rank 0.
  Expected step_alone(const Pass& pass);
  Expected zero(int optimizer, Zeroing by, bool to_none);
  Expected step_accelerated(const AcceleratedStep& step);

  Expected unscale(int optimizer);
  Expected update(std::optional<double> scale);
  const GradScaler::State& scaler() const { return scaler_; }

  // --- parameters, groups, options ---
  Expected freeze(int layer);
  Expected add_layer(int layer, Side side, bool is_new_group);
  Expected move(int optimizer, const std::string& name, Side side);
  Expected swap_groups(int optimizer, Side side);
  Expected set_option(int optimizer, int group, Side side, Option option, double value);
  Expected add_buffer(double value);
  /// Multiplies a layer, in full_parameters() or directly.
  Expected write(int layer, double factor, bool is_in_full, bool is_by_one);
  /// In full_parameters() a rank throws, or ranks write different values.
  Expected write_badly(int layer, bool throws) const;
  Expected rewrap(int optimizer);

  // --- state and checkpoints ---
  Expected state_of(int optimizer, const std::string& name) const;
  Expected reset_state(int optimizer, const std::string& name);
  Expected state_map(int optimizer) const;
  Expected archive(int optimizer);
  Expected register_hook(int optimizer) const;
  Expected save(int folder);
  Expected load(int folder, bool takes_state);
  Expected save_full() const;
  Expected needs_all(const std::string& call) const;

  // --- joining ---
  Expected join(int rank);
  Expected join_rest();

  // --- what a program asks ---
  Expected compare() const;
  Expected evaluate(Layers networks, int batch) const;
  Expected has_gradients(int optimizer) const;
  Expected count_zero_grads(int optimizer) const;
  std::int64_t steps(int optimizer) const { return at(optimizer).steps; }

  int ranks() const { return setup_.ranks; }
  bool must_use_alike() const;
  bool has_joined(int rank) const { return joined_.contains(rank); }
  bool have_some_joined() const { return !joined_.empty(); }
  std::size_t groups(int optimizer) const { return at(optimizer).plain->param_groups().size(); }
  std::vector<std::string> members(int optimizer) const;

 private:
  using Gradients = std::map<std::string, at::Tensor>;

  /// An optimizer, and the state of its step.
  struct Trained {
    std::unique_ptr<torch::optim::Optimizer> plain;
    std::set<std::string> reduced{};  ///< parameters that the DistributedOptimizer reduces
    bool has_layout = false;          ///< of buckets, with which parameters are sharded
    bool is_layout_known = true;
    std::int64_t steps = 0;
    std::vector<double> zero_grads{};  ///< of each rank

    int passes = 0;          ///< outside no_sync(), since the step began
    bool has_local = false;  ///< passes under no_sync()
    bool has_counted = false;
    bool is_synchronized = false;
    bool is_broken = false;  ///< backward() has thrown: a zero_grad() is due
    bool is_zeroed = false;  ///< by another zero_grad() than the wrapper's
    bool has_overflow = false;
    std::vector<std::map<std::string, int>> arrived{};   ///< of each rank, outside no_sync()
    std::vector<std::set<std::string>> arrived_alone{};  ///< of each rank, under no_sync()
    std::int64_t count = 0;                              ///< of samples

    bool are_unscaled = false;  ///< the gradients of this step
    bool is_unscaled = false;   ///< since the last update()
    bool has_stepped = false;   ///< since the last update()

    std::optional<Side> members_side{};  ///< changed there, and not matched yet
    std::set<std::string> unmatched{};   ///< added there
    /// The side on which an option has changed; none: on both.
    std::map<std::pair<int, Option>, std::optional<Side>> option_sides{};

    bool has_begun() const { return passes > 0 || has_local; }
    bool is_idle() const { return !has_begun() && !is_synchronized && !is_broken && !is_zeroed; }
  };
  struct Snapshot {
    std::vector<Parameter> parameters;
    std::vector<double> buffers;
    std::vector<std::string> archives;          // of each optimizer
    std::vector<std::vector<bool>> have_decay;  // of its groups
    std::vector<std::int64_t> steps;
    std::vector<bool> have_layouts;
    GradScaler::State scaler;
    std::string signature;
  };

  Trained& at(int optimizer) { return trained_[static_cast<std::size_t>(optimizer)]; }
  const Trained& at(int optimizer) const { return trained_[static_cast<std::size_t>(optimizer)]; }
  Gradients& of(int rank) { return gradients_[static_cast<std::size_t>(rank)]; }
  const Gradients& of(int rank) const { return gradients_[static_cast<std::size_t>(rank)]; }
  std::vector<int> active() const;
  bool are_all_idle() const;
  int count() const { return static_cast<int>(trained_.size()); }

  std::set<std::string> trained_by(int optimizer) const;
  std::set<std::string> new_in(int optimizer) const;
  std::set<std::string> used_by(int layer) const;
  std::set<std::string> touched(int optimizer, const Pass& pass, int rank) const;
  bool has_gradient(int optimizer) const;
  bool is_scaled(const Trained& trained) const;
  static int arrivals(const Trained& trained, int rank, const std::string& name);
  bool have_arrived_alike(const Trained& trained) const;
  bool is_certainly_in_flight(int optimizer) const;
  bool is_removed(const std::string& name) const;

  std::optional<Expected> problem_with(const Pass& pass) const;
  std::optional<Expected> problem_with(const Pass& pass, int optimizer) const;
  std::optional<Expected> problem_with_shares(const Pass& pass) const;
  std::vector<int> involved(const Pass& pass) const;
  void add_gradients(const Pass& pass, int rank, int as_rank);
  Expected problem_with_reducing(int optimizer) const;
  void reduce(int optimizer);
  at::Tensor sum_of(const Trained& trained, const std::string& name) const;
  void match(int optimizer);
  void restart(Trained& trained);
  void clear(const std::set<std::string>& names, bool to_none);
  void step_plain(int optimizer);
  void end_step(int optimizer);
  std::optional<Expected> problem_with_members(int optimizer, Side side) const;
  std::string signature() const;
  std::string name_of(const at::Tensor& tensor) const;

  const Plan& plan_;
  Model model_;
  Setup setup_;
  std::vector<Trained> trained_;
  std::vector<Gradients> gradients_;  // of each rank, as in grad()
  std::set<int> joined_;
  GradScaler::State scaler_;
  bool scaler_overflowed_ = false;  // since the last update()
  std::vector<double> buffers_;
  bool has_scaled_ = false;  // in this part
  std::map<int, Snapshot> snapshots_;
};

inline constexpr GradScalerOptions scaler_options(bool is_enabled) {
  return {.init_scale = 256.0, .growth_interval = 3, .enabled = is_enabled};
}

/// Moves a parameter to the next group.
void move_member(torch::optim::Optimizer& optimizer, const at::Tensor& tensor);
/// Sets an option of any of the classes.
void set_option(torch::optim::OptimizerOptions& options, Option option, double value);
/// Whether each group has a weight_decay.
std::vector<bool> have_decay(torch::optim::Optimizer& optimizer);
/// The fields of a state, by name.
std::map<std::string, c10::IValue> fields_of(const torch::optim::OptimizerParamState& state);

}  // namespace kolo::random_training
