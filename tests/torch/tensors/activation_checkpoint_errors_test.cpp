// Errors when backward() calls a checkpointed function again.
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kolo/error.hpp"
#include "kolo/torch/activation_checkpoint.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::activation_checkpoint_errors_test {

using Tensors = std::vector<at::Tensor>;

class ActivationCheckpointErrorsTest : public testing::Test {};

at::Tensor leaf(const std::vector<std::int64_t>& shape) {
  return torch::randn(shape).requires_grad_();
}

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

}  // namespace kolo::test::activation_checkpoint_errors_test
