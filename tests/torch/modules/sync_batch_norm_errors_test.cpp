// A mistake of one rank is an error on all ranks that use the module, and Kolo works afterwards.
#include <chrono>
#include <string>

#include "kolo/sync_batch_norm.hpp"
#include "torch/modules/joined_batches.hpp"

namespace kolo::test::sync_batch_norm_errors_test {

class SyncBatchNormErrorsTest : public TorchTest {
 protected:
  /// All ranks get the error of `wrong` on the last one, and nothing has changed.
  void expect_refused_input(const at::Tensor& wrong, const std::string& text) {
    SyncBatchNorm synced(3);
    const at::Tensor good = random_batch(4, {3, 2}, rank());
    expect_refused([&] { synced->forward(is_last() ? wrong : good); }, text);
    EXPECT_EQ(synced->num_batches_tracked.item<int>(), 0);
    EXPECT_TRUE(at::equal(synced->running_var, at::ones({3})));
    synced->forward(good);
    EXPECT_EQ(synced->num_batches_tracked.item<int>(), 1);
  }
};

TEST_F(SyncBatchNormErrorsTest, InputsThatDoNotFit_AreRefusedOnAllRanks) {
  const std::string last = "rank " + std::to_string(size() - 1) + ": SyncBatchNorm of 3 channels: ";
  expect_refused_input(at::ones({4, 5}),
                       last + "the input has shape [4, 5]. It must be [N, 3, ...]");
  expect_refused_input(at::ones({3}), last + "the input has shape [3]");
  expect_refused_input(at::Tensor(), last + "the input is undefined");
  expect_refused_input(at::ones({4, 3}, at::kLong), last + "the input is CPULongType");
  expect_refused_input(at::ones({4, 3}).to_sparse(), last + "the input is SparseCPUFloatType");
  expect_refused_input(at::ones({4, 3}, at::kDouble),
                       last + "the input is Double on cpu, the module's tensors are Float on cpu");
  expect_refused_input(at::ones({4, 3}, at::kMeta), last + "the input is Float on meta");
  if (is_last()) {
    SyncBatchNorm evaluated(3);
    evaluated->eval();
    expect_contains(text_thrown_by<InvalidArgument>([&] { evaluated->forward(at::ones({4, 5})); }),
                    "must be [N, 3, ...]");
  }
}

TEST_F(SyncBatchNormErrorsTest, OneValuePerChannelOnAllRanks_IsAnError) {
  SyncBatchNorm synced(3);
  const at::Tensor own = random_batch(is_last() ? 1 : 0, {3}, 1);
  expect_refused([&] { synced->forward(own); }, "expected more than 1 value per channel");
  EXPECT_EQ(synced->num_batches_tracked.item<int>(), 0);
  if (size() == 1) return;
  synced->forward(random_batch(1, {3}, rank()));  // which each rank alone could not
  EXPECT_EQ(synced->num_batches_tracked.item<int>(), 1);
}

TEST_F(SyncBatchNormErrorsTest, ModulesOfDifferentSizes_AreAMismatch) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  SyncBatchNorm synced(is_last() ? 4 : 3);
  expect_refused<MismatchError>(
      [&] { synced->forward(random_batch(4, {is_last() ? 4 : 3}, rank())); }, "shape");
}

TEST_F(SyncBatchNormErrorsTest, GradientsOfGradients_AreRefused) {
  SyncBatchNorm synced(3);
  const at::Tensor input = random_batch(4, {3}, rank()).requires_grad_();
  const at::Tensor loss = synced->forward(input).pow(3).sum();
  const auto differentiate = [&](bool creates_graph) {
    return torch::autograd::grad({loss}, {input}, {}, /*retain_graph=*/true, creates_graph);
  };
  expect_refused([&] { differentiate(is_last()); }, "gradients of gradients");
  const at::Tensor of_weight = synced->forward(input.detach()).pow(3).sum();
  expect_refused([&] { torch::autograd::grad({of_weight}, {synced->weight}, {}, true, true); },
                 "gradients of gradients");
  EXPECT_EQ(differentiate(false)[0].sizes(), input.sizes());
}

TEST_F(SyncBatchNormErrorsTest, ChangedInput_IsAnErrorInBackward) {
  SyncBatchNorm synced(3);
  at::Tensor input = random_batch(4, {3}, rank()).requires_grad_() * 2;
  const at::Tensor output = synced->forward(input);
  input.add_(1);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

/// With a deadline that a test can await.
class LateSyncBatchNormTest : public testing::Test {
 protected:
  static Config config() {
    Config config = config_from_environment();
    config.timeout = std::chrono::milliseconds(400);
    return config;
  }
  bool is_last() const { return runtime_.rank() == runtime_.size() - 1; }
  std::string last() const { return "rank(s) " + std::to_string(runtime_.size() - 1); }

  Runtime runtime_{in_test_world(config())};
};

TEST_F(LateSyncBatchNormTest, RankThatSkipsACall_IsNamedAtTheDeadline) {
  if (runtime_.size() == 1) GTEST_SKIP() << "one rank waits for none";
  SyncBatchNorm synced(3);
  const at::Tensor input = random_batch(4, {3}, runtime_.rank()).requires_grad_();
  if (!is_last()) {
    const std::string text = text_thrown_by<TimeoutError>([&] { synced->forward(input); });
    expect_contains(text, "sync_batch_norm");
    expect_contains(text, std::to_string(runtime_.size() - 1));
  } else {
    EXPECT_THROW(synced->forward(input), TimeoutError);  // it comes when the others have given up
  }
  const at::Tensor output = synced->forward(input);
  if (!is_last()) {
    expect_contains(text_thrown_by<TimeoutError>([&] { output.sum().backward(); }), ".gradient");
  } else {
    EXPECT_THROW(output.sum().backward(), TimeoutError);
  }
}

}  // namespace kolo::test::sync_batch_norm_errors_test
