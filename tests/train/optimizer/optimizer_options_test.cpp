// Options: agreement between ranks, groups, hooks, sparse gradients.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/distributed_optimizer.hpp"
#include "kolo/torch/tensor_collectives.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::optimizer_options_test {

using Options = DistributedOptimizer::Options;

class OptimizerOptionsTest : public TrainingTest {
 protected:
  std::string last() const { return "rank " + std::to_string(size() - 1); }

  /// Parameters of 1, 2, 3, … elements.
  static std::vector<at::Tensor> make_parameters(int count) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < count; ++i) {
      parameters.push_back(torch::zeros({i + 1}, torch::requires_grad()));
    }
    return parameters;
  }
  /// Adds the gradient (i + 1) * (rank + 1) * factor to every element of parameter i.
  void backward(const std::vector<at::Tensor>& parameters, double factor = 1.0) const {
    at::Tensor loss = torch::zeros({});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      loss = loss + parameters[i].sum() * (static_cast<double>(i + 1) * (rank() + 1) * factor);
    }
    loss.backward();
  }
  double mean(std::size_t i) const { return static_cast<double>(i + 1) * (size() + 1) / 2; }
  void expect_means(const std::vector<at::Tensor>& parameters) const {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i].grad(),
                                  torch::full({static_cast<std::int64_t>(i) + 1}, mean(i))))
          << i << ": " << parameters[i].grad();
    }
  }

  template <class Error>
  void expect_error(const std::function<void()>& make, const std::vector<std::string>& texts) {
    const std::string text = text_thrown_by<Error>(make);
    for (const std::string& part : texts) expect_contains(text, part);
  }
};

TEST_F(OptimizerOptionsTest, OptionsThatDiffer_AreAnErrorOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  struct Case {
    std::vector<std::string> texts;
    std::function<void(Options&, const std::vector<at::Tensor>&)> change;
    Shard shard = Shard::None;  // on all ranks
  };
  const std::vector<Case> cases{
      {{"op is Average", "op is Sum"}, [](auto& o, auto&) { o.op = ReduceOp::Sum; }},
      {{"backward_passes_per_step is 1", "is 4"},
       [](auto& o, auto&) { o.backward_passes_per_step = 4; }},
      {{"gradient_predivide_factor is 1", "is 2.5"},
       [](auto& o, auto&) { o.gradient_predivide_factor = 2.5; }},
      {{"compression is none", "compression is fp16"},
       [](auto& o, auto&) { o.compression = Compression::fp16(); }},
      {{"sparse_as_dense is false", "is true"}, [](auto& o, auto&) { o.sparse_as_dense = true; }},
      {{"join_divisor is World", "is Active"},
       [](auto& o, auto&) { o.join_divisor = JoinDivisor::Active; }},
      {{"bucket_bytes is 0", "is 777"}, [](auto& o, auto&) { o.bucket_bytes = 777; }},
      {{"parameter 2 is 'parameter 2', Float [3]", "[3] in group 0"},
       [](auto& o, auto& p) { o.groups = {{p[2]}}; }},
      {{"shard is none", "shard is gradients"}, [](auto& o, auto&) { o.shard = Shard::Gradients; }},
      {{"shard_scope is World", "shard_scope is Node"},
       [](auto& o, auto&) { o.shard_scope = ShardScope::Node; },
       Shard::Gradients},
      {{"accumulation is Local", "accumulation is Reduced"},
       [](auto& o, auto&) { o.accumulation = Accumulation::Reduced; },
       Shard::Gradients},
  };
  for (const Case& test : cases) {
    const std::vector<at::Tensor> parameters = make_parameters(3);
    torch::optim::SGD inner(parameters, 1.0);
    Options options;
    options.shard = test.shard;
    if (is_last()) test.change(options, parameters);
    std::vector<std::string> texts = test.texts;
    texts.push_back("on rank 0");
    texts.push_back("on " + last());
    expect_error<MismatchError>(
        [&] { DistributedOptimizer(inner, DistributedOptimizer::NamedParameters{}, options); },
        texts);
  }
  // Optimizers still work afterwards.
  const std::vector<at::Tensor> parameters = make_parameters(3);
  torch::optim::SGD inner(parameters, 1.0);
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{});
  backward(parameters);
  optimizer.synchronize();
  expect_means(parameters);
}

TEST_F(OptimizerOptionsTest, ParametersThatDiffer_AreAnErrorOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  const auto make = [&](std::vector<at::Tensor> parameters, const std::string& name) {
    torch::optim::SGD inner(parameters, 1.0);
    DistributedOptimizer(inner, {{name, parameters[0]}});
  };
  const auto tensor = [](std::int64_t n, torch::ScalarType type) {
    return torch::zeros({n}, torch::dtype(type).requires_grad(true));
  };
  const int odd = is_last() ? 1 : 0;
  expect_error<MismatchError>([&] { make({tensor(50 + odd, torch::kFloat32)}, "w"); },
                              {"parameter 0", "'w', Float [50]", "[51]", "on " + last()});
  expect_error<MismatchError>(
      [&] { make({tensor(5, odd ? torch::kFloat64 : torch::kFloat32)}, "w"); },
      {"'w', Float [5]", "'w', Double [5]"});
  expect_error<MismatchError>([&] { make({tensor(5, torch::kFloat32)}, odd ? "v" : "w"); },
                              {"'w'", "'v'"});
  expect_error<MismatchError>(
      [&] {
        std::vector<at::Tensor> parameters = make_parameters(2);
        if (odd) parameters.pop_back();
        make(parameters, "w");
      },
      {"number of parameters is 2 on rank 0", "is 1 on " + last()});
}

TEST_F(OptimizerOptionsTest, MistakeOnOneRank_IsAnErrorOnAll) {
  const auto tensor = torch::zeros({2}, torch::requires_grad());
  const auto with = [&](const std::function<void(Options&)>& change,
                        DistributedOptimizer::NamedParameters names = {}) {
    torch::optim::SGD inner({tensor}, 1.0);
    Options options;
    if (is_last()) {
      change(options);
    } else {
      names.clear();
    }
    DistributedOptimizer(inner, names, options);
  };
  const auto none = [](Options&) {};
  const std::string where = "on " + last() + ": ";
  expect_error<InvalidArgument>([&] { with([](auto& o) { o.op = ReduceOp::Max; }); },
                                {where, "not Max"});
  expect_error<InvalidArgument>([&] { with([&](auto& o) { o.groups = {{tensor}, {tensor}}; }); },
                                {where, "groups[1]", "in a group already"});
  expect_error<InvalidArgument>([&] { with([&](auto& o) { o.groups = {{tensor.clone()}}; }); },
                                {where, "groups[0]", "not a parameter of the optimizer"});
  expect_error<InvalidArgument>([&] { with(none, {{"x", tensor}, {"x", torch::zeros({1})}}); },
                                {where, "two parameters are named 'x'"});
  expect_error<InvalidArgument>([&] { with(none, {{"x", at::Tensor{}}}); }, {where, "'x'"});
  torch::optim::SGD sgd({tensor}, 1.0);
  torch::optim::LBFGS lbfgs({tensor}, 1.0);
  torch::optim::Optimizer& inner = is_last() ? static_cast<torch::optim::Optimizer&>(lbfgs) : sgd;
  expect_error<InvalidArgument>(
      [&] { DistributedOptimizer(inner, DistributedOptimizer::NamedParameters{}); },
      {where, "LBFGS"});
}

TEST_F(OptimizerOptionsTest, ASetThatMatchesByOrder_IsRefused) {
  ProcessSet& set = add_process_set(runtime_.world().ranks(), Matching::ByOrder);
  const auto tensor = torch::zeros({2}, torch::requires_grad());
  torch::optim::SGD inner({tensor}, 1.0);
  expect_error<InvalidArgument>(
      [&] {
        DistributedOptimizer(inner, DistributedOptimizer::NamedParameters{}, {.process_set = &set});
      },
      {"Matching::ByOrder", "matches them by name"});
  remove_process_set(set);
}

/// The parameters in each bucket of a step, identified by their sizes. The hook does not replace
/// the reduction.
std::vector<std::vector<std::int64_t>> buckets_of(DistributedOptimizer& optimizer,
                                                  const std::function<void()>& backward) {
  std::vector<std::vector<std::int64_t>> buckets;
  optimizer.register_bucket_hook([&](GradientBucket bucket) {
    if (buckets.size() <= bucket.index) buckets.resize(bucket.index + 1);
    for (const at::Tensor& parameter : bucket.parameters) {
      buckets[bucket.index].push_back(parameter.numel());
    }
    return std::optional(allreduce_async_(bucket.gradients, {.name = bucket.name}));
  });
  optimizer.zero_grad();
  backward();
  optimizer.step();
  optimizer.register_bucket_hook({});
  return buckets;
}

TEST_F(OptimizerOptionsTest, Group_IsABucket) {
  using Buckets = std::vector<std::vector<std::int64_t>>;
  const std::vector<at::Tensor> parameters = make_parameters(6);
  torch::optim::SGD inner(parameters, 0.0);
  const auto buckets_with = [&](Options options) {
    DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{}, options);
    Buckets buckets = buckets_of(optimizer, [&] { backward(parameters); });
    expect_means(parameters);
    for (std::vector<std::int64_t>& bucket : buckets) std::sort(bucket.begin(), bucket.end());
    std::sort(buckets.begin(), buckets.end());
    optimizer.zero_grad();
    return buckets;
  };
  Options options;
  options.bucket_bytes = 1;  // all others in their own buckets
  options.groups = {{parameters[5], parameters[0]}, {parameters[3]}};
  EXPECT_EQ(buckets_with(options), (Buckets{{1, 6}, {2}, {3}, {4}, {5}}));
}

TEST_F(OptimizerOptionsTest, Predivision_HappensWithAndWithoutGroups) {
  // 2^-100 divided by 2^100 is zero in float32; no later factor restores it.
  for (const bool has_groups : {false, true}) {
    for (const bool is_predivided : {false, true}) {
      const std::vector<at::Tensor> parameters = make_parameters(4);
      torch::optim::SGD inner(parameters, 1.0);
      Options options;
      if (has_groups) {
        options.groups = {{parameters[0], parameters[1]}, {parameters[2], parameters[3]}};
      }
      if (is_predivided) options.gradient_predivide_factor = std::ldexp(1.0, 100);
      DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{}, options);
      backward(parameters, std::ldexp(1.0, -100));
      optimizer.synchronize();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const double gradient = parameters[i].grad()[0].item<double>();
        EXPECT_NEAR(std::ldexp(gradient, 100), is_predivided ? 0.0 : mean(i), 1e-6) << i;
      }
    }
  }
}

TEST_F(OptimizerOptionsTest, Hooks_ReduceInTheirOwnWay) {
  const std::vector<at::Tensor> parameters = make_parameters(5);
  torch::optim::SGD inner(parameters, 0.0);
  Options options;
  options.groups = {{parameters[0], parameters[1]}, {parameters[2], parameters[3], parameters[4]}};
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{}, options);
  const auto expect_gradients = [&](BucketHook hook, const std::function<double(double)>& of_mean) {
    optimizer.register_bucket_hook(std::move(hook));
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      backward(parameters);
      optimizer.step();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_DOUBLE_EQ(parameters[i].grad()[0].item<double>(), of_mean(mean(i))) << i;
      }
    }
  };
  // In place, with a handle.
  expect_gradients(
      [](GradientBucket bucket) {
        return std::optional(allreduce_async_(bucket.gradients,
                                              {.op = ReduceOp::Sum, .name = bucket.name + ".sum"}));
      },
      [&](double mean) { return mean * size(); });
  // On a copy of another dtype, with a continuation.
  expect_gradients(
      [](GradientBucket bucket) {
        return std::optional(
            allreduce_async(bucket.gradients.to(torch::kBFloat16),
                            {.op = ReduceOp::Max, .name = bucket.name})
                .then([](const at::Tensor& result) { return result.to(torch::kFloat32) * 2; }));
      },
      [&](double mean) { return 2 * mean * 2 * size() / (size() + 1); });
  // Without communication.
  expect_gradients(
      [](GradientBucket bucket) -> std::optional<TensorHandle> {
        bucket.gradients.fill_(7);
        return std::nullopt;
      },
      [](double) { return 7.0; });
  expect_gradients({}, [](double mean) { return mean; });
}

TEST_F(OptimizerOptionsTest, HookThatReturnsAnotherSize_IsAnError) {
  const std::vector<at::Tensor> parameters = make_parameters(2);
  torch::optim::SGD inner(parameters, 1.0);
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{});
  optimizer.register_bucket_hook([](GradientBucket bucket) {
    return std::optional(allreduce_async(torch::zeros({1}), {.name = bucket.name}));
  });
  backward(parameters);
  expect_error<InvalidArgument>([&] { optimizer.step(); }, {"bucket hook", "returned 1 elements"});
  optimizer.register_bucket_hook({});
  optimizer.zero_grad();
  backward(parameters);
  optimizer.synchronize();
  expect_means(parameters);
}

TEST_F(OptimizerOptionsTest, Adasum_CombinesEachParameterByItself) {
  // Equal gradients are averaged, orthogonal ones are added.
  const at::Tensor alike = torch::zeros({4}, torch::dtype(torch::kFloat64).requires_grad(true));
  const at::Tensor apart = torch::zeros({4}, torch::dtype(torch::kFloat64).requires_grad(true));
  torch::optim::SGD inner({alike, apart}, 1.0);
  DistributedOptimizer optimizer(inner, DistributedOptimizer::NamedParameters{},
                                 {.op = ReduceOp::Adasum});
  const at::Tensor own = torch::zeros({4}, torch::kFloat64);
  own[rank()] = 3.0 + rank();
  at::Tensor sum = torch::zeros({4}, torch::kFloat64);
  for (int r = 0; r < size(); ++r) sum[r] = 3.0 + r;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    (alike * torch::arange(4) + apart * own).sum().backward();
    optimizer.synchronize();
    EXPECT_TRUE(torch::allclose(alike.grad(), torch::arange(4, torch::kFloat64))) << alike.grad();
    EXPECT_TRUE(torch::allclose(apart.grad(), sum)) << apart.grad();
    optimizer.step();
  }
}

}  // namespace kolo::test::optimizer_options_test
