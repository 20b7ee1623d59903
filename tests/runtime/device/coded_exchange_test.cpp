// Reductions through codecs on the fake GPU: closed-form results, the same bits as on the CPU,
// error feedback, bytes on the wire, order of work, errors.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/codec.hpp"
#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/device/coded_twins.hpp"
#include "runtime/device/programs.hpp"
#include "runtime/join_expectations.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"
#include "runtime/whole_codec.hpp"
#include "support/sanitizers.hpp"

namespace kolo::test::coded_exchange_test {

class CodedExchangeTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  void run(const std::function<void(Runtime&)>& body) const {
    run_runtimes(setting_with_gpus(size()), body);
  }
  double sum_of_ranks() const { return size() * (size() + 1) / 2.0; }
};
const std::vector<int> kWorlds =
    kIsSanitized ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 4};
INSTANTIATE_TEST_SUITE_P(, CodedExchangeTest, testing::ValuesIn(kWorlds));

/// Inputs that a codec encodes exactly, and their sum too; n times as large on rank n - 1.
struct ExactCase {
  Compression compression;
  double (*element)(std::size_t i);
};
const std::vector<ExactCase> kExactCases{
    {Compression::int8(),
     [](std::size_t i) { return static_cast<double>(i % 256 == 0 ? 0 : i % 255) - 127; }},
    {Compression::one_bit(), [](std::size_t i) { return i % 3 == 1 ? -1.0 : 1.0; }},
    {Compression::top_k(1.0), [](std::size_t i) { return static_cast<double>(i % 1001) - 300; }},
    {Compression::top_k(0.02),
     [](std::size_t i) { return i % 50 == 7 ? static_cast<double>(i % 3 + 1) : 0.0; }},
    {Compression::random_k(1.0), [](std::size_t i) { return static_cast<double>(i % 777) + 1; }},
};

TEST_P(CodedExchangeTest, SumsAndAverages_HaveTheValuesOfAllRanks) {
  run([&](Runtime& runtime) {
    for (const auto& [compression, values] : kExactCases) {
      const auto& element = values;  // Clang 14 captures no structured bindings
      for (const std::int64_t count : {1000, 3072, 39'936}) {
        const std::string text = std::string(compression.name()) + " " + std::to_string(count);
        const auto input = [&](std::size_t i) { return (runtime.rank() + 1) * element(i); };
        Tensor tensor(count);
        tensor.fill(input);
        allreduce(tensor.view(), tensor.view(),
                  {.op = ReduceOp::Sum, .prescale = 0.5, .compression = compression});
        tensor.expect([&](std::size_t i) { return 0.5 * sum_of_ranks() * element(i); }, text);
        tensor.fill(input);
        Tensor average(count);
        allreduce(tensor.view(), average.view(), {.compression = compression});
        average.expect([&](std::size_t i) { return sum_of_ranks() / size() * element(i); }, text,
                       1e-6);
        tensor.expect(input, text + ", the input");
        Tensor part(scattered_rows(count, size(), runtime.rank()));
        std::size_t begin = 0;
        for (int rank = 0; rank < runtime.rank(); ++rank) {
          begin += static_cast<std::size_t>(scattered_rows(count, size(), rank));
        }
        reduce_scatter(tensor.view(), part.view(),
                       {.op = ReduceOp::Sum, .postscale = 2, .compression = compression});
        if (compression == Compression::int8() && count == 1000) continue;  // blocks differ
        part.expect([&](std::size_t i) { return 2 * sum_of_ranks() * element(begin + i); },
                    text + " scattered");
      }
    }
  });
}

TEST_P(CodedExchangeTest, Results_HaveTheBitsOfTheCpu) {
  run([](Runtime& runtime) { expect_coded_bits_of_the_cpu(runtime); });
}

TEST_P(CodedExchangeTest, StepsThatAreNotFinite_LeaveTheResidual) {
  if (size() == 1) GTEST_SKIP() << "one rank sends nothing";
  run([&](Runtime& runtime) {
    for (const Compression& compression : codecs_with_gpu_kernels()) {
      Tensor tensor(512);
      Tensor residual(512);
      residual.fill([](std::size_t) { return 0.25; });
      tensor.fill([&](std::size_t i) {
        return i == 3 ? std::numeric_limits<double>::infinity() : runtime.rank() + 1.0;
      });
      allreduce(tensor.view(), tensor.view(),
                {.compression = compression, .residual = floats_of(residual)});
      bool is_finite = true;
      for (std::size_t i = 0; i < 256; ++i) is_finite &= std::isfinite(tensor.at(i));
      EXPECT_FALSE(is_finite) << compression.name();
      residual.expect([&](std::size_t i) { return i < 256 ? 0.25 : residual.at(i); },
                      std::string(compression.name()));
    }
  });
}

TEST_P(CodedExchangeTest, Groups_EncodeFloatsAlone) {
  run([&](Runtime& runtime) {
    Tensor floats(2560);
    Tensor more(512);
    const auto& exact = kExactCases.front();
    for (Tensor* const tensor : {&floats, &more}) {
      tensor->fill([&](std::size_t i) { return (runtime.rank() + 1) * exact.element(i); });
    }
    grouped_allreduce({{floats.view(), floats.view()}, {more.view(), more.view()}},
                      {.op = ReduceOp::Sum, .compression = exact.compression});
    for (Tensor* const tensor : {&floats, &more}) {
      tensor->expect([&](std::size_t i) { return sum_of_ranks() * exact.element(i); }, "group");
    }
    Tensor integers(100, DType::Int32);
    integers.fill([&](std::size_t i) { return input_value(runtime.rank(), i) + 1000; });
    allreduce(integers.view(), integers.view(),
              {.op = ReduceOp::Sum, .compression = exact.compression});
    integers.expect([&](std::size_t i) { return input_sum(size(), i) + 1000 * size(); },
                    "integers");
  });
}

TEST_P(CodedExchangeTest, JoinedRanks_SendZeros) {
  run([&](Runtime& runtime) {
    const auto& exact = kExactCases.front();
    const int last = size() - 1;
    if (runtime.rank() < last || size() == 1) {
      if (size() > 1) joins::wait_until_joined("the last");
      Tensor tensor(1024);
      tensor.fill([&](std::size_t i) { return (runtime.rank() + 1) * exact.element(i); });
      allreduce(tensor.view(), tensor.view(),
                {.op = ReduceOp::Sum, .compression = exact.compression, .name = "x"});
      const double sum = size() == 1 ? 1 : sum_of_ranks() - size();
      tensor.expect([&](std::size_t i) { return sum * exact.element(i); }, "joined");
    }
    join();
  });
}

/// One payload of the input to each other rank, and one of the sum to all; multiples of 16 bytes,
/// in which each block begins at a multiple of 4.
TEST_P(CodedExchangeTest, SendsPayloadsAlone) {
  run([&](Runtime& runtime) {
    const auto others = static_cast<std::uint64_t>(size() - 1);
    const auto sent = [&] { return runtime.world().metrics().bytes_sent; };
    const auto padded = [](std::uint64_t bytes, std::uint64_t to) {
      return (bytes + to - 1) / to * to;
    };
    constexpr std::int64_t kLargest = 16384;  // elements of a block
    constexpr std::int64_t kBlocks = 3;
    for (const Compression& compression : codecs_with_gpu_kernels()) {
      Tensor tensor(kBlocks * kLargest * size());
      Tensor part(kBlocks * kLargest);
      const std::uint64_t own = padded(kBlocks * padded(coded_bytes(compression, kLargest), 4), 16);
      const std::uint64_t sum =
          padded(kBlocks * padded(coded_bytes(compression, kLargest, size()), 4), 16);
      tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
      const std::uint64_t before = sent();
      allreduce(tensor.view(), tensor.view(), {.compression = compression});
      const std::uint64_t middle = sent();
      EXPECT_EQ(middle - before, others * (own + sum)) << compression.name();
      reduce_scatter(tensor.view(), part.view(), {.compression = compression});
      EXPECT_EQ(sent() - middle, others * own) << compression.name();
    }
  });
}

TEST_P(CodedExchangeTest, ComesBetweenProducerAndConsumer_InMemoryThatStays) {
  KOLO_SKIP_ON_OTHER_GPUS();
  run_programs(setting_with_gpus(size()), [&](Runtime& runtime, FakeWorld& world) {
    constexpr std::size_t kCount = 1000;
    GpuProgram program(world);
    const auto memory = program.allocate(kCount);
    const auto residual = program.allocate(kCount);
    const auto view = program.view(memory, kCount);
    int allocations = 0;
    for (const Compression& compression : {Compression::one_bit(), Compression::top_k(1.0)}) {
      for (int step = 1; step <= 5; ++step) {
        program.write(residual, kCount, 0.0F);
        program.write(memory, kCount, static_cast<float>((runtime.rank() + 1) * step));
        allreduce_async(
            view, view,
            {.op = ReduceOp::Sum,
             .compression = compression,
             .residual = size() > 1 ? reinterpret_cast<float*>(residual.get()) : nullptr,
             .name = "x",
             .stream = program.stream()})
            .wait();
        const auto sum = static_cast<float>(sum_of_ranks() * step);
        EXPECT_EQ(program.read(memory, kCount), std::vector<float>(kCount, sum));
        EXPECT_EQ(program.read(residual, kCount), std::vector<float>(kCount, 0.0F));
        if (step == 1) allocations = world.hub()->allocations(runtime.rank());
      }
      EXPECT_EQ(world.hub()->allocations(runtime.rank()), allocations);
    }
  });
}

TEST_P(CodedExchangeTest, CodecsWithoutKernels_AreRefusedOnAllRanks) {
  KOLO_SKIP_ON_OTHER_GPUS();
  static const WholeCodec codec;
  run_ranks(
      size(),
      [&](FakeWorld& world) {
        InitOptions options = options_in(world, test_config());
        options.codecs = {&codec};
        Runtime runtime(std::move(options));
        Runtime::set_thread_current(&runtime);
        FakeTensorPlace place(world.hub(), world.topology().rank, world.topology().local_rank);
        tensor_place = &place;
        {
          Tensor tensor(20);
          const std::string text = text_thrown_by<InvalidArgument>([&] {
            allreduce(tensor.view(), tensor.view(), {.compression = Compression::named("whole")});
          });
          expect_contains(text,
                          "\"whole\" has no kernels for GPUs. Use int8, one_bit, top_k, random_k");
          expect_sum_works(runtime, "afterwards");
        }
        tensor_place = nullptr;
      },
      setting_with_gpus(size()).network);
}

}  // namespace kolo::test::coded_exchange_test
