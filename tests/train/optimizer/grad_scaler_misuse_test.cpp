// Misuse that a GradScaler refuses like torch.amp.GradScaler, on all ranks, which work afterwards.
#include <cmath>
#include <functional>
#include <string>

#include "kolo/error.hpp"
#include "train/scaling.hpp"

namespace kolo::test::grad_scaler_misuse_test {

// A closure would run backward() after the gradients have been unscaled.
template <class Scaler, class... Arguments>
concept Steps = requires(Scaler scaler, Arguments... arguments) { scaler.step(arguments...); };
static_assert(Steps<GradScaler, DistributedOptimizer&>);
static_assert(!Steps<GradScaler, DistributedOptimizer&, torch::optim::Optimizer::LossClosure>);

class GradScalerMisuseTest : public TrainingTest, public testing::WithParamInterface<Shard> {
 protected:
  GradScalerMisuseTest() : optimizer_(inner_, {{"weight", weight_}}, with(GetParam())) {}
  void backward() { scaler_.scale(weight_.sum()).backward(); }

  at::Tensor weight_ = torch::ones({3}).requires_grad_();
  torch::optim::SGD inner_{{weight_}, torch::optim::SGDOptions(0.25)};
  DistributedOptimizer optimizer_;
  GradScaler scaler_;
};

INSTANTIATE_TEST_SUITE_P(Modes, GradScalerMisuseTest, testing::ValuesIn(all_modes()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GradScalerMisuseTest, CallsBeforeScale_AreRefused) {
  weight_.sum().backward();
  expect_refused([&] { scaler_.unscale_(optimizer_); }, "unscale_() before any scale()");
  expect_refused([&] { scaler_.step(optimizer_); }, "step() before any scale()");
  expect_refused([&] { scaler_.update(); }, "update() before any scale()");
  expect_refused([&] { scaler_.update(2.0); }, "update() before any scale()");
}

TEST_P(GradScalerMisuseTest, CallsTwiceOrInAnotherOrder_AreRefused) {
  for (int step = 0; step < 2; ++step) {
    optimizer_.zero_grad();
    backward();
    expect_refused([&] { scaler_.update(); }, "no gradients were checked since the last one");
    scaler_.unscale_(optimizer_);
    expect_refused([&] { scaler_.unscale_(optimizer_); }, "unscale_() a second time");
    EXPECT_TRUE(scaler_.step(optimizer_));
    expect_refused([&] { scaler_.step(optimizer_); }, "step() a second time");
    expect_refused([&] { scaler_.unscale_(optimizer_); }, "unscale_() after step()");
    scaler_.update();
  }
  EXPECT_TRUE(torch::equal(weight_.detach(), torch::full({3}, 0.5)));
}

TEST_P(GradScalerMisuseTest, NoGradientsOnAnyRank_AreRefused) {
  for (int step = 0; step < 3; ++step) {
    if (step != 1) backward();
    if (step == 1) {
      scaler_.scale(torch::ones({1}));
      expect_refused([&] { scaler_.step(optimizer_); }, "no rank has a gradient");
      expect_refused([&] { scaler_.update(); }, "no gradients were checked");
      scaler_.update(scaler_.get_scale());
    } else {
      EXPECT_TRUE(scaler_.step(optimizer_));
      scaler_.update();
    }
    optimizer_.zero_grad();
  }
  EXPECT_TRUE(torch::equal(weight_.detach(), torch::full({3}, 0.5)));
}

TEST_P(GradScalerMisuseTest, GradientsOnOneRank_AreEnough) {
  if (GetParam() == Shard::Full && gathers_on_use()) {
    GTEST_SKIP() << "all ranks must use all units where they are gathered";
  }
  for (int owner = 0; owner < size(); ++owner) {
    optimizer_.zero_grad();
    if (rank() == owner) {
      backward();
    } else {
      scaler_.scale(torch::ones({1}));
    }
    EXPECT_TRUE(scaler_.step(optimizer_));
    scaler_.update();
  }
  EXPECT_TRUE(torch::allclose(weight_.detach(), torch::full({3}, 0.75)));
}

TEST_P(GradScalerMisuseTest, HalfGradients_AreRefused) {
  const at::Tensor half = torch::ones({2}, at::kHalf).requires_grad_();
  torch::optim::SGD inner({half}, 0.1);
  DistributedOptimizer optimizer(inner, {{"half", half}}, with(GetParam()));
  scaler_.scale(half.sum()).backward();
  expect_refused([&] { scaler_.unscale_(optimizer); }, "parameter 'half' are float16");
  expect_refused([&] { scaler_.step(optimizer); }, "parameter 'half' are float16");
}

TEST_P(GradScalerMisuseTest, ScalesThatDiffer_AreRefused) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to differ from";
  for (const bool clips : {false, true}) {
    optimizer_.zero_grad();
    if (is_last()) {
      GradScaler::State state = scaler_.state();
      state.scale = 1024.0;
      scaler_.set_state(state);
    }
    const std::string last = " on rank " + std::to_string(size() - 1);
    const auto step = [&] {
      backward();
      scaler_.unscale_(optimizer_);
      if (clips) optimizer_.clip_grad_norm_(1.0);
      scaler_.step(optimizer_);
    };
    if (GetParam() == Shard::None) {  // found by the next reduction
      step();
      scaler_.update();
      optimizer_.zero_grad();
      expect_refused<MismatchError>([&] { step(); }, "is GradScaler::unscale_(1024)");
    } else {
      expect_refused<MismatchError>([&] { step(); },
                                    "the scale is 65536 on rank 0, and 1024" + last);
    }
    scaler_.update(65536.0);
    optimizer_.zero_grad();
    backward();
    EXPECT_TRUE(scaler_.step(optimizer_));
    scaler_.update();
  }
}

TEST(GradScalerOptionsTest, OptionsOutOfRange_AreRefused) {
  const auto expect_refusal = [](const GradScaler::Options& options, const std::string& text) {
    expect_contains(text_thrown_by<InvalidArgument>([&] { const GradScaler scaler(options); }),
                    text);
  };
  for (const double scale : {0.0, -1.0, kInfinity, 1e39, 1e-46, std::nan("")}) {
    expect_refusal({.init_scale = scale}, "the scale is ");
  }
  for (const double growth : {1.0, 0.5, kInfinity, std::nan("")}) {
    expect_refusal({.growth_factor = growth}, "growth_factor is ");
  }
  for (const double backoff : {1.0, 1.5, 0.0, -0.5, std::nan("")}) {
    expect_refusal({.backoff_factor = backoff}, "backoff_factor is ");
  }
  for (const std::int64_t interval : {0, -1}) {
    expect_refusal({.growth_interval = interval}, "growth_interval is ");
  }
}

TEST(GradScalerOptionsTest, NewScalesAndStatesOutOfRange_AreRefused) {
  GradScaler scaler;
  scaler.scale(torch::ones({}));
  const GradScaler::State good = scaler.state();
  const auto expect_refusal = [&](const std::function<void()>& call, const std::string& text) {
    expect_contains(text_thrown_by<InvalidArgument>(call), text);
    EXPECT_EQ(scaler.state(), good);
  };
  for (const double scale : {0.0, -1.0, kInfinity, 1e39, std::nan("")}) {
    expect_refusal([&] { scaler.update(scale); }, "the scale is ");
  }
  const auto with_change = [&](auto member, auto value) {
    GradScaler::State state = good;
    state.*member = value;
    return [&scaler, state] { scaler.set_state(state); };
  };
  using State = GradScaler::State;
  expect_refusal(with_change(&State::scale, -2.0), "the scale is ");
  expect_refusal(with_change(&State::growth_factor, 1.0), "growth_factor is ");
  expect_refusal(with_change(&State::backoff_factor, 1.0), "backoff_factor is ");
  expect_refusal(with_change(&State::growth_interval, 0), "growth_interval is ");
  expect_refusal(with_change(&State::growth_tracker, -1), "growth_tracker is -1");
}

}  // namespace kolo::test::grad_scaler_misuse_test
