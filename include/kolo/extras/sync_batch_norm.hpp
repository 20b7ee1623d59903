#pragma once

#include <cstddef>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>

#include "kolo/process_set.hpp"

namespace kolo::extras {
struct Moments;
}

#pragma GCC visibility push(default)
/// Batch normalization over the batches of all ranks; docs/normalization.md says when to use it.
namespace kolo {

/// A BatchNorm that normalizes with the mean and variance of the batches of all ranks together, as
/// torch.nn.SyncBatchNorm.
///
///   kolo::SyncBatchNorm norm(torch::nn::BatchNormOptions(64).momentum(std::nullopt), &set);
///
/// Outputs, running statistics and gradients are those of LibTorch's BatchNorm applied to the rows
/// of all ranks as one batch, for the sum of all ranks' losses; gradients of weight and bias are
/// this rank's contribution, which a DistributedOptimizer sums or averages like all others. Ranks
/// may have different numbers of rows, or none. In evaluation mode it acts as BatchNorm and does
/// not communicate.
///
/// In training mode, every rank of the set must call forward(), and backward() through its result,
/// in the same order for all of these modules; each call blocks until all ranks have made it.
/// Joined ranks are left out. Weight, bias and running statistics have the input's dtype or
/// float32. CPU and CUDA.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// @param options those of BatchNorm: `SyncBatchNorm(8)` takes the defaults for 8 channels
  /// @param process_set null: the world of Runtime::current(). Its members must construct their
  ///   modules in the same order, and train them while the Runtime lives
  /// @throws InvalidArgument if this rank is not a member of the set
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             ProcessSet* process_set = nullptr);

  /// Replaces a BatchNorm module: takes its options, mode and buffers, and its parameters, which
  /// stay the same objects for optimizers.
  ///
  ///   norm = register_module("norm", kolo::SyncBatchNorm(*batch_norm));
  template <std::size_t D, class Derived>
  explicit SyncBatchNormImpl(
      const torch::nn::NormImplBase<D, Derived, torch::nn::BatchNormOptions>& replaced,
      ProcessSet* process_set = nullptr)
      : SyncBatchNormImpl(replaced.options, process_set) {
    take_over(replaced, {replaced.weight, replaced.bias},
              {replaced.running_mean, replaced.running_var, replaced.num_batches_tracked});
  }

  /// @param input [N, C, ...], floating; N, and the dimensions after C, may differ between ranks
  /// @return like the input
  /// @throws InvalidArgument in training mode, on all ranks, if the input of any rank has an
  ///   invalid shape or dtype, or if all ranks together have one value per channel; in backward(),
  ///   for gradients of gradients (create_graph). TimeoutError on all ranks if one does not call it
  at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  void take_over(const torch::nn::Module& replaced, const std::vector<at::Tensor>& parameters,
                 const std::vector<at::Tensor>& buffers);
  std::string problem_with_input(const at::Tensor& input) const;
  void update_running_statistics(const extras::Moments& moments, bool has_values);

  std::shared_ptr<ProcessSet> set_;
  std::string name_;  // of its operations
};
TORCH_MODULE(SyncBatchNorm);

/// Replaces the BatchNorm modules of a model with SyncBatchNorm, like
/// torch.nn.SyncBatchNorm.convert_sync_batchnorm, where C++ allows it.
///
/// Modules in a torch::nn::Sequential can be replaced, at any depth of the model. A member such as
/// `torch::nn::BatchNorm2d norm` always refers to its own module, whatever is registered, so the
/// model's code must say SyncBatchNorm there; the same goes for elements of ModuleList and
/// ModuleDict. If one module cannot be replaced, none is. Parameters stay the same objects. Does
/// not communicate; call it on every rank, before you construct a DistributedOptimizer.
///
/// @param module the model, or a part of it
/// @param process_set null: the world of Runtime::current()
/// @return names of the replaced modules, such as "layers.1"; one for each place in the model
/// @throws InvalidArgument naming each module that cannot be replaced, and why
std::vector<std::string> convert_sync_batch_norm(torch::nn::Module& module,
                                                 ProcessSet* process_set = nullptr);

struct RunningStatisticsOptions {
  std::optional<int> root{};          ///< world rank to broadcast from; default: combine all ranks'
  ProcessSet* process_set = nullptr;  ///< default: the world of Runtime::current()
};

/// Makes the running statistics of BatchNorm modules, which differ between ranks, equal on all
/// ranks, for example before evaluation or a checkpoint. Changes the buffers of every module that
/// has `running_mean` and `running_var`, in place. Collective and blocking.
///
/// Combined statistics are those of the ranks' batches together, weighted by
/// `num_batches_tracked`, which becomes the largest. During training, each rank still normalizes
/// with the statistics of its own batch.
///
/// @param module the same on all ranks
/// @throws MismatchError on all ranks if the names or shapes of such modules differ
void sync_running_statistics(const torch::nn::Module& module,
                             const RunningStatisticsOptions& options = {});

}  // namespace kolo
#pragma GCC visibility pop
