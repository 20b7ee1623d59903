#pragma once

#include <functional>
#include <string>

#include <torch/torch.h>

#include "kolo/extras/sync_batch_norm.hpp"
#include "kolo/process_set.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "torch/modules/joined_batches.hpp"

namespace kolo::test::sync_batch_norm_test {

using torch::nn::BatchNormOptions;

inline constexpr double kTolerance = 1e-6;

/// LibTorch's module on the rows of all ranks, and Kolo's on this rank's rows.
template <class Norm>
class Pair {
 public:
  Pair(const BatchNormOptions& options, ProcessSet& set, Rows kind)
      : whole(options), synced(options, &set), set_(set), batch_(set, kind) {
    if (!options.affine()) return;
    const at::NoGradGuard no_grad;
    const at::Tensor numbers = at::arange(options.num_features(), at::kFloat) * 0.25;
    for (at::Tensor& weight : {std::ref(whole->weight), std::ref(synced->weight)}) {
      weight.copy_(numbers + 0.5);
    }
    for (at::Tensor& bias : {std::ref(whole->bias), std::ref(synced->bias)}) {
      bias.copy_(numbers - 1);
    }
  }

  void run_steps(const Shape& extents, int steps, double tolerance = kTolerance,
                 at::ScalarType type = at::kFloat) {
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const at::Tensor all = random_batch(batch_.count(), extents, step, type).requires_grad_();
      const at::Tensor own = batch_.own(all.detach()).clone().requires_grad_();
      const at::Tensor expected = whole->forward(all);
      const at::Tensor output = synced->forward(own);
      expect_close(output, batch_.own(expected), tolerance, "output");
      expect_same_statistics();
      const at::Tensor factors = at::tanh(random_batch(batch_.count(), extents, step + 50, type));
      whole->zero_grad();
      synced->zero_grad();
      expected.backward(factors);
      output.backward(batch_.own(factors));
      expect_close(own.grad(), batch_.own(all.grad()), tolerance, "gradient of the input");
      if (!whole->options.affine()) continue;
      // These sums cancel, so they are less exact.
      expect_close(sum(synced->weight.grad()), whole->weight.grad(), 5 * tolerance, "of weight");
      expect_close(sum(synced->bias.grad()), whole->bias.grad(), 5 * tolerance, "of bias");
    }
  }
  void expect_same_statistics() {
    expect_close(synced->running_mean, whole->running_mean, kTolerance, "running mean");
    expect_close(synced->running_var, whole->running_var, kTolerance, "running variance");
    expect_close(synced->num_batches_tracked, whole->num_batches_tracked, 0.0, "batches");
  }

  Norm whole;
  SyncBatchNorm synced;

 private:
  at::Tensor sum(const at::Tensor& gradient) {
    return allreduce(gradient, {.op = ReduceOp::Sum, .process_set = &set_});
  }

  ProcessSet& set_;
  JoinedBatch batch_;
};

}  // namespace kolo::test::sync_batch_norm_test
