#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include "kolo/torch/bucket_hook.hpp"
#include "kolo/torch/checkpoint.hpp"
#include "kolo/torch/distributed_optimizer_options.hpp"
#include "kolo/torch/training_report.hpp"

namespace kolo::train {
struct NamedModel;
class TrainingEngine;
}  // namespace kolo::train

#pragma GCC visibility push(default)
namespace kolo {

class GradScaler;

/// The module that an optimizer trains; or several by name, whose parameters are then called as
/// "actor.fc.weight":
///
///   kolo::DistributedOptimizer optimizer(adam, {{"actor", *actor}, {"critic", *critic}});
class NamedModules {
 public:
  using Named = std::pair<std::string, std::reference_wrapper<const torch::nn::Module>>;

  NamedModules(const torch::nn::Module& module)  // NOLINT(google-explicit-constructor): alone
      : modules_{{"", module}} {}
  NamedModules(std::initializer_list<Named> modules) : modules_(modules) {}
  const std::vector<Named>& modules() const { return modules_; }

 private:
  std::vector<Named> modules_;
};

/// Data-parallel training: wraps an optimizer and reduces the gradients of its parameters over all
/// ranks while backward() still runs.
///
///   kolo::DistributedOptimizer optimizer(torch::optim::Adam(model->parameters(), 1e-3), *model);
///   kolo::broadcast_parameters(*model, 0);
///   for (const auto& batch : batches) {
///     optimizer.zero_grad();
///     loss_of(model->forward(batch.rows), batch.labels).backward();
///     optimizer.step();
///   }
///
/// It owns the wrapped optimizer, or refers to one of the program's:
///
///   torch::optim::Adam adam(model->parameters(), 1e-3);
///   kolo::DistributedOptimizer optimizer(adam, *model);
///
/// It is a torch::optim::Optimizer over the same parameters, so schedulers and functions that take
/// an optimizer work with it. Options such as the learning rate may be changed on the wrapped
/// optimizer or on this one, and parameters moved to another group or removed; the next step()
/// applies a change to both. A step calls step() of an optimizer class of the program's own once,
/// with all parameters or this rank's shards. The class's options need serialize() for both
/// archives; state that is sharded or loaded also needs save() and load() of the optimizer, which
/// torch::optim::serialize implements.
///
/// Gradients, unless they are sparse, become views of buckets, on the CPU in memory that the ranks
/// of a node share where possible, so they are reduced without packing. A bucket is submitted when
/// its last gradient has arrived; from then until step() or synchronize(), any access to its
/// gradients throws c10::Error, but a program may undefine them: step() then leaves the parameter
/// alone, as in plain LibTorch. Undefine it on all ranks, or in for_each_gradient() if some do not
/// use the parameter.
/// After the first step, buckets are laid out in the order in which gradients arrived on the set's
/// first rank. If a parameter has no gradient on this rank, it counts as zero; if it has none on
/// any rank, its grad() stays undefined.
///
/// Ranks compare the options of groups, the group of each parameter, whether the last step was
/// taken or its gradients dropped, and the calls that changed its gradients or state, without
/// operations of their own. If any differ, the reduction of the next step ends in a MismatchError
/// on all ranks, which names them, before anything is updated. If sharded, a rank that drops
/// gradients with which others step gets the error at once, as they do. save() and join() compare
/// first.
///
/// Parameters may be added later: a group added to this or to the wrapped optimizer, or a parameter
/// whose requires_grad is set, takes part from the next zero_grad(), synchronize() or step() on;
/// that call is then collective.
///
/// Once a rank has joined, calls that need all ranks throw InvalidArgument on the others, at once:
/// those that are collective outside of steps, and adding parameters. docs/training.md has a table
/// of calls and states.
///
/// All ranks of the set must use it alike: each calls step() equally often, whether or not its loss
/// depends on any parameter, and steps several optimizers in the same order. If shard = Full
/// gathers parameters, all ranks must also use them in the same order. A parameter may belong to
/// only one DistributedOptimizer at a time. Modules, and an optimizer that it refers to, must
/// outlive it; parameters must not be replaced or moved to another dtype or device. Not
/// thread-safe. Errors of reductions (kolo/collectives.hpp) are thrown by backward(), step(),
/// synchronize() and zero_grad(). It may be destroyed after the Runtime, but used only before,
/// except that zero_grad() still drops the gradients of this rank.
class DistributedOptimizer : public torch::optim::Optimizer {
 public:
  using Options = DistributedOptimizerOptions;
  using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

  /// Wraps an optimizer. Collective over the set, and blocking.
  /// @param optimizer steps the parameters; must outlive this
  /// @param model a module, or several by name: supply the parameters' names, and what save() and
  ///   load() take, as they are then. In errors, parameters that are in none are numbered
  /// @param options the same on all ranks
  /// @throws InvalidArgument on all ranks if, on any rank, an option is out of range, two names are
  ///   equal, parameters are not dense floating tensors on one device, the CPU or a CUDA device, or
  ///   belong to another DistributedOptimizer that still lives, or the optimizer evaluates its
  ///   closure several times per step (LBFGS)
  /// @throws MismatchError on all ranks if options, also of parameter groups, or names, dtypes,
  ///   shapes, groups or device of parameters differ between ranks
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedModules& model,
                       Options options = {});
  /// Wraps an optimizer with parameters of these names instead of a model. It saves no buffers.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedParameters& names,
                       Options options = {});
  /// Wraps an optimizer and takes ownership of it.
  /// @throws InvalidArgument if `optimizer` is null
  DistributedOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                       const NamedModules& model, Options options = {});
  template <std::derived_from<torch::optim::Optimizer> Wrapped>
  DistributedOptimizer(Wrapped&& optimizer, const NamedModules& model, Options options = {})
      : DistributedOptimizer(std::make_unique<Wrapped>(std::move(optimizer)), model,
                             std::move(options)) {}
  ~DistributedOptimizer() override;
  DistributedOptimizer(const DistributedOptimizer&) = delete;  // hooks refer to it
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// Drops all gradients; hides torch::optim::Optimizer::zero_grad().
  /// If gradients have arrived since the last step(), blocks until they are reduced and discards
  /// them; it must then be called on every rank. The backward() of a GAN's generator leaves such
  /// gradients in the discriminator. If the program drops gradients in another way, such as the
  /// model's zero_grad(), the next backward() does the same, and waits there for the other ranks:
  /// with several optimizers over one loss, call theirs. A rank cannot see that if it has had no
  /// gradients in any of several passes of the step: call this one there, too.
  /// @param set_to_none undefine gradients instead of zeroing them
  void zero_grad(bool set_to_none = true);

  /// Adds a group to this and to the wrapped optimizer at once; hides
  /// torch::optim::Optimizer::add_param_group(), after which the wrapped optimizer's zero_grad()
  /// would not reach the group before the next step. Not collective, but to be called on all ranks.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Whether gradients have arrived on this rank, outside no_sync(), since the last step() or
  /// zero_grad(). With zero_grads(), it shows a wrapper of training what the program has called
  /// itself. Not collective.
  bool has_gradients() const;
  /// How often zero_grad() was called. Not collective.
  std::uint64_t zero_grads() const;

  /// Reduces the gradients unless synchronize() has done so, then steps the wrapped optimizer.
  /// Blocks until the gradients are reduced, even if there were fewer than backward_passes_per_step
  /// passes. Clears autocast's cached casts of parameters. With a GradScaler, call
  /// GradScaler::step() instead.
  /// @param closure evaluated once, if given; its gradients are reduced too
  /// @return the closure's loss, or an undefined tensor
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Runs backward on a loss that is normalised by the number of samples or tokens of all ranks,
  /// instead of by each rank's own number and then by the number of ranks. The gradients of the
  /// step are those of (sum of loss_sum) / (sum of count) over all ranks and all passes of the
  /// step, in every shard mode, with Average as well as Sum, for uneven batches and any number of
  /// passes:
  ///
  ///   const at::Tensor loss = cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
  ///   optimizer.backward(loss, labels.numel());
  ///   optimizer.step();
  ///
  /// With a GradScaler, pass scaler.scale(loss_sum). A bucket hook must return what `op` would.
  /// With float16 parameters or float16 compression, the first call blocks until every rank has
  /// called it. See docs/training.md for the rest.
  /// @param loss_sum the sum, not the mean, of the loss over this rank's samples of the pass; if
  ///   the tensor has several elements, their sum. With count 0 it may be undefined, and backward()
  ///   is not run on it, except where shard = Full gathers parameters: there all ranks must use the
  ///   same parameters, so a rank without samples passes the loss of any samples, which do not
  ///   count.
  /// @param count the number of samples in loss_sum, 0 or more; may differ between ranks and passes
  /// @throws InvalidArgument if `op` is Adasum. step(), synchronize() and clip_grad_norm_() throw
  ///   it on all ranks if, on any rank, `count` is negative, or positive without a graph, or the
  ///   step also had an ordinary backward(), whose gradients have no count
  void backward(const at::Tensor& loss_sum, std::int64_t count);

  /// Blocks until all gradients of this step are reduced, so that the program can read or change
  /// them in grad() before step(), which does not reduce them again. Submits incomplete buckets as
  /// they are. Idempotent. A gradient that arrives between it and step() is an error. If the
  /// optimizer is sharded, the gradients belong to the leaves that each rank updates: use
  /// for_each_gradient(). grad() can be undefined, which drops the gradient; any other access to it
  /// throws c10::Error.
  void synchronize();

  using GradientVisitor = std::function<void(const std::string& name, at::Tensor& gradient)>;

  /// Calls synchronize(), then `visit` with this rank's pieces of the reduced gradients, in every
  /// shard mode, so that a program can change them, drop them or compute with them. See
  /// docs/training.md for an example.
  ///
  /// Without shards, `gradient` is the whole gradient, in the parameter's shape, which must be
  /// changed alike on all ranks. In sharded modes it is one-dimensional and has some of the
  /// elements; a rank visits no, one or several pieces of a parameter. Drop a gradient in all
  /// pieces, on all ranks. Collective as synchronize(); `visit` may call collectives only if all
  /// ranks do so equally often.
  /// @param visit called with grad mode off; may change the elements of `gradient`, replace it by
  ///   one of the same shape and dtype, or undefine it
  /// @return how many ranks visit each element: the set's size without shards, otherwise 1, or with
  ///   ShardScope::Node the number of nodes. Divide sums over the ranks by it.
  int for_each_gradient(const GradientVisitor& visit);

  /// Calls synchronize(), then limits each element of all gradients to [-max_value, max_value]; of
  /// complex ones, each part. Semantics: torch::nn::utils::clip_grad_value_.
  /// @throws InvalidArgument if `max_value` is negative
  void clip_grad_value_(double max_value);

  /// Calls synchronize(), then scales all gradients so that their total norm is at most `max_norm`.
  /// @param norm_type p > 0 of the p-norm; may be infinity
  /// @return the norm before scaling, the same on all ranks
  /// @throws InvalidArgument if `norm_type` is not positive
  double clip_grad_norm_(double max_norm, double norm_type = 2.0);

  using ParameterState = std::map<std::string, c10::IValue>;
  using StateMap = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

  /// The wrapped optimizer's state of a parameter, by field, such as "exp_avg" and "step"; empty if
  /// it has none. Tensors are whole, in the parameter's shape, and copies. If the optimizer is
  /// sharded, collective and blocking; call it on all ranks, between steps.
  /// @param parameter one that it trains
  /// @throws InvalidArgument for another tensor, and for state of a class without serialize()
  ParameterState parameter_state(const at::Tensor& parameter);

  /// Resets the wrapped optimizer's state of a parameter to that of a new one, as for a layer that
  /// the program initializes again. To be called on all ranks; if the optimizer is sharded,
  /// collective and blocking.
  /// @throws InvalidArgument for a tensor that it does not train
  void reset_parameter_state(const at::Tensor& parameter);

  /// The wrapped optimizer's state() in shard mode None; hides torch::optim::Optimizer::state().
  /// @throws InvalidArgument if the optimizer is sharded: the map would have shards of this rank
  StateMap& state();

  /// Keeps a mode enabled while it lives.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(int& depth) : depth_(depth) { ++depth_; }
    ~Guard() { --depth_; }
    Guard(const Guard&) = delete;  // it counts once
    Guard& operator=(const Guard&) = delete;

   private:
    int& depth_;
  };

  /// Under the guard, gradients add up on this rank and nothing is reduced, as with DDP's
  /// no_sync(). The next backward() or step() without the guard reduces them all.
  Guard no_sync();

  /// Under the guard, step() does not reduce gradients. Unlike with Horovod, it is not needed after
  /// synchronize(). Together with no_sync(), this rank steps alone. step() under the guard throws
  /// InvalidArgument if the optimizer is sharded, since no rank can update its parameters alone,
  /// and while gradients are being reduced.
  Guard skip_synchronize();

  /// Declares that this rank takes no more steps, and blocks until all ranks have joined. Meanwhile
  /// it contributes zeros to their reductions; Options::join_divisor decides what Average divides
  /// by. Afterwards all ranks have the parameters, optimizer state and options of a rank that has
  /// taken the most steps, and training may continue. The model's buffers do not change. If the
  /// optimizer is sharded, a rank that has joined takes part in steps alone: another operation of
  /// the program's waits for it until its deadline.
  /// @return the rank that joined last; see kolo::join
  /// @throws InvalidArgument while gradients are being reduced, and with local_sgd
  /// @throws MismatchError on all ranks if the last step differed between those that have taken the
  ///   most
  int join();

  /// Compares the parameters of all ranks bit by bit, but not buffers and state. Collective over
  /// the set and blocking; call it between steps, with local_sgd after those that average
  /// parameters. Reads all parameters once; each rank sends 16 bytes per rank. With shard = Full it
  /// does nothing, since there are no replicas.
  /// @throws MismatchError on all ranks if any parameter differs, naming the first ones, and which
  ///   ranks have equal values
  void check_replicas();

  /// Runs `write`, which may change parameters: load, prune or clamp them. Collective and blocking.
  /// Only needed with shard = Full, where ranks have no copies of their own; other modes just run
  /// `write`. Each parameter may be written by one rank, or by several with the same values; all
  /// ranks then have the new values. While `write` runs, every rank has a copy of all parameters.
  /// @param write called once on every rank
  /// @throws MismatchError on all ranks if some have written different values to a parameter, and
  ///   InvalidArgument if `write` throws on another rank; all keep the old parameters
  void full_parameters(const std::function<void()>& write);

  /// From now on reduces buckets with a hook instead of op, compression and predivision. Call it on
  /// all ranks, between steps, and before load() if the hook has state or residuals.
  /// @param hook a function, or a BucketHook with state; an empty one restores the ordinary
  ///   reduction
  /// @throws InvalidArgument if the optimizer is sharded, or while gradients are being reduced
  void register_bucket_hook(BucketHook hook);

  /// Writes a checkpoint: parameters and buffers of the model as it is now, the optimizer's state
  /// and options, the states of random number generators, and what `options` adds. Collective and
  /// blocking.
  /// Every rank writes its share straight from CPU memory; only the state of optimizer classes that
  /// LibTorch does not know is copied first. Buffers are those of the set's first rank. Gradients
  /// are not saved, even in the middle of accumulation. With local_sgd, between averages, it
  /// averages the parameters first; optimizer state differs between ranks, and each rank writes its
  /// share from its own; state that some ranks lack is that of the last one that has it. Ranks
  /// check that load() will take it before they write. When save() returns, the checkpoint is on
  /// the disk: a folder of safetensors files with index.json. A crash at any moment leaves earlier
  /// checkpoints intact. The umask determines who may read the files. If another program saves to
  /// or loads from `folder`, save() waits for it, at most half of KOLO_TIMEOUT.
  /// @param folder the parent of the checkpoints' folders; all ranks must see it under this name
  /// @return the checkpoint, and the names of the parameters and buffers in it
  /// @throws BackendError on all ranks, naming rank, file and cause, if a file cannot be written or
  ///   the other program does not finish in time
  /// @throws InvalidArgument on all ranks for parameters of the optimizer that are in no module,
  ///   state of a class without serialize(), state that load() would refuse, and names that are not
  ///   UTF-8
  /// @throws MismatchError on all ranks if the last step, the options now, or `options` differ
  ///   between ranks
  Saved save(const std::filesystem::path& folder, const SaveOptions& options = {});

  /// Waits for a save with SaveOptions::in_background. Collective and blocking. The destructor
  /// waits too, and logs an error that nobody has asked for. To be called before
  /// shutdown(), which ends what has not been written.
  /// @return what it has saved; nothing if there was none since the last wait
  /// @throws the errors of save() that concern files, and PeerLostError
  std::optional<Saved> wait_for_save();

  /// Resumes from a checkpoint of any world size and shard mode, between steps. Collective and
  /// blocking. Checks names, shapes, dtypes, options and checksums before it changes anything.
  /// Before the first step, it also restores the layout of buckets, and shards at once.
  /// @param path a checkpoint; a folder of checkpoints, for the newest one; or only parameters and
  ///   buffers: a safetensors file, a folder of Hugging Face with model.safetensors or
  ///   model.safetensors.index.json, or a file that torch::save wrote of the model. LibTorch reads
  ///   the latter, and trusts it
  /// @return which checkpoint it loaded, its number of steps and extras, which tensors it took, and
  ///   which options it changed: all are those of the checkpoint then
  /// @throws MismatchError on all ranks if they give different options, or see different things
  ///   under the path
  /// @throws InvalidArgument on all ranks, naming file and tensor, if something is missing, damaged
  ///   or does not match the program; also while gradients are being reduced, or have been reduced
  ///   and not yet used
  /// @throws BackendError on all ranks if a file cannot be read, or another program saves too long
  Loaded load(const std::filesystem::path& path, const LoadOptions& options = {});

  /// Writes one safetensors file with all parameters and buffers under their names, and the
  /// optimizer's state as "optimizer.<field>.<name>". Collective and blocking. No rank needs more
  /// than 4 MiB of additional memory.
  /// @param root the world rank that writes the file, the same on all ranks
  /// @throws the errors of save(), and InvalidArgument if `root` is not in the process set
  void save_full_state(const std::filesystem::path& file, int root = 0);

  /// Save and load the wrapped optimizer, for torch::save and torch::load.
  /// @throws InvalidArgument once parameters are sharded
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// When a bucket of the last step was submitted, and when its reduction started and ended, in
  /// seconds from the step's first gradient.
  struct BucketTimes {
    std::size_t size_bytes;
    double submitted;
    double started;
    double ended;
  };
  struct StepTimes {
    double last_gradient = 0.0;        ///< when it arrived, in seconds from the first
    std::vector<BucketTimes> buckets;  ///< in the order of the layout
  };
  /// Shows whether communication overlapped with backward() in the last step. Not collective.
  const StepTimes& last_step_times() const;

  /// The bytes that this rank keeps and moves, and what formulas predict. Not collective.
  TrainingReport report() const;

 private:
  /// `problem` with the model is an error if there are several ranks.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, std::function<train::NamedModel()> model,
                       Options options, const std::string& problem);

  torch::optim::Optimizer& wrapped_;
  friend class GradScaler;  // acts between backward() and step()
  std::unique_ptr<torch::optim::Optimizer> owned_;
  std::unique_ptr<train::TrainingEngine> engine_;
};

}  // namespace kolo
#pragma GCC visibility pop
