#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "kolo/compression.hpp"
#include "kolo/process_set.hpp"
#include "kolo/reduction.hpp"

namespace torch::nn {
class Module;
}

namespace kolo {

struct DistributedOptimizerOptions {
  // Behaviour.
  ReduceOp op = ReduceOp::Average;  ///< of gradients over ranks: Average or Sum
  /// Calls of backward() whose gradients add up before they are reduced. They are summed, not
  /// averaged: divide the loss yourself, as with Horovod.
  int backward_passes_per_step = 1;
  /// f: gradients are multiplied by 1/f before and by f after the reduction; with Average only.
  double gradient_predivide_factor = 1.0;
  Compression compression = Compression::none();  ///< on the wire
  ProcessSet* process_set = nullptr;              ///< by default the world of Runtime::current()

  // Speed.
  /// Gradients that are reduced together. 0: an equal share of 16, 25 MiB at most. Larger buckets
  /// cost less per byte, smaller ones start earlier.
  std::size_t bucket_bytes = 0;
};

/// Trains data-parallel: wraps an optimizer, and reduces the gradients of its parameters over all
/// ranks while backward() still runs.
///
/// It is a torch::optim::Optimizer itself, over the same parameters, so schedulers and functions
/// that take one go on working. Options such as the learning rate may be changed on the wrapped
/// optimizer or on this one; a change on either side takes effect in both at the next step().
///
/// Gradients are views of buckets, in memory that the ranks of a node share where possible: nothing
/// is packed. A bucket is submitted when the last of its gradients has arrived. Their layout follows
/// the order in which gradients arrived on the set's first rank in the first step. Parameters that
/// got no gradient on this rank count as zero; one that got none on any rank keeps none.
///
/// Use on every rank of the set alike. The wrapped optimizer and the model outlive it, and the
/// parameters must not be replaced or moved to another type or device. Not thread-safe. Errors of
/// the reductions (see kolo/collectives.hpp) come out of backward(), step() or synchronize().
class DistributedOptimizer : public torch::optim::Optimizer {
 public:
  using Options = DistributedOptimizerOptions;
  using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

  /// Names of parameters, for error texts, are those in `model`. Collective over the set. Throws
  /// InvalidArgument for options out of range, parameters that are not strided floating CPU tensors,
  /// and optimizers that evaluate their closure several times a step (LBFGS).
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& model,
                       Options options = {});
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedParameters& names,
                       Options options = {});
  ~DistributedOptimizer() override;
  DistributedOptimizer(const DistributedOptimizer&) = delete;  // hooks refer to it
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// Blocks until all gradients are reduced, unless `synchronize` has done that already, then steps
  /// the wrapped optimizer. A closure is evaluated once, its gradients are reduced too.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Blocks until all gradients of this step are reduced and lie in the parameters' grad(), for
  /// clipping and the like. Submits what is incomplete as it is.
  void synchronize();

  /// Those of the wrapped optimizer.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// When a bucket of the last step was ready, moved and complete, in seconds from the first
  /// gradient; what proves, or disproves, that communication and backward overlap.
  struct BucketTimes {
    std::size_t size_bytes;
    double submitted;
    double started;
    double ended;
  };
  struct StepTimes {
    double last_gradient = 0.0;
    std::vector<BucketTimes> buckets;  ///< in their order
  };
  const StepTimes& last_step_times() const;

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace kolo
