// SyncBatchNorm computes the same on several ranks as BatchNorm on their concatenated batches.
#include "kolo/extras/sync_batch_norm.hpp"

#include <functional>
#include <sstream>
#include <string>

#include <torch/torch.h>

#include "extras/modules/joined_batches.hpp"
#include "kolo/collectives.hpp"
#include "kolo/process_set.hpp"
#include "kolo/torch/activation_checkpoint.hpp"
#include "kolo/torch/autocast.hpp"
#include "kolo/torch/tensor_collectives.hpp"

namespace kolo::test::sync_batch_norm_test {

using torch::nn::BatchNormOptions;

constexpr double kTolerance = 1e-6;

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

class SyncBatchNormTest : public TrainingTest {
 protected:
  template <class Norm>
  void check(const Shape& extents, const BatchNormOptions& options) {
    for (const Rows kind : {Rows::Even, Rows::Uneven, Rows::NoneOnTheLast}) {
      SCOPED_TRACE("rows " + std::to_string(static_cast<int>(kind)));
      Pair<Norm>(options, runtime_.world(), kind).run_steps(extents, 3);
    }
  }
};

TEST_F(SyncBatchNormTest, OfAnyRank_IsBatchNormOfAllRows) {
  check<torch::nn::BatchNorm1d>({5}, BatchNormOptions(5));
  check<torch::nn::BatchNorm1d>({3, 7}, BatchNormOptions(3).eps(1e-2).momentum(0.3));
  check<torch::nn::BatchNorm2d>({4, 3, 5}, BatchNormOptions(4));
  check<torch::nn::BatchNorm3d>({2, 3, 2, 3}, BatchNormOptions(2).momentum(1.0));
  check<torch::nn::BatchNorm1d>({1}, BatchNormOptions(1));
}

TEST_F(SyncBatchNormTest, Options_AreThoseOfBatchNorm) {
  check<torch::nn::BatchNorm1d>({3}, BatchNormOptions(3).affine(false));
  check<torch::nn::BatchNorm2d>({3, 2, 2}, BatchNormOptions(3).momentum(std::nullopt));
  check<torch::nn::BatchNorm1d>({3}, BatchNormOptions(3).track_running_stats(false));
  check<torch::nn::BatchNorm1d>({3}, BatchNormOptions(3).track_running_stats(false).affine(false));
}

TEST_F(SyncBatchNormTest, MeansFarFromZero_LoseNoDigits) {
  const JoinedBatch batch(runtime_.world(), Rows::Uneven);
  const at::Tensor all = random_batch(batch.count(), {3}, 1, at::kDouble) + 1e5;
  torch::nn::BatchNorm1d whole(BatchNormOptions(3).momentum(1.0));
  SyncBatchNorm synced(BatchNormOptions(3).momentum(1.0));
  whole->to(at::kDouble);
  synced->to(at::kDouble);
  expect_close(synced->forward(batch.own(all)), batch.own(whole->forward(all)), 1e-9, "output");
  expect_close(synced->running_var, whole->running_var, 1e-9, "running variance");
}

TEST_F(SyncBatchNormTest, StridedInput_IsLikeContiguous) {
  const JoinedBatch batch(runtime_.world(), Rows::Uneven);
  const at::Tensor all = random_batch(batch.count(), {4, 3, 5}, 3);
  const at::Tensor expected = batch.own(torch::nn::BatchNorm2d(4)->forward(all));
  const at::Tensor own = batch.own(all);
  const at::Tensor channels_last = own.contiguous(at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& input :
       {channels_last, own.transpose(2, 3).contiguous().transpose(2, 3)}) {
    at::Tensor leaf = input.detach().requires_grad_();
    const at::Tensor output = SyncBatchNorm(4)->forward(leaf);
    EXPECT_EQ(output.strides(), torch::nn::BatchNorm2d(4)->forward(input).strides());
    expect_close(output, expected, kTolerance, "output");
    output.square().sum().backward();
    EXPECT_LT(leaf.grad().abs().max().item<double>(),
              1e-3);  // the sum of squared outputs is constant
  }
}

TEST_F(SyncBatchNormTest, SixteenBits_AreNormalizedInFloat32) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    for (const at::ScalarType weights : {at::kFloat, type}) {
      SCOPED_TRACE(std::string(at::toString(type)) + " with " + at::toString(weights));
      const JoinedBatch batch(runtime_.world(), Rows::NoneOnTheLast);
      const at::Tensor all = random_batch(batch.count(), {3, 4}, 2, type).requires_grad_();
      const at::Tensor own = batch.own(all.detach()).clone().requires_grad_();
      torch::nn::BatchNorm1d whole(BatchNormOptions(3).momentum(1.0));
      SyncBatchNorm synced(BatchNormOptions(3).momentum(1.0));
      synced->to(weights);
      const at::Tensor wide = all.detach().to(at::kFloat).requires_grad_();
      const at::Tensor expected = whole->forward(wide);
      const at::Tensor output = synced->forward(own);
      const double rounding = type == at::kHalf ? 1.0 / 2048 : 1.0 / 256;
      expect_close(output, batch.own(expected).to(type), rounding, "output");
      const double of_statistics = weights == at::kFloat ? kTolerance : rounding;
      expect_close(synced->running_mean, whole->running_mean.to(weights), of_statistics, "mean");
      expect_close(synced->running_var, whole->running_var.to(weights), of_statistics, "variance");
      const at::Tensor factors = random_batch(batch.count(), {3, 4}, 9, type);
      expected.backward(factors.to(at::kFloat));
      output.backward(batch.own(factors));
      expect_close(own.grad(), batch.own(wide.grad()).to(type), rounding, "gradient");
      EXPECT_EQ(synced->weight.grad().scalar_type(), weights);
      expect_close(allreduce(synced->weight.grad().to(at::kFloat), {.op = ReduceOp::Sum}),
                   whole->weight.grad(), 4 * rounding, "gradient of weight");
    }
  }
}

TEST_F(SyncBatchNormTest, Autocast_ChangesOnlyTheInputsDtype) {
  torch::manual_seed(3);
  torch::nn::Linear linear(4, 3);
  SyncBatchNorm synced(BatchNormOptions(3).momentum(1.0));
  const at::Tensor input = random_batch(5, {4}, rank());
  at::Tensor output, hidden;
  {
    const Autocast autocast(at::kBFloat16);
    hidden = linear->forward(input);
    output = synced->forward(hidden);
  }
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  const at::Tensor all = allgather(hidden.detach().to(at::kFloat));
  expect_close(synced->running_mean, all.mean(0), kTolerance, "running mean");
  expect_close(synced->running_var, all.var(0), kTolerance, "running variance");
  output.square().sum().backward();
  EXPECT_EQ(linear->weight.grad().scalar_type(), at::kFloat);
}

TEST_F(SyncBatchNormTest, Evaluation_CommunicatesNothing) {
  SyncBatchNorm synced(3);
  SyncBatchNorm untracked(BatchNormOptions(3).track_running_stats(false));
  torch::nn::BatchNorm1d whole(3);
  const JoinedBatch batch(runtime_.world(), Rows::Uneven);
  const at::Tensor all = random_batch(batch.count(), {3}, 4);
  whole->forward(all);
  synced->forward(batch.own(all));
  whole->eval();
  synced->eval();
  if (is_last()) {
    const at::Tensor input = random_batch(1, {3}, 5).requires_grad_();
    const at::Tensor output = synced->forward(input);
    expect_close(output, whole->forward(input), kTolerance, "output");
    output.sum().backward();
    untracked->eval();  // statistics of this rank's rows, as in torch.nn.SyncBatchNorm
    expect_close(untracked->forward(all).mean(0), at::zeros({3}), 1e-5, "mean");
  }
  EXPECT_EQ(synced->num_batches_tracked.item<int>(), 1);
}

TEST_F(SyncBatchNormTest, ProcessSets_NormalizeAtOnceAndApart) {
  std::vector<int> members[2];
  for (int other = 0; other < size(); ++other) members[other % 2].push_back(other);
  std::vector<ProcessSet*> sets;
  for (const auto& ranks : members) {
    if (!ranks.empty()) sets.push_back(&runtime_.add_process_set(ranks));
  }
  ProcessSet& own = *sets[static_cast<std::size_t>(rank() % 2)];
  Pair<torch::nn::BatchNorm2d>(BatchNormOptions(3), own, Rows::Uneven).run_steps({3, 2, 2}, 4);
  if (sets.size() < 2) GTEST_SKIP() << "the rest: one rank has one set";
  ProcessSet& foreign = *sets[static_cast<std::size_t>((rank() + 1) % 2)];
  expect_contains(
      text_thrown_by<InvalidArgument>([&] { SyncBatchNorm(BatchNormOptions(3), &foreign); }),
      "is not a member of process set");
}

TEST_F(SyncBatchNormTest, RanksThatHaveJoined_AreLeftOut) {
  SyncBatchNorm synced(BatchNormOptions(3).momentum(1.0));
  const JoinedBatch batch(runtime_.world(), Rows::NoneOnTheLast);
  if (is_last() && size() > 1) {
    join();
    return;
  }
  const at::Tensor all = random_batch(batch.count(), {3}, 6).requires_grad_();
  const at::Tensor own = batch.own(all.detach()).clone().requires_grad_();
  const at::Tensor factors = random_batch(batch.count(), {3}, 7);
  torch::nn::BatchNorm1d whole(BatchNormOptions(3).momentum(1.0));
  const at::Tensor expected = whole->forward(all);
  const at::Tensor output = synced->forward(own);
  expect_close(output, batch.own(expected), kTolerance, "output");
  expect_close(synced->running_var, whole->running_var, kTolerance, "running variance");
  expected.backward(factors);
  output.backward(batch.own(factors));
  expect_close(own.grad(), batch.own(all.grad()), kTolerance, "gradient");
  join();
}

TEST_F(SyncBatchNormTest, NoRowsAnywhere_LeaveStatisticsAlone) {
  SyncBatchNorm synced(3);
  const at::Tensor input = at::empty({0, 3, 2}).requires_grad_();
  const at::Tensor output = synced->forward(input);
  EXPECT_EQ(output.sizes(), input.sizes());
  output.sum().backward();
  EXPECT_TRUE(at::equal(synced->weight.grad(), at::zeros({3})));
  EXPECT_TRUE(at::equal(synced->running_var, at::ones({3})));
  EXPECT_EQ(synced->num_batches_tracked.item<int>(), 1);  // as with BatchNorm
}

TEST_F(SyncBatchNormTest, SeveralCallsBeforeBackward_KeepTheirBatches) {
  const JoinedBatch batch(runtime_.world(), Rows::Uneven);
  torch::nn::BatchNorm1d whole(3);
  SyncBatchNorm synced(3);
  const at::Tensor all = random_batch(batch.count(), {3}, 8).requires_grad_();
  const at::Tensor own = batch.own(all.detach()).clone().requires_grad_();
  const at::Tensor factors = random_batch(batch.count(), {3}, 9);
  const auto twice = [](auto& norm, const at::Tensor& input, const at::Tensor& weights) {
    const at::Tensor first = norm->forward(input);
    const at::Tensor loss = (norm->forward(torch::tanh(first) * weights) * first * weights).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_THROW(loss.backward(), c10::Error);
  };
  twice(whole, all, factors);
  twice(synced, own, batch.own(factors));
  expect_close(own.grad(), batch.own(all.grad()), 1e-5, "gradient");
  expect_close(synced->running_mean, whole->running_mean, kTolerance, "running mean");
}

TEST_F(SyncBatchNormTest, ActivationCheckpoints_GiveTheSameGradients) {
  const at::Tensor input = random_batch(3 + rank(), {3}, rank()).requires_grad_();
  const auto gradient = [&](bool is_checkpointed) {
    SyncBatchNorm synced(3);
    const auto block = [&](const at::Tensor& x) { return torch::tanh(synced->forward(x)); };
    const at::Tensor output = is_checkpointed ? checkpoint(block, input) : block(input);
    return torch::autograd::grad({(output * input).sum()}, {input})[0];
  };
  expect_close(gradient(true), gradient(false), 0.0, "gradient");
}

TEST_F(SyncBatchNormTest, InputWithoutGradient_CostsNothingInBackward) {
  SyncBatchNorm synced(3);
  const at::Tensor output = synced->forward(random_batch(3, {3}, rank()));
  if (is_last()) output.sum().backward();  // no other rank runs backward()
  EXPECT_EQ(synced->bias.grad().defined(), is_last());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(synced->forward(random_batch(3, {3}, rank())).requires_grad());
}

TEST_F(SyncBatchNormTest, Results_HaveTheSameBitsOnAllRanks) {
  SyncBatchNorm synced(7);
  for (int step = 0; step < 5; ++step) {
    synced->forward(random_batch(3 + 2 * rank(), {7, 5}, 10 * step + rank()));
  }
  for (const at::Tensor& buffer : {synced->running_mean, synced->running_var}) {
    EXPECT_TRUE(at::equal(allreduce(buffer, {.op = ReduceOp::Max}),
                          allreduce(buffer, {.op = ReduceOp::Min})));
  }
}

TEST_F(SyncBatchNormTest, Files_FitBatchNorm) {
  SyncBatchNorm synced(3);
  synced->forward(random_batch(4, {3}, rank()));
  std::stringstream file;
  torch::save(synced, file);
  torch::nn::BatchNorm1d loaded(3);
  torch::load(loaded, file);
  EXPECT_TRUE(at::equal(loaded->running_var, synced->running_var));
  std::stringstream other;
  torch::save(loaded, other);
  SyncBatchNorm back(3);
  torch::load(back, other);
  EXPECT_TRUE(at::equal(back->running_mean, synced->running_mean));
  EXPECT_EQ(back->num_batches_tracked.item<int>(), 1);

  const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(synced->clone());
  EXPECT_TRUE(at::equal(copy->running_mean, synced->running_mean));
  copy->forward(random_batch(4, {3}, rank()));
  EXPECT_EQ(copy->num_batches_tracked.item<int>(), 2);
  EXPECT_EQ(synced->num_batches_tracked.item<int>(), 1);
  std::stringstream text;
  text << SyncBatchNorm(BatchNormOptions(3).momentum(std::nullopt));
  EXPECT_EQ(text.str(),
            "kolo::SyncBatchNorm(3, eps=1e-05, momentum=None, affine=true, "
            "track_running_stats=true)");
}

}  // namespace kolo::test::sync_batch_norm_test
