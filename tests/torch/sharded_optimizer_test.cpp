// What a sharded optimizer does besides training as an ordinary one: parameters of all kinds, what
// each rank keeps, what becomes of gradients, and what it refuses.
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "torch/sharding.hpp"

namespace kolo::test::sharded_optimizer_test {

constexpr std::int64_t kWidth = 9;

constexpr double kMaxNorm = 0.01;  // below all norms here

struct Clipped {
  std::vector<double> norms;  ///< before clipping, of each step
  at::Tensor parameters;
};

Clipped clip_alone(int ranks, double p) {
  torch::nn::Sequential model = make_mlp(torch::kFloat64);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Clipped result;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor rows = batch_rows(step, rank, 2, kWidth, torch::kFloat64);
      (loss_of(model, rows) / ranks).backward();
    }
    result.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), kMaxNorm, p));
    optimizer.step();
  }
  result.parameters = flat(*model);
  return result;
}

Clipped clip(Runtime& runtime, double p, Shard shard, ShardScope scope) {
  DistributedOptimizer::Options options = with(shard);
  options.shard_scope = scope;
  torch::nn::Sequential model = make_mlp(torch::kFloat64);
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, options);
  Clipped result;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss_of(model, batch_rows(step, runtime.rank(), 2, kWidth, torch::kFloat64)).backward();
    result.norms.push_back(optimizer.clip_grad_norm_(kMaxNorm, p));
    optimizer.step();
  }
  result.parameters = flat(*model);
  return result;
}

TEST_F(ShardedOptimizerTest, ClipReturnsTheNormBefore) {
  for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    const Clipped alone = clip_alone(runtime_.size(), p);
    for (const auto& [shard, scope] : {std::pair{Shard::None, ShardScope::World},
                                       {Shard::Optimizer, ShardScope::World},
                                       {Shard::Gradients, ShardScope::World},
                                       {Shard::Optimizer, ShardScope::Node}}) {
      const Clipped clipped = clip(runtime_, p, shard, scope);
      for (std::size_t step = 0; step < alone.norms.size(); ++step) {
        EXPECT_GT(alone.norms[step], 2 * kMaxNorm) << p;
        EXPECT_NEAR(clipped.norms[step], alone.norms[step], 1e-12) << p;
      }
      EXPECT_LT(largest_difference(clipped.parameters, alone.parameters), 1e-12) << p;
    }
  }
}

/// Parameters of all kinds: in two groups with other options, of two types, frozen, tied, smaller
/// than the number of ranks, without elements, and used on some steps or some ranks only.
struct Zoo : torch::nn::Module {
  Zoo() {
    torch::manual_seed(5);
    tied = register_parameter("tied", torch::randn({7, 7}));
    frozen = register_parameter("frozen", torch::randn({7}), false);
    tiny = register_parameter("tiny", torch::randn({1}));
    empty = register_parameter("empty", torch::zeros({0, 3}));
    wide = register_parameter("wide", torch::randn({5, 7}).to(torch::kFloat64));
    sometimes = register_parameter("sometimes", torch::randn({33}));
    on_one_rank = register_parameter("on_one_rank", torch::randn({17}));
    never = register_parameter("never", torch::randn({3}));
  }
  at::Tensor forward(const at::Tensor& rows, int step, int rank) {
    at::Tensor x = torch::tanh(rows.matmul(tied) + frozen).matmul(tied) * tiny;
    at::Tensor loss = x.to(torch::kFloat64).matmul(wide.t()).pow(2).mean();
    if (step % 3 == 1) loss = loss + (sometimes * sometimes).sum() * (rank + 1);
    if (rank == step % 2) loss = loss + on_one_rank.pow(3).sum();
    return loss;
  }
  at::Tensor tied, frozen, tiny, empty, wide, sometimes, on_one_rank, never;
};

std::unique_ptr<Optimizer> make_zoo_optimizer(Zoo& zoo) {
  using namespace torch::optim;
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(Parameters{zoo.tied, zoo.frozen, zoo.tiny, zoo.never},
                      std::make_unique<AdamWOptions>(AdamWOptions(1e-2).weight_decay(0.1)));
  groups.emplace_back(Parameters{zoo.empty, zoo.wide, zoo.sometimes, zoo.on_one_rank},
                      std::make_unique<AdamWOptions>(AdamWOptions(3e-3).weight_decay(0.5)));
  return std::make_unique<AdamW>(std::move(groups), AdamWOptions(1.0));
}

std::vector<at::Tensor> train_zoo(Runtime& runtime, Shard shard) {
  Zoo zoo;
  const auto inner = make_zoo_optimizer(zoo);
  DistributedOptimizer optimizer(*inner, zoo, with(shard));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const at::Tensor rows = batch_rows(step, 3 * runtime.rank(), 3, 7, torch::kFloat32);
    zoo.forward(rows, step, runtime.rank()).backward();
    optimizer.step();
    if (step == 9) inner->param_groups()[1].options().set_lr(1e-3);
  }
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : zoo.parameters()) {
    parameters.push_back(parameter.detach().clone());
  }
  return parameters;
}

TEST_F(ShardedOptimizerTest, TrainsParametersOfAllKinds) {
  const std::vector<at::Tensor> whole = train_zoo(runtime_, Shard::None);
  const Zoo untouched;
  const auto names = untouched.named_parameters();
  for (const Shard mode : kModes) {
    const std::vector<at::Tensor> sharded = train_zoo(runtime_, mode);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      if (whole[i].numel() == 0) continue;
      expect_alike(sharded[i], whole[i], names[i].key().c_str());
    }
    EXPECT_TRUE(torch::equal(sharded[7], untouched.never));  // weight decay must leave it alone
  }
}

TEST_F(ShardedOptimizerTest, ViewsAndCopiesOfAParameterFollowIt) {
  for (const Shard mode : kModes) {
    torch::manual_seed(3);
    torch::nn::Linear model(6, 5);
    const torch::nn::Linear copied_model = model;  // as all of LibTorch's copies, not deep
    const at::Tensor copy = model->weight;
    const at::Tensor detached = model->weight.detach();
    const at::Tensor view = detached.t();
    const at::Tensor row = detached[3];
    const at::Tensor start = detached.clone();
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(mode));
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      (model->forward(torch::ones({2, 6})).sum() * (runtime_.rank() + 1)).backward();
      optimizer.step();
    }
    // The gradient of every element is 2 (rank + 1), n + 1 on average.
    const at::Tensor expected = start - 2 * 0.1 * (runtime_.size() + 1);
    EXPECT_LT(largest_difference(model->weight.detach(), expected), 1e-6);
    EXPECT_TRUE(torch::equal(copied_model->weight, model->weight));
    EXPECT_TRUE(torch::equal(copy, model->weight));
    EXPECT_TRUE(torch::equal(detached, model->weight.detach()));
    EXPECT_TRUE(torch::equal(view, model->weight.detach().t()));
    EXPECT_TRUE(torch::equal(row, model->weight.detach()[3]));
  }
}

TEST_F(ShardedOptimizerTest, ParametersThatComeLaterAreDividedToo) {
  const auto run = [&](Shard shard) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::nn::Sequential head = make_mlp(torch::kFloat32, 3, 1);
    torch::optim::Adam inner(model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
    DistributedOptimizer optimizer(inner, *model, with(shard));
    for (int step = 0; step < 8; ++step) {
      if (step == 4) {
        optimizer.add_param_group(torch::optim::OptimizerParamGroup(head->parameters()));
      }
      optimizer.zero_grad();
      const at::Tensor rows = batch_rows(step, runtime_.rank() * 3, 3, kWidth, torch::kFloat32);
      at::Tensor out = model->forward(rows);
      if (step >= 4) out = head->forward(out);
      out.pow(2).sum().backward();
      optimizer.step();
    }
    return torch::cat({flat(*model), flat(*head)});
  };
  const at::Tensor whole = run(Shard::None);
  for (const Shard mode : kModes) expect_alike(run(mode), whole);
}

/// Elements in tensors that the optimizer keeps.
std::int64_t state_elements(Optimizer& optimizer) {
  std::int64_t count = 0;
  for (const auto& [key, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
    count += adam.exp_avg().numel() + adam.exp_avg_sq().numel();
  }
  return count;
}

TEST_F(ShardedOptimizerTest, EachRankKeepsItsPartOfTheState) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32, 64, 3);
  const std::int64_t elements = flat(*model).numel();
  torch::optim::Adam inner(model->parameters(), 1e-3);
  inner.zero_grad();
  loss_of(model, batch_rows(0, 0, 4, 64, torch::kFloat32)).backward();
  inner.step();
  ASSERT_EQ(state_elements(inner), 2 * elements);

  DistributedOptimizer optimizer(inner, *model, {.shard = Shard::Optimizer});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    loss_of(model, batch_rows(step, 0, 4, 64, torch::kFloat32)).backward();
    optimizer.step();
  }
  const std::int64_t own = state_elements(inner);
  EXPECT_LE(own, 2 * elements / runtime_.size() + 2 * 16 * 20);
  at::Tensor sum = torch::full({1}, own, torch::kLong);
  EXPECT_EQ(allreduce(sum, {.op = ReduceOp::Sum}).item<std::int64_t>(), 2 * elements);
}

TEST_F(ShardedOptimizerTest, LeavesNoStateBehind) {
  for (const Shard mode : kModes) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::Adam inner(model->parameters(), 1e-3);
    for (int wrapping = 0; wrapping < 3; ++wrapping) {
      DistributedOptimizer optimizer(inner, *model, with(mode));
      loss_of(model, batch_rows(0, 0, 4, kWidth, torch::kFloat32)).backward();
      optimizer.step();
      for (const auto& [key, state] : inner.state()) {
        const auto& adam = static_cast<const torch::optim::AdamParamState&>(*state);
        const bool is_guard = adam.exp_avg().numel() == 0;
        EXPECT_EQ(adam.step(), is_guard ? 0 : 1);
      }
    }
    EXPECT_TRUE(inner.state().empty());
  }
}

TEST_F(ShardedOptimizerTest, GradientsAreNoLongerThereAfterTheirReduction) {
  for (const Shard mode : kModes) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::SGD inner(model->parameters(), 0.1);
    DistributedOptimizer optimizer(inner, *model, with(mode));
    for (int step = 0; step < 2; ++step) {
      loss_of(model, batch_rows(step, 0, 4, kWidth, torch::kFloat32)).backward();
      optimizer.synchronize();
      for (const at::Tensor& parameter : model->parameters()) {
        EXPECT_FALSE(parameter.grad().defined());
      }
      EXPECT_EQ(torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0), 0.0);
      EXPECT_GT(optimizer.clip_grad_norm_(1.0), 0.0);
      // A second backward() would be lost: it is an error.
      const at::Tensor loss = loss_of(model, batch_rows(step, 0, 4, kWidth, torch::kFloat32));
      EXPECT_THROW(loss.backward(), InvalidArgument);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
}

/// Gradients that the parameters still have at the end of a backward() of the third step.
int gradients_after_backward(Shard mode) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::optim::SGD inner(model->parameters(), 0.1);
  DistributedOptimizer optimizer(inner, *model, with(mode));
  int count = 0;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    loss_of(model, batch_rows(step, 0, 4, kWidth, torch::kFloat32)).backward();
    count = 0;
    for (const at::Tensor& parameter : model->parameters()) count += parameter.grad().defined();
    optimizer.step();
  }
  return count;
}

TEST_F(ShardedOptimizerTest, ShardedGradientsEndWithTheirBucketsSubmission) {
  EXPECT_EQ(gradients_after_backward(Shard::Optimizer), 10);
  EXPECT_EQ(gradients_after_backward(Shard::Gradients), 0);
}

TEST_F(ShardedOptimizerTest, DroppedGradientsDoNotCount) {
  const auto run = [&](bool drops, Shard mode) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::Adam inner(model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
    DistributedOptimizer optimizer(inner, *model, with(mode));
    for (int step = 0; step < 6; ++step) {
      const std::int64_t first = runtime_.rank() * 3;
      optimizer.zero_grad();
      if (drops && step == 3) {
        loss_of(model, batch_rows(77, first, 3, kWidth, torch::kFloat32)).backward();
        optimizer.zero_grad();
      }
      loss_of(model, batch_rows(step, first, 3, kWidth, torch::kFloat32)).backward();
      optimizer.step();
    }
    return flat(*model);
  };
  for (const Shard mode : kModes) EXPECT_TRUE(torch::equal(run(true, mode), run(false, mode)));
}

TEST_F(ShardedOptimizerTest, WhatItCannotDoIsRefusedOnAllRanks) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::optim::SGD inner(model->parameters(), 0.1);
  const auto expect_refusal = [&](const std::function<void()>& call, const std::string& text) {
    try {
      call();
      ADD_FAILURE() << "no error: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  expect_refusal(
      [&] {
        DistributedOptimizer::Options options = with(Shard::Optimizer);
        options.op = ReduceOp::Adasum;
        const DistributedOptimizer optimizer(inner, *model, options);
      },
      "op Adasum needs whole gradients");
  expect_refusal(
      [&] {
        DistributedOptimizer::Options options = with(Shard::Optimizer);
        options.accumulation = Accumulation::Reduced;
        const DistributedOptimizer optimizer(inner, *model, options);
      },
      "accumulation = Reduced requires shard = gradients");
  torch::nn::Linear transposed(4, 4);
  if (runtime_.rank() == 0) transposed->weight.set_data(transposed->weight.detach().t());
  torch::optim::SGD of_transposed(transposed->parameters(), 0.1);
  expect_refusal(
      [&] {
        const DistributedOptimizer optimizer(of_transposed, *transposed, with(Shard::Optimizer));
      },
      "parameter 'weight': it is not contiguous in a storage of its own");
  torch::nn::Linear tied(4, 4);
  const at::Tensor alias = tied->weight.detach().view({16}).requires_grad_();
  torch::optim::SGD of_tied({tied->weight, alias}, 0.1);
  expect_refusal(
      [&] { const DistributedOptimizer optimizer(of_tied, *tied, with(Shard::Optimizer)); },
      "shares its storage with parameter 'weight'");
  OwnOptimizer with_state(model->parameters());
  with_state.state()[model->parameters()[0].unsafeGetTensorImpl()] = std::make_unique<OwnState>();
  expect_refusal(
      [&] { const DistributedOptimizer optimizer(with_state, *model, with(Shard::Optimizer)); },
      "has state that cannot be read or sharded");
  if (runtime_.size() > 1) {
    EXPECT_THROW(DistributedOptimizer(inner, *model,
                                      with(runtime_.rank() == 0 ? Shard::None : Shard::Optimizer)),
                 MismatchError);
  }
  DistributedOptimizer optimizer(inner, *model, with(Shard::Optimizer));
  expect_refusal([&] { optimizer.register_bucket_hook({}); }, "register_bucket_hook()");
  torch::optim::SGD with_twins({model->parameters()[0], model->parameters()[0]}, 0.1);
  expect_refusal(
      [&] { const DistributedOptimizer twice(with_twins, *model, with(Shard::Optimizer)); },
      "parameter 1 of the optimizer is in it twice");
  {
    const auto guard = optimizer.skip_synchronize();
    expect_refusal([&] { optimizer.step(); }, "step() under skip_synchronize()");
  }
  expect_refusal([&] { optimizer.clip_grad_norm_(1.0, 0.0); }, "norm_type 0");
}

/// What rank r of `ranks` has to train on, in its own number of steps: with clipping, a rate that a
/// scheduler changes, and a batch that the program gives up.
at::Tensor train_unevenly(Runtime& runtime, Shard shard) {
  torch::nn::Sequential model = make_mlp(torch::kFloat32);
  torch::optim::AdamW inner(model->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4));
  DistributedOptimizer optimizer(inner, *model, with(shard));
  for (int epoch = 0; epoch < 2; ++epoch) {
    const int steps = 2 + (runtime.rank() + epoch) % runtime.size();
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      loss_of(model, batch_rows(step, runtime.rank() * 3, 3, kWidth, torch::kFloat32)).backward();
      if (step == 1) {
        optimizer.zero_grad();
        loss_of(model, batch_rows(9, runtime.rank() * 3, 3, kWidth, torch::kFloat32)).backward();
        optimizer.synchronize();
        optimizer.zero_grad();
        loss_of(model, batch_rows(8, runtime.rank() * 3, 3, kWidth, torch::kFloat32)).backward();
      }
      if (step != 2) optimizer.clip_grad_norm_(0.05);
      inner.param_groups()[0].options().set_lr(1e-2 / (step + 1));
      optimizer.step();
    }
    EXPECT_EQ(optimizer.join(), runtime.size() - 1 - epoch % runtime.size());
    inner.param_groups()[0].options().set_lr(5e-3);
  }
  return flat(*model);
}

TEST_F(ShardedOptimizerTest, RanksThatHaveJoinedUpdateTheirPart) {
  const at::Tensor whole = train_unevenly(runtime_, Shard::None);
  for (const Shard mode : kModes) {
    const at::Tensor sharded = train_unevenly(runtime_, mode);
    EXPECT_LT(largest_difference(sharded, whole), 1e-5);
    expect_equal_on_all_ranks(sharded);
  }
}

TEST_F(ShardedOptimizerTest, NodesKeepAllPartsEach) {
  const auto run = [&](Shard shard, ShardScope scope) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    torch::optim::Adam inner(model->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
    DistributedOptimizer::Options options = with(shard);
    options.shard_scope = scope;
    DistributedOptimizer optimizer(inner, *model, options);
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      loss_of(model, batch_rows(step, runtime_.rank() * 3, 3, kWidth, torch::kFloat32)).backward();
      EXPECT_GT(optimizer.clip_grad_norm_(1e6), 0.0);
      optimizer.step();
    }
    if (shard != Shard::None) {
      const int sharers = scope == ShardScope::Node ? runtime_.local_size() : runtime_.size();
      at::Tensor kept = torch::full({1}, state_elements(inner), torch::kLong);
      EXPECT_EQ(allreduce(kept, {.op = ReduceOp::Sum}).item<std::int64_t>(),
                2 * flat(*model).numel() * runtime_.size() / sharers);
    }
    optimizer.join();
    return flat(*model);
  };
  const at::Tensor whole = run(Shard::None, ShardScope::World);
  for (const Shard mode : kModes) {
    const at::Tensor sharded = run(mode, ShardScope::Node);
    expect_alike(sharded, whole);
    expect_equal_on_all_ranks(sharded);
  }
}

TEST_F(ShardedOptimizerTest, PassesAreReducedOneByOne) {
  constexpr int kPasses = 3;
  const auto run = [&](Shard shard, Accumulation accumulation) {
    Zoo zoo;
    torch::optim::SGD inner(zoo.parameters(), torch::optim::SGDOptions(1e-2).momentum(0.5));
    DistributedOptimizer::Options options = with(shard);
    options.backward_passes_per_step = kPasses;
    options.accumulation = accumulation;
    DistributedOptimizer optimizer(inner, zoo, options);
    for (int step = 0; step < 8; ++step) {
      optimizer.zero_grad();
      // The last step has fewer passes, and unused parameters keep buckets from being complete.
      for (int pass = 0; pass < (step == 7 ? 2 : kPasses); ++pass) {
        const std::int64_t first = 3 * (runtime_.rank() * kPasses + pass);
        zoo.forward(batch_rows(step, first, 3, 7, torch::kFloat32), step + pass, runtime_.rank())
            .backward();
      }
      if (step == 4) {  // another try
        optimizer.zero_grad();
        zoo.forward(batch_rows(77, runtime_.rank(), 3, 7, torch::kFloat32), 1, runtime_.rank())
            .backward();
      }
      optimizer.step();
    }
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : zoo.parameters()) {
      parameters.push_back(parameter.detach().clone());
    }
    return parameters;
  };
  const std::vector<at::Tensor> whole = run(Shard::None, Accumulation::Local);
  const std::vector<at::Tensor> reduced = run(Shard::Gradients, Accumulation::Reduced);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].numel() == 0) continue;
    EXPECT_LT(largest_difference(reduced[i], whole[i]), 1e-5) << i;
  }
}

/// An optimizer that fails on one rank.
class FailingOptimizer final : public torch::optim::SGD {
 public:
  using SGD::SGD;
  bool fails = false;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (fails) throw std::runtime_error("no step today");
    return SGD::step(std::move(closure));
  }
};

TEST_F(ShardedOptimizerTest, AStepThatFailsOnOneRankDoesNotHoldTheOthers) {
  constexpr int kFailing = 2;
  /// The parameters after each of four steps, of which rank 0 may fail one.
  const auto run = [&](Shard mode, bool is_to_fail) {
    torch::nn::Sequential model = make_mlp(torch::kFloat32);
    FailingOptimizer inner(model->parameters(), torch::optim::SGDOptions(0.1));
    DistributedOptimizer::Options options = with(mode);
    options.bucket_bytes = std::size_t{1} << 20;  // one
    DistributedOptimizer optimizer(inner, *model, options);
    std::vector<at::Tensor> after;
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      loss_of(model, batch_rows(step, 0, 4, kWidth, torch::kFloat32)).backward();
      inner.fails = is_to_fail && step == kFailing && runtime_.rank() == 0;
      if (inner.fails) {
        EXPECT_EQ(text_thrown_by<std::runtime_error>([&] { optimizer.step(); }), "no step today");
      } else {
        optimizer.step();
      }
      after.push_back(flat(*model).clone());
      expect_equal_on_all_ranks(after.back());
    }
    return after;
  };
  for (const Shard mode : kModes) {
    const std::vector<at::Tensor> failed = run(mode, true);
    const std::vector<at::Tensor> whole = run(mode, false);
    EXPECT_TRUE(torch::equal(failed[kFailing - 1], whole[kFailing - 1]));
    // Rank 0's part stays as it was, all others' take the step.
    const at::Tensor stays = failed[kFailing] == failed[kFailing - 1];
    const at::Tensor steps = failed[kFailing] == whole[kFailing];
    EXPECT_TRUE(stays.logical_xor(steps).all().item<bool>());
    EXPECT_NEAR(stays.sum().item<double>(), static_cast<double>(stays.numel()) / runtime_.size(),
                32.0);  // for padding
    EXPECT_TRUE((failed[kFailing + 1] != failed[kFailing]).all().item<bool>());
  }
}

}  // namespace kolo::test::sharded_optimizer_test
