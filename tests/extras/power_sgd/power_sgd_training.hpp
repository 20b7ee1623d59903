#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "kolo/extras/power_sgd.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/grad_scaler.hpp"
#include "train/training_fixture.hpp"

/// Shared code of the PowerSGD tests.
namespace kolo::test::power_sgd_test {

using Tensors = std::vector<at::Tensor>;

/// Numbers between -1 and 1 that form a matrix of full rank.
inline at::Tensor noise(int salt, int rank, const Shape& shape, at::ScalarType type = at::kFloat) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  const at::Tensor place = at::arange(count, at::kDouble);
  return (place * place * 0.37 + place * (rank + 1.3) + salt * 0.71).sin().reshape(shape).to(type);
}

inline DistributedOptimizer::NamedParameters named(const Tensors& parameters) {
  DistributedOptimizer::NamedParameters named;
  for (const at::Tensor& parameter : parameters) {
    named.emplace_back(std::to_string(named.size()), parameter);
  }
  return named;
}

/// Parameters with gradients that the test chooses. SGD adds them up.
struct Training {
  Training(const std::vector<Shape>& shapes, const PowerSgdOptions* compression,
           at::ScalarType type = at::kFloat, DistributedOptimizer::Options options = {})
      : parameters([&] {
          Tensors zeros;
          for (const Shape& shape : shapes) {
            zeros.push_back(at::zeros(shape, type).requires_grad_());
          }
          return zeros;
        }()),
        inner(parameters, 1.0),
        optimizer(inner, named(parameters), std::move(options)) {
    for (const Shape& shape : shapes) sums.push_back(at::zeros(shape, at::kDouble));
    if (compression != nullptr) {
      optimizer.register_bucket_hook(PowerSgd(*compression).hook());
    }
  }

  /// Produces these gradients by autograd; none where one is undefined.
  void backward(const Tensors& gradients, GradScaler* scaler = nullptr) {
    optimizer.zero_grad();
    at::Tensor loss = at::zeros({}, parameters[0].options());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (gradients[i].defined()) loss = loss + (parameters[i] * gradients[i]).sum();
    }
    (scaler != nullptr ? scaler->scale(loss) : loss).backward();
  }

  /// Returns the reduced gradients.
  Tensors step(const Tensors& gradients) {
    backward(gradients);
    optimizer.step();
    Tensors reduced;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = parameters[i].grad();
      reduced.push_back(gradient.defined() ? gradient.clone() : at::Tensor());
      if (gradient.defined()) sums[i] += gradient;
    }
    return reduced;
  }

  Tensors parameters;
  torch::optim::SGD inner;
  DistributedOptimizer optimizer;
  Tensors sums;  // of reduced gradients, in float64
};

class PowerSgdTest : public TrainingTest {
 protected:
  /// The mean over all ranks of what `of_rank` gives, in float64.
  at::Tensor mean(const std::function<at::Tensor(int rank)>& of_rank) {
    at::Tensor sum = of_rank(0).to(at::kDouble);
    for (int other = 1; other < size(); ++other) sum += of_rank(other);
    return sum / size();
  }

  void expect_equal_on_all_ranks(const at::Tensor& tensor) {
    const at::Tensor all = allgather(tensor.detach().unsqueeze(0));
    for (int other = 0; other < size(); ++other) expect_equal(all[other], all[0]);
  }
};

inline void expect_near(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                        const std::string& what = {}) {
  EXPECT_LT((got.to(at::kDouble) - expected).abs().max().item<double>(), tolerance) << what;
}

}  // namespace kolo::test::power_sgd_test
