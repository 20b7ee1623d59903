// Checkpointed functions have the values and gradients of ordinary calls, and keep no activations.
#include "kolo/torch/activation_checkpoint.hpp"

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/autocast.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::activation_checkpoint_test {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const at::Tensor&)>;

class ActivationCheckpointTest : public testing::Test {};

at::Tensor leaf(const std::vector<std::int64_t>& shape) {
  return torch::randn(shape).requires_grad_();
}

/// Calls a function directly or as a checkpoint.
using CallBlock = std::function<at::Tensor(const Function&, const at::Tensor&)>;
at::Tensor plain(const Function& function, const at::Tensor& input) { return function(input); }
at::Tensor checkpointed(const Function& function, const at::Tensor& input) {
  return checkpoint(function, input);
}

/// The loss, the gradients, and the next random numbers. No tensor is used more than twice: when
/// backward() calls the blocks again, three gradients might be added in a different order.
Tensors run_blocks(const CallBlock& call, bool is_nested, bool has_autocast) {
  torch::manual_seed(9);
  Tensors weights;
  for (int i = 0; i < 5; ++i) weights.push_back(torch::randn({6, 6}).requires_grad_());
  const at::Tensor input = torch::randn({5, 6}).requires_grad_();
  const auto block = [&](std::size_t i) -> Function {
    return [&weights, i](const at::Tensor& x) {
      const at::Tensor y = torch::tanh(torch::dropout(x.matmul(weights[i]), 0.4, true));
      return torch::linear(y, weights[i == 3 ? 4 : i]) + x;
    };
  };
  const auto pair = [&](std::size_t i) -> Function {
    return [&, i](const at::Tensor& y) { return call(block(i + 1), call(block(i), y)).sin(); };
  };
  at::Tensor loss;
  {
    const Autocast autocast(at::kBFloat16, at::kCPU, has_autocast);
    at::Tensor x = input;
    if (is_nested) {
      x = call([&](const at::Tensor& y) { return call(pair(2), call(pair(0), y)); }, x);
    } else {
      for (std::size_t i = 0; i < 4; ++i) x = call(block(i), x);
    }
    // Also used outside, but not with casts: one cast would accumulate the gradients of both uses.
    if (!has_autocast) x = x.matmul(weights[3]);
    loss = torch::dropout(x, 0.5, true).to(torch::kFloat32).pow(2).mean();
  }
  Tensors results{loss.detach(), torch::rand({3})};
  loss.backward();
  results.push_back(input.grad());
  for (const at::Tensor& weight : weights) results.push_back(weight.grad());
  results.push_back(torch::rand({3}));
  return results;
}

TEST_F(ActivationCheckpointTest, ValuesGradientsAndRandomNumbers_HaveTheSameBits) {
  for (const bool is_nested : {false, true}) {
    for (const bool has_autocast : {false, true}) {
      const Tensors expected = run_blocks(plain, is_nested, has_autocast);
      const Tensors results = run_blocks(checkpointed, is_nested, has_autocast);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(torch::equal(results[i], expected[i])) << i << is_nested << has_autocast;
      }
    }
  }
}

TEST_F(ActivationCheckpointTest, AutocastOfBackward_IsThatOfTheFirstCall) {
  const at::Tensor weight = leaf({4, 4});
  std::vector<at::ScalarType> types;
  const auto function = [&](const at::Tensor& x) {
    at::Tensor product = x.matmul(weight);
    types.push_back(product.scalar_type());
    return product.to(torch::kFloat32);
  };
  {
    at::Tensor y;
    {
      const Autocast autocast(at::kBFloat16);
      y = checkpoint(function, leaf({2, 4}));
    }
    y.sum().backward();
  }
  const at::Tensor y = checkpoint(function, leaf({2, 4}));
  const Autocast autocast(at::kHalf);
  y.sum().backward();
  EXPECT_EQ(types, (std::vector{at::kBFloat16, at::kBFloat16, at::kFloat, at::kFloat}));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

/// Constants that a function multiplies by, so that its graph keeps them.
class Activations {
 public:
  at::Tensor make(const at::Tensor& like) {
    ++live_;
    peak_ = std::max(peak_, live_);
    auto* const memory = new std::vector<float>(static_cast<std::size_t>(like.numel()), 0.5F);
    return at::from_blob(
        memory->data(), like.sizes(),
        [this, memory](void*) {
          delete memory;
          --live_;
        },
        at::kFloat);
  }
  int live() const { return live_; }
  int take_peak() { return std::exchange(peak_, live_); }

 private:
  int live_ = 0;
  int peak_ = 0;
};

TEST_F(ActivationCheckpointTest, Activations_LiveInOneBlockAtATime) {
  constexpr int kBlocks = 6;
  constexpr int kInBlock = 3;
  Activations activations;
  const Function block = [&](const at::Tensor& input) {
    at::Tensor x = input;
    for (int i = 0; i < kInBlock; ++i) x = x * activations.make(x);
    return x;
  };
  const auto live_after_forward = [&](const CallBlock& call) {
    at::Tensor x = leaf({7});
    const at::Tensor input = x;
    for (int i = 0; i < kBlocks; ++i) x = call(block, x);
    const int live = activations.live();
    x.sum().backward();
    EXPECT_TRUE(torch::equal(input.grad(), torch::full({7}, std::pow(0.5F, kBlocks * kInBlock))));
    return live;
  };
  EXPECT_EQ(live_after_forward(plain), kBlocks * kInBlock);
  EXPECT_EQ(activations.take_peak(), kBlocks * kInBlock);
  EXPECT_EQ(live_after_forward(checkpointed), 0);
  EXPECT_EQ(activations.live(), 0);
  EXPECT_EQ(activations.take_peak(), kInBlock);
}

TEST_F(ActivationCheckpointTest, Inputs_AreFreedByBackwardThoughTheResultLives) {
  c10::Storage memory;
  const at::Tensor result = [&] {
    const at::Tensor input = leaf({7}) * 2;
    memory = input.storage();
    return checkpoint([](const at::Tensor& x) { return x.exp(); }, input);
  }();
  EXPECT_GT(memory.use_count(), 1u);
  result.sum().backward();
  EXPECT_EQ(memory.use_count(), 1u);
}

TEST_F(ActivationCheckpointTest, Nested_KeepsOneBlockOfTheInnermostLevel) {
  Activations activations;
  const Function block = [&](const at::Tensor& x) { return x * activations.make(x); };
  const Function row = [&](const at::Tensor& input) {
    at::Tensor x = input;
    for (int i = 0; i < 4; ++i) x = checkpoint(block, x);
    return x;
  };
  const at::Tensor input = leaf({3});
  checkpoint(row, checkpoint(row, input)).sum().backward();
  EXPECT_EQ(activations.take_peak(), 1);
  EXPECT_TRUE(torch::equal(input.grad(), torch::full({3}, std::pow(0.5F, 8))));
}

TEST_F(ActivationCheckpointTest, HooksOfParameters_SeeTheWholeGradientOnce) {
  at::Tensor weight = torch::full({2}, 3.0).requires_grad_();
  std::vector<double> seen;
  weight.register_hook([&](const at::Tensor& gradient) {
    seen.push_back(gradient[0].item<double>());
    return gradient * 10;
  });
  const Function block = [&](const at::Tensor& x) { return x * weight + weight; };
  const at::Tensor input = torch::full({2}, 2.0).requires_grad_();
  const at::Tensor y = checkpoint(block, checkpoint(block, input)) * weight;  // inside and outside
  y.sum().backward();
  // y = w (w (w x + w) + w): dy/dw = 3 w² x + 3 w² + 2 w, dy/dx = w³
  EXPECT_EQ(seen, std::vector<double>{54 + 27 + 6});
  EXPECT_EQ(weight.grad()[1].item<double>(), 870);
  EXPECT_EQ(input.grad()[1].item<double>(), 27);
}

TEST_F(ActivationCheckpointTest, CapturedTensors_GetGradients) {
  const at::Tensor source = torch::full({3}, 2.0).requires_grad_();
  const at::Tensor captured = source * source;
  const at::Tensor y =
      checkpoint([&](const at::Tensor& x) { return x * captured; }, torch::full({3}, 5.0));
  (y + captured).sum().backward();
  EXPECT_TRUE(torch::equal(source.grad(), torch::full({3}, 24.0)));  // (5 + 1) · 2 · 2
}

TEST_F(ActivationCheckpointTest, InputsAndResults_MayBeOfAnyKind) {
  const at::Tensor a = torch::full({2}, 2.0).requires_grad_();
  const at::Tensor b = torch::full({2}, 3.0).requires_grad_();
  int calls = 0;
  const auto function = [&](const Tensors& in) -> Tensors {
    ++calls;
    EXPECT_FALSE(in[1].defined());
    EXPECT_EQ(in[2].scalar_type(), torch::kLong);
    return {in[0] * in[3], in[2] + 1, in[0], in[3].exp(), at::Tensor(), in[0].view({2, 1})};
  };
  const Tensors results = checkpoint(function, {a, at::Tensor(), torch::arange(2), b});
  EXPECT_EQ(results.size(), 6U);
  EXPECT_FALSE(results[1].requires_grad());
  EXPECT_TRUE(torch::equal(results[1], torch::arange(1, 3)));
  EXPECT_FALSE(results[4].defined());
  // results[3] is not used
  (results[0].sum() + results[2].sum() * 7 + results[5].sum() * 11).backward();
  EXPECT_TRUE(torch::equal(a.grad(), torch::full({2}, 3.0 + 7 + 11)));
  EXPECT_TRUE(torch::equal(b.grad(), torch::full({2}, 2.0)));
  EXPECT_EQ(calls, 2);
  const at::Tensor sum = checkpoint([](const Tensors& in) { return in[0] + in[1]; }, {a, b});
  EXPECT_TRUE(torch::equal(sum, torch::full({2}, 5.0)));
  const Tensors parts = checkpoint([](const at::Tensor& x) { return x.split(1); }, a);
  EXPECT_EQ(parts.size(), 2U);
}

TEST_F(ActivationCheckpointTest, ResultsMayBeChangedInPlace) {
  const at::Tensor input = torch::full({2}, 3.0).requires_grad_();
  at::Tensor y = checkpoint([](const at::Tensor& x) { return x * x; }, input);
  y.mul_(5).add_(1);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(input.grad(), torch::full({2}, 30.0)));
}

TEST_F(ActivationCheckpointTest, Modules_AreFunctions) {
  torch::nn::Linear linear(3, 3);
  torch::nn::Sequential sequential(torch::nn::Linear(3, 4), torch::nn::Tanh());
  const at::Tensor input = torch::randn({2, 3});  // needs no gradient, like the first block's input
  const auto run = [&](bool is_checkpointed) {
    linear->zero_grad();
    sequential->zero_grad();
    at::Tensor y = is_checkpointed ? checkpoint(sequential, checkpoint(linear, input))
                                   : sequential->forward(linear->forward(input));
    y.pow(2).sum().backward();
    return torch::cat({y.detach().flatten(), linear->weight.grad().flatten(),
                       sequential->parameters()[0].grad().flatten()});
  };
  const at::Tensor expected = run(false);
  EXPECT_TRUE(torch::equal(run(true), expected));
}

TEST_F(ActivationCheckpointTest, WithoutGradients_TheFunctionIsJustCalled) {
  int calls = 0;
  const at::Tensor weight = leaf({2});
  const auto function = [&](const at::Tensor& x) {
    ++calls;
    return x * weight;
  };
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(checkpoint(function, leaf({2})).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(checkpoint(function, leaf({2})).is_inference());
  }
  EXPECT_EQ(calls, 2);
  EXPECT_FALSE(
      checkpoint([](const at::Tensor& x) { return x * 2; }, torch::ones({2})).requires_grad());
}

TEST_F(ActivationCheckpointTest, Backward_MayRunOnAnotherThread) {
  const at::Tensor weight = torch::full({2}, 3.0).requires_grad_();
  const at::Tensor captured = weight * 2;
  const at::Tensor y =
      checkpoint([&](const at::Tensor& x) { return (x * captured * weight).tanh().atanh(); },
                 torch::full({2}, 0.01));
  std::thread([&] { y.sum().backward(); }).join();
  EXPECT_TRUE(torch::allclose(weight.grad(), torch::full({2}, 0.12)));  // 4 w x
}

// --- errors when backward() calls a checkpointed function again ---

using Tensors = std::vector<at::Tensor>;

class ActivationCheckpointErrorsTest : public testing::Test {};

TEST_F(ActivationCheckpointErrorsTest, RetainedGraph_RunsAgain) {
  const at::Tensor input = torch::full({2}, 3.0).requires_grad_();
  const at::Tensor y = checkpoint([](const at::Tensor& x) { return x * x; }, input).sum();
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  EXPECT_TRUE(torch::equal(input.grad(), torch::full({2}, 12.0)));
  EXPECT_THROW(y.backward(), c10::Error);
}

TEST_F(ActivationCheckpointErrorsTest, GradientsOfSomeInputs_CanBeAskedFor) {
  const at::Tensor weight = torch::full({2}, 3.0).requires_grad_();
  const at::Tensor input = torch::full({2}, 5.0).requires_grad_();
  const at::Tensor y = checkpoint([&](const at::Tensor& x) { return x * weight; }, input).sum();
  EXPECT_TRUE(torch::equal(torch::autograd::grad({y}, {input})[0], torch::full({2}, 3.0)));
  EXPECT_FALSE(weight.grad().defined());
}

TEST_F(ActivationCheckpointErrorsTest, WhatTheFunctionThrows_ComesOutOfBackward) {
  const at::Tensor input = torch::full({2}, 3.0).requires_grad_();
  int calls = 0;
  const auto function = [&](const at::Tensor& x) {
    const at::Tensor random = torch::rand({2});
    if (++calls == 2) throw std::range_error("no more memory");
    return torch::dropout(x, 0.5, true) * random;
  };
  const at::Tensor y = checkpoint(function, input).sum();
  const at::Tensor state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  expect_contains(text_thrown_by<std::range_error>([&] { y.backward(); }), "no more memory");
  EXPECT_TRUE(torch::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), state));
  y.backward();  // the next attempt works
  EXPECT_TRUE(torch::equal((input.grad() * input).detach().sum(), y.detach()));
  EXPECT_THROW(
      checkpoint([](const at::Tensor&) -> at::Tensor { throw std::range_error("now"); }, input),
      std::range_error);
}

TEST_F(ActivationCheckpointErrorsTest, FunctionsThatDoOtherThings_AreErrors) {
  const at::Tensor first = leaf({2});
  const at::Tensor second = leaf({2});
  bool is_second = false;
  const at::Tensor other =
      checkpoint([&](const at::Tensor& x) { return x * (is_second ? second : first); }, leaf({2}));
  const Tensors fewer = checkpoint(
      [&](const at::Tensor& x) { return Tensors(is_second ? 0 : 2, x * first); }, leaf({2}));
  const at::Tensor constant = checkpoint(
      [&](const at::Tensor& x) { return is_second ? torch::ones({2}) : x * first; }, leaf({2}));
  is_second = true;
  expect_contains(text_thrown_by<InvalidArgument>([&] { other.sum().backward(); }),
                  "used a parameter or tensor that it had not used");
  for (const at::Tensor& result : {fewer[0], constant}) {
    expect_contains(text_thrown_by<InvalidArgument>([&] { result.sum().backward(); }),
                    "returned other tensors");
  }
  EXPECT_FALSE(first.grad().defined());
}

TEST_F(ActivationCheckpointErrorsTest, MisuseOfTheGraph_IsAnError) {
  const at::Tensor input = leaf({2});
  at::Tensor changed = input * 2;
  const auto square = [](const at::Tensor& x) { return x * x; };
  const at::Tensor y = checkpoint(square, changed).sum();
  changed.add_(1);
  EXPECT_THROW(y.backward(), c10::Error);  // as for every saved tensor
  const at::Tensor z = checkpoint(square, input).sum();
  const auto twice = [&] { torch::autograd::grad({z}, {input}, {}, true, /*create_graph=*/true); };
  expect_contains(text_thrown_by<InvalidArgument>(twice), "create_graph");
}

}  // namespace kolo::test::activation_checkpoint_test
