// Tensors on the fake CUDA back end have the same values as on the CPU.
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "train/cuda/fake_cuda_fixture.hpp"

namespace kolo::test::fake_cuda_test {

void expect_same(const at::Tensor& on_gpu, const at::Tensor& on_cpu, const std::string& what) {
  EXPECT_EQ(on_gpu.scalar_type(), on_cpu.scalar_type()) << what;
  ASSERT_EQ(on_gpu.sizes(), on_cpu.sizes()) << what;
  EXPECT_EQ(on_gpu.strides(), on_cpu.strides()) << what;
  EXPECT_TRUE(at::equal(on_gpu.cpu(), on_cpu)) << what;
}

at::Tensor numbers(c10::IntArrayRef sizes, int salt = 0) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return ((at::arange(count, at::kFloat) * 7 + salt).remainder(13) - 6).reshape(sizes) / 4;
}

struct Case {
  std::string name;
  /// The computation, on two matrices that it may overwrite.
  std::function<at::Tensor(at::Tensor, at::Tensor)> compute;
};

void PrintTo(const Case& tried, std::ostream* out) { *out << tried.name; }

class CudaTensorTest : public testing::TestWithParam<Case> {};

TEST_P(CudaTensorTest, Operators_HaveTheValuesOfTheCpu) {
  const at::Tensor expected = GetParam().compute(numbers({4, 6}), numbers({4, 6}, 5));
  run_cuda_ranks(2, [&](CudaRank& rank) {
    const at::Tensor got =
        GetParam().compute(numbers({4, 6}).to(rank.device()), numbers({4, 6}, 5).to(rank.device()));
    EXPECT_EQ(got.device(), rank.device());
    expect_same(got, expected, GetParam().name);
  });
}

using at::Tensor;
INSTANTIATE_TEST_SUITE_P(
    , CudaTensorTest,
    testing::Values(
        Case{"Functional", [](Tensor a, Tensor b) { return a * b + 1; }},
        Case{"InPlace", [](Tensor a, Tensor b) { return a.add_(b, 3).relu_(); }},
        Case{"ScalarOfTheCpu", [](Tensor a, Tensor) { return a * at::scalar_tensor(2.5F); }},
        Case{"IntoOutput", [](Tensor a, Tensor b) { return at::mul_out(b, a, b); }},
        Case{"IntoResizedOutput",
             [](Tensor a, Tensor b) {
               Tensor output = at::empty({0}, a.options());
               return at::mm_out(output, a, b.t());
             }},
        Case{"Transposed", [](Tensor a, Tensor b) { return a.t().add_(b.t()).t(); }},
        Case{"Views",
             [](Tensor a, Tensor b) {
               a.view({2, 12}).select(0, 1).fill_(9);
               a.narrow(1, 2, 3).copy_(b.narrow(1, 0, 3));
               a.as_strided({2, 2}, {6, 2}, 1).zero_();
               a.unfold(1, 2, 3).mul_(2);
               return a;
             }},
        Case{"Expanded", [](Tensor a, Tensor) { return a.narrow(0, 0, 1).expand({4, 6}) + a; }},
        Case{"Reductions",
             [](Tensor a, Tensor b) { return at::stack({a.sum(), b.mean(), a.norm(), b.max()}); }},
        Case{"ListOfTensors", [](Tensor a, Tensor b) { return at::cat({a, b, a}, 1); }},
        Case{"Foreach",
             [](Tensor a, Tensor b) {
               at::_foreach_add_({a, b}, {b, a}, 2);
               const std::vector<Tensor> norms = at::_foreach_norm({a, b}, 2);
               return a + norms[0] + norms[1];
             }},
        Case{"FusedAdam",
             [](Tensor a, Tensor b) {
               const Tensor moment = at::zeros_like(a);
               const Tensor square = at::zeros_like(a);
               const Tensor steps = at::ones({}, a.options());
               at::_fused_adamw_({a}, {b}, {moment}, {square}, {}, {steps}, 0.1, 0.9, 0.99, 0.01,
                                 1e-8, false, false);
               return at::cat({a, moment, square});
             }},
        Case{"Unscaling",
             [](Tensor a, Tensor) {
               Tensor found = at::zeros({1}, a.options());
               const Tensor factor = at::full({1}, 0.5, a.options());
               at::_amp_foreach_non_finite_check_and_unscale_({a}, found, factor);
               return a + found;
             }},
        Case{"Mask", [](Tensor a, Tensor b) { return a.index({b > 0}); }},
        Case{"Indices",
             [](Tensor a, Tensor b) {
               const Tensor rows = at::tensor({2, 0}, a.options().dtype(at::kLong));
               a.index_put_({rows}, b.narrow(0, 0, 2));
               return at::where(a > b, a.index({rows.cpu()}).sum(), b);
             }},
        Case{"Sorted", [](Tensor a, Tensor b) { return std::get<0>(a.topk(2)) + b.argmax(); }},
        Case{"Types",
             [](Tensor a, Tensor b) { return a.to(at::kHalf).to(at::kDouble) + b.to(at::kLong); }},
        Case{"Range", [](Tensor a, Tensor) { return a.view(24) + at::arange(24, a.options()); }},
        Case{"Resized",
             [](Tensor a, Tensor b) { return a.resize_({30}).narrow(0, 0, 24) + b.view(24); }},
        Case{"SetData",
             [](Tensor a, Tensor b) {
               a.set_data(b);
               return a.set_(b.storage(), 6, {2, 3}, {3, 1});
             }},
        Case{"Softmax", [](Tensor a, Tensor b) { return at::log_softmax(a, 1) * b.softmax(0); }}),
    [](const testing::TestParamInfo<Case>& tried) { return tried.param.name; });

TEST(CudaTensorDeviceTest, RandomNumbers_ComeFromTheDevicesGenerator) {
  at::Tensor drawn[2];
  run_cuda_ranks(2, [&](CudaRank& rank) {
    at::Generator generator = at::globalContext().defaultGenerator(rank.device());
    generator.set_current_seed(3);
    drawn[rank.rank()] = at::randn({20}, rank.options()).cpu();
  });
  EXPECT_TRUE(at::equal(drawn[0], drawn[1]));
  EXPECT_GT(drawn[0].std().item<float>(), 0.1F);
}

TEST(CudaTensorDeviceTest, DevicesInOneOperator_AreRefused) {
  run_cuda_ranks(2, [&](CudaRank& rank) {
    const at::Tensor here = at::ones({3}, rank.options());
    expect_contains(text_thrown_by<c10::Error>([&] { here + at::ones({3}); }), "cpu");
  });
  run_cuda_ranks(1, [&](CudaRank&) {
    expect_contains(text_thrown_by<c10::Error>([&] { at::ones({3}, at::Device("cuda:1")); }),
                    "no rank has cuda:1");
  });
}

}  // namespace kolo::test::fake_cuda_test
