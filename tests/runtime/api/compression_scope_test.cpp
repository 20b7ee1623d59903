// All-reduces with CompressionScope::BetweenNodes, through the public API.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/every_world.hpp"
#include "runtime/values.hpp"

namespace kolo::test::compression_scope_test {

constexpr CompressionScope kBetweenNodes = CompressionScope::BetweenNodes;

Setting on_nodes(std::string name, int size, int nodes) {
  return {.name = std::move(name),
          .size = size,
          .network = {.nodes = nodes,
                      .longest_delay = std::chrono::microseconds(100),
                      .seed = 5,
                      .rendezvous = true}};
}

/// Worlds of nodes × ranks, and one with nodes of two ranks and one rank.
std::vector<Setting> settings() {
  std::vector<Setting> settings{on_nodes("One", 1, 1),    on_nodes("OneOf", 3, 1),
                                on_nodes("Single", 2, 2), on_nodes("Uneven", 3, 2),
                                on_nodes("Even", 4, 2),   on_nodes("Seven", 7, 3)};
  for (const int size : {3, 4}) {
    settings.push_back(on_nodes("Messages", size, 2));
    settings.back().config.shared_memory = false;
    settings.back().config.tuning.segment_bytes = 2048;
  }
  return settings;
}

class CompressionScopeTest : public EveryWorldTest {
 protected:
  int nodes() const { return GetParam().network.nodes; }
};
INSTANTIATE_TEST_SUITE_P(, CompressionScopeTest, testing::ValuesIn(settings()),
                         [](const auto& tested) {
                           return tested.param.name + std::to_string(tested.param.size);
                         });

/// With lossless payloads.
TEST_P(CompressionScopeTest, EveryTypeAndScale_IsReduced) {
  run([&](Runtime& runtime) {
    for (const DType dtype :
         {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16, DType::Int32}) {
      for (const Compression& compression : {Compression::top_k(1.0), Compression::fp16()}) {
        Tensor tensor(3001, dtype);
        tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
        allreduce(tensor.view(), tensor.view(),
                  {.op = ReduceOp::Sum,
                   .prescale = dtype == DType::Int32 ? 1.0 : 4.0,
                   .postscale = dtype == DType::Int32 ? 1.0 : 0.25,
                   .compression = compression,
                   .compression_scope = kBetweenNodes});
        tensor.expect([&](std::size_t i) { return input_sum(size(), i); },
                      std::string(name_of(dtype)));
        tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
        allreduce(tensor.view(), tensor.view(),
                  {.compression = compression, .compression_scope = kBetweenNodes});
        if (dtype == DType::Int32) continue;
        tensor.expect([&](std::size_t i) { return input_sum(size(), i) / size(); }, "average",
                      compression == Compression::fp16() || dtype == DType::BFloat16 ? 1e-2 : 1e-3);
      }
    }
  });
}

/// The first two ranks' node adds 256 and 1 in float32, a sum that bfloat16 cannot hold.
TEST(CompressionScopePrecisionTest, InsideANode_SumsAreFloat32) {
  run_runtimes(on_nodes("Even", 4, 2), [](Runtime& runtime) {
    for (const Compression& compression : {Compression::top_k(1.0), Compression::bf16()}) {
      const bool is_cast = compression == Compression::bf16();
      Tensor tensor(500, is_cast ? DType::Float32 : DType::BFloat16);
      // With a cast, the sum of each node is exact in bfloat16, but the inputs of the first node
      // are not.
      tensor.fill([&](std::size_t) {
        if (runtime.rank() == 0) return is_cast ? 257.0 : 256.0;
        if (runtime.rank() == 1) return is_cast ? -255.5 : 1.0;
        return runtime.rank() == 3 ? (is_cast ? -1.0 : -256.0) : 0.0;
      });
      allreduce(
          tensor.view(), tensor.view(),
          {.op = ReduceOp::Sum, .compression = compression, .compression_scope = kBetweenNodes});
      tensor.expect([&](std::size_t) { return is_cast ? 0.5 : 1.0; },
                    std::string(compression.name()));
    }
  });
}

/// Operations that wait simultaneously run in one batch only if their compression is the same.
TEST(CompressionScopePrecisionTest, OperationsOfBothScopes_AreNotFused) {
  run_runtimes(on_nodes("Even", 4, 2), [](Runtime& runtime) {
    const double own =
        std::array{257.0, -255.5, 0.0, -1.0}[static_cast<std::size_t>(runtime.rank())];
    std::vector<Tensor> tensors;
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < 20; ++i) {
      tensors.emplace_back(60);
      tensors.back().fill([&](std::size_t) { return own; });
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      handles.push_back(allreduce_async(
          tensors[i].view(), tensors[i].view(),
          {.op = ReduceOp::Sum,
           .compression = Compression::bf16(),
           .compression_scope = i % 2 == 0 ? CompressionScope::Everywhere : kBetweenNodes,
           .name = std::to_string(i)}));
    }
    for (Handle& handle : handles) handle.wait();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(tensors[i].at(7) == 0.5, i % 2 == 1) << i << ": " << tensors[i].at(7);
    }
  });
}

/// On one node, results, bytes and residuals are the same as without compression.
TEST(CompressionScopeNodeTest, OnOneNode_NothingIsCompressed) {
  run_runtimes(on_nodes("One", 3, 1), [](Runtime& runtime) {
    const auto reduce = [&](const AllreduceOptions& options) {
      Tensor tensor(4000);
      tensor.fill([&](std::size_t i) { return std::sin(static_cast<double>(i + 1)); });
      const std::uint64_t before = runtime.world().metrics().bytes_sent;
      allreduce(tensor.view(), tensor.view(), options);
      std::vector<double> values(tensor.count());
      for (std::size_t i = 0; i < tensor.count(); ++i) values[i] = tensor.at(i);
      values.push_back(static_cast<double>(runtime.world().metrics().bytes_sent - before));
      return values;
    };
    const std::vector<double> plain = reduce({});
    std::vector<float> residual(4000, 0.5f);
    for (const Compression& compression :
         {Compression::fp16(), Compression::int8(), Compression::one_bit()}) {
      const bool has_codec = compression != Compression::fp16();
      EXPECT_EQ(reduce({.compression = compression,
                        .compression_scope = kBetweenNodes,
                        .residual = has_codec ? residual.data() : nullptr}),
                plain)
          << compression.name();
    }
    EXPECT_EQ(residual, std::vector<float>(4000, 0.5f));
  });
}

TEST_P(CompressionScopeTest, ResidualsOfPieces_LoseNothing) {
  run([&](Runtime& runtime) {
    constexpr std::int64_t kCount = 20000;
    for (const Compression& compression : {Compression::int8(), Compression::top_k(0.05)}) {
      const auto [begin, count] = encoded_between_nodes(kCount);
      std::vector<float> residual(static_cast<std::size_t>(count) + 1);
      residual.back() = 77.0f;  // nothing is written past the piece
      Tensor balance(kCount, DType::Float64);
      std::vector<double> given(static_cast<std::size_t>(kCount));
      std::vector<double> applied(static_cast<std::size_t>(kCount));
      for (int step = 0; step < 5; ++step) {
        Tensor tensor(kCount);
        tensor.fill([&](std::size_t i) {
          return std::cos(static_cast<double>(i + 1) * (runtime.rank() + 2) + step);
        });
        for (std::size_t i = 0; i < tensor.count(); ++i) given[i] += tensor.at(i);
        allreduce(tensor.view(), tensor.view(),
                  {.op = ReduceOp::Sum,
                   .compression = compression,
                   .compression_scope = kBetweenNodes,
                   .residual = residual.data()});
        for (std::size_t i = 0; i < tensor.count(); ++i) applied[i] += tensor.at(i);
      }
      EXPECT_EQ(residual.back(), 77.0f);
      EXPECT_EQ(std::ranges::any_of(residual, [](float r) { return r != 0 && r != 77.0f; }),
                nodes() > 1 && count > 0);
      balance.fill([&, begin = begin, count = count](std::size_t i) {
        const auto place = static_cast<std::int64_t>(i) - begin;
        return given[i] -
               (place >= 0 && place < count ? residual[static_cast<std::size_t>(place)] : 0.0f);
      });
      allreduce(balance.view(), balance.view(), {.op = ReduceOp::Sum});
      for (std::size_t i = 0; i < applied.size(); ++i) {
        ASSERT_NEAR(applied[i], balance.at(i), 2e-4 * size()) << compression.name() << " " << i;
      }
    }
  });
}

/// Two nodes of one rank each, which send half a tensor twice.
TEST(CompressionScopeBytesTest, CastsHalveWhatNodesSend) {
  run_runtimes(on_nodes("Single", 2, 2), [](Runtime& runtime) {
    Tensor tensor(4096);
    const auto bytes = [&](const AllreduceOptions& options) {
      const std::uint64_t before = runtime.world().metrics().bytes_sent;
      allreduce(tensor.view(), tensor.view(), options);
      return runtime.world().metrics().bytes_sent - before;
    };
    EXPECT_EQ(bytes({}), 4096U * 4);
    EXPECT_EQ(bytes({.compression = Compression::fp16(), .compression_scope = kBetweenNodes}),
              4096U * 2);
    EXPECT_EQ(bytes({.compression = Compression::int8(), .compression_scope = kBetweenNodes}),
              2048U / 256 * 260 * 2);
  });
}

/// A process set whose ranks lie on one node, in a world of two nodes.
TEST(CompressionScopeSetTest, NodesAreThoseOfTheSet) {
  run_runtimes(on_nodes("Even", 4, 2), [](Runtime& runtime) {
    ProcessSet& first = runtime.add_process_set({0, 1});
    ProcessSet& mixed = runtime.add_process_set({1, 2, 3});
    for (ProcessSet* const set : {&first, &mixed}) {
      if (!set->included()) continue;
      Tensor tensor(3000);
      tensor.fill([&](std::size_t i) { return 0.1 * input_value(set->rank(), i); });
      allreduce(tensor.view(), tensor.view(),
                {.op = ReduceOp::Sum,
                 .compression = Compression::one_bit(),
                 .compression_scope = kBetweenNodes,
                 .process_set = set});
      double largest = 0;
      for (std::size_t i = 0; i < tensor.count(); ++i) {
        largest = std::max(largest, std::fabs(tensor.at(i) - 0.1 * input_sum(set->size(), i)));
      }
      EXPECT_EQ(largest > 0.01, set == &mixed) << largest;
      const std::int64_t own = encoded_between_nodes(3000, set).count;
      EXPECT_EQ(own,
                set == &mixed ? (set->rank() == 2 ? 0 : 3000) : (set->rank() == 0 ? 1504 : 1496));
    }
  });
}

TEST(CompressionScopeJoinTest, JoinedRanksSendZeros) {
  run_runtimes(on_nodes("Uneven", 3, 2), [](Runtime& runtime) {
    if (runtime.rank() > 0) {
      Tensor tensor(700);
      tensor.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
      allreduce(tensor.view(), tensor.view(),
                {.compression = Compression::top_k(1.0),
                 .compression_scope = kBetweenNodes,
                 .join_divisor = JoinDivisor::Active});
      tensor.expect([](std::size_t i) { return (input_value(1, i) + input_value(2, i)) / 2; },
                    "of two", 1e-6);
    }
    join();
  });
}

TEST(CompressionScopeErrorsTest, WhatItIsNotFor_RaisesOnAllRanks) {
  run_runtimes(on_nodes("Uneven", 3, 2), [](Runtime& runtime) {
    Tensor tensor(12);
    tensor.fill([](std::size_t i) { return static_cast<double>(i); });
    Tensor rows(4);
    expect_contains(text_thrown_by<InvalidArgument>([&] {
                      allreduce(tensor.view(), tensor.view(),
                                {.op = ReduceOp::Max, .compression_scope = kBetweenNodes});
                    }),
                    "compression_scope BetweenNodes is for Average and Sum, not Max");
    expect_contains(text_thrown_by<InvalidArgument>([&] {
                      reduce_scatter(
                          tensor.view(), rows.view(),
                          {.compression = Compression::int8(), .compression_scope = kBetweenNodes});
                    }),
                    "is for all-reduces, not reduce_scatter");
    const bool is_other = runtime.rank() == 1;
    const std::string text = text_thrown_by<MismatchError>([&] {
      allreduce(tensor.view(), tensor.view(),
                {.compression = Compression::int8(),
                 .compression_scope = is_other ? kBetweenNodes : CompressionScope::Everywhere});
    });
    expect_contains(text, "compression scope");
    expect_contains(text, "between nodes");
    expect_contains(text, "everywhere");
    expect_contains(text, "rank 1");
    expect_sum_works(runtime, "afterwards");
  });
}

}  // namespace kolo::test::compression_scope_test
