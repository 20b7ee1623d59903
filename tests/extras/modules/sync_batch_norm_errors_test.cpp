// A mistake on one rank is an error on all ranks that use the module, and Kolo works afterwards.
#include <chrono>
#include <string>
#include <thread>

#include "extras/modules/joined_batches.hpp"
#include "kolo/extras/sync_batch_norm.hpp"

namespace kolo::test::sync_batch_norm_errors_test {

class SyncBatchNormErrorsTest : public TrainingTest {
 protected:
  /// Expects that `wrong` on the last rank is an error on all ranks and changes nothing.
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
  if (size() == 1) GTEST_SKIP() << "the rest: two rows need two ranks";
  synced->forward(random_batch(1, {3}, rank()));  // one row per rank is enough
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

/// With a deadline short enough to wait for.
class LateSyncBatchNormTest : public testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kDeadline{1000};
  static Config config() {
    Config config = config_from_environment();
    config.timeout = kDeadline;
    return config;
  }
  bool is_last() const { return runtime_.rank() == runtime_.size() - 1; }
  /// The last rank calls after the others have timed out, and fails in the same way.
  template <class Call>
  void expect_timeout(const Call& call, const std::string& name) {
    barrier({.timeout = std::chrono::minutes(1)});  // the others start together
    if (is_last()) std::this_thread::sleep_for(2 * kDeadline);
    const std::string text = text_thrown_by<TimeoutError>(call);
    expect_contains(text, name);
    expect_contains(text, "rank " + std::to_string(runtime_.size() - 1));
  }

  Runtime runtime_{in_test_world(config())};
};

TEST_F(LateSyncBatchNormTest, RankThatSkipsForward_IsNamedAtTheDeadline) {
  if (runtime_.size() == 1) GTEST_SKIP() << "one rank waits for none";
  SyncBatchNorm synced(3);
  const at::Tensor input = random_batch(4, {3}, runtime_.rank());
  expect_timeout([&] { synced->forward(input); }, "sync_batch_norm");
}

TEST_F(LateSyncBatchNormTest, RankThatSkipsBackward_IsNamedAtTheDeadline) {
  if (runtime_.size() == 1) GTEST_SKIP() << "one rank waits for none";
  SyncBatchNorm synced(3);
  const at::Tensor input = random_batch(4, {3}, runtime_.rank()).requires_grad_();
  const at::Tensor loss = synced->forward(input).sum();
  expect_timeout([&] { loss.backward(); }, ".gradient");
}

}  // namespace kolo::test::sync_batch_norm_errors_test
