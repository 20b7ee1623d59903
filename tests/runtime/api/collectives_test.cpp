// Broadcasts, all-gathers and mixtures of them on plain memory, in every kind of world, against
// closed forms.
#include "kolo/collectives.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"
#include "runtime/every_world.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::collectives_test {

class CollectivesTest : public EveryWorldTest {};

INSTANTIATE_TEST_SUITE_P(, CollectivesTest, testing::ValuesIn(all_settings()), name_of_setting);

TEST_P(CollectivesTest, Broadcast_WorksFromEveryRoot) {
  run([&](Runtime& runtime) {
    for (int root = 0; root < size(); ++root) {
      for (const DType dtype : {DType::Float32, DType::Int64, DType::Bool, DType::BFloat16}) {
        for (const std::int64_t rows : {0, 1, 3001}) {
          Tensor tensor(dtype, {rows, 2});
          const auto value = [&](int rank, std::size_t i) {
            const auto mixed = i * 5 + static_cast<std::size_t>(rank) * 3;
            return static_cast<double>(mixed % (dtype == DType::Bool ? 2 : 101));
          };
          tensor.fill([&](std::size_t i) { return value(runtime.rank(), i); });
          broadcast(tensor.view(), root);
          tensor.expect([&](std::size_t i) { return value(root, i); },
                        "root " + std::to_string(root) + ", rows " + std::to_string(rows));
        }
      }
    }
  });
}

/// An all-gather with `rows_of(r)` rows of three elements from rank r.
template <class RowsOf>
void expect_gathered(const Runtime& runtime, RowsOf rows_of, DType dtype, const std::string& name) {
  const auto value = [](int rank, std::size_t i) {
    return static_cast<double>(20 * rank) + static_cast<double>(i % 19);
  };
  Tensor input(dtype, {rows_of(runtime.rank()), 3});
  input.fill([&](std::size_t i) { return value(runtime.rank(), i); });
  Rows output{dtype, 3};
  allgather(input.view(), output.allocator(), {.name = name});
  ASSERT_EQ(output.counts.size(), static_cast<std::size_t>(runtime.size())) << name;
  std::size_t at = 0;
  for (int rank = 0; rank < runtime.size(); ++rank) {
    ASSERT_EQ(output.counts[static_cast<std::size_t>(rank)], rows_of(rank)) << name;
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows_of(rank)) * 3; ++i, ++at) {
      ASSERT_EQ(output.at(at), value(rank, i)) << name << ": element " << i << " of rank " << rank;
    }
  }
}

TEST_P(CollectivesTest, AllGather_TakesUnevenRows) {
  run([&](Runtime& runtime) {
    const auto equal = [](int) { return std::int64_t{4}; };
    const auto uneven = [](int rank) { return std::int64_t{1 + 2 * rank} % 3 * 5; };  // 5 0 10 5
    const auto last_only = [&](int rank) { return std::int64_t{rank == size() - 1 ? 700 : 0}; };
    const auto none = [](int) { return std::int64_t{0}; };
    expect_gathered(runtime, equal, DType::Float32, "equal");
    expect_gathered(runtime, uneven, DType::Int16, "uneven");
    expect_gathered(runtime, last_only, DType::Float64, "one only");
    expect_gathered(runtime, none, DType::Float32, "none");
    expect_gathered(runtime, equal, DType::Float32, "uneven later");
    expect_gathered(runtime, uneven, DType::Float32, "uneven later");  // rows may change
  });
}

TEST_P(CollectivesTest, EmptyTensors_TakePart) {
  run([&](Runtime& runtime) {
    Tensor empty(DType::Float32, {3, 0, 2});
    std::vector<Handle> handles;
    handles.push_back(allreduce_async(empty.view(), empty.view(), {.name = "empty"}));
    Tensor full(6);
    full.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    handles.push_back(
        allreduce_async(full.view(), full.view(), {.op = ReduceOp::Sum, .name = "full"}));
    TensorView nothing;
    nothing.shape = {0};
    handles.push_back(allreduce_async(nothing, nothing, {.op = ReduceOp::Sum, .name = "nothing"}));
    for (Handle& handle : handles) handle.wait();
    full.expect([&](std::size_t i) { return input_sum(size(), i); }, "full");
  });
}

TEST_P(CollectivesTest, ManyInDifferentOrders_AllComplete) {
  run([&](Runtime& runtime) {
    constexpr std::size_t kTensors = 40;
    constexpr DType kTypes[] = {DType::Float32, DType::Float32, DType::Float64, DType::Int32};
    std::vector<Tensor> tensors;
    for (std::size_t t = 0; t < kTensors; ++t) {
      tensors.emplace_back(static_cast<std::int64_t>(t * t % 50 + (t == 20 ? 3000 : 1)),
                           kTypes[t % 4]);
    }
    std::vector<std::size_t> order(kTensors);
    for (std::size_t step = 0; step < 5; ++step) {
      // 7 and 40 are coprime, so this is a permutation, a different one on every rank.
      const auto shift = static_cast<std::size_t>(runtime.rank()) * 13 + step;
      for (std::size_t i = 0; i < kTensors; ++i) order[i] = (i * 7 + shift) % kTensors;
      std::vector<Handle> handles(kTensors);
      for (const std::size_t t : order) {
        tensors[t].fill([&](std::size_t i) { return input_value(runtime.rank(), i, t + step); });
        handles[t] = allreduce_async(tensors[t].view(), tensors[t].view(),
                                     {.op = ReduceOp::Sum, .name = "tensor " + std::to_string(t)});
      }
      std::reverse(order.begin(), order.end());
      for (const std::size_t t : order) {
        handles[t].wait();
        tensors[t].expect([&](std::size_t i) { return input_sum(size(), i, t + step); },
                          "tensor " + std::to_string(t) + " in step " + std::to_string(step));
      }
    }
  });
}

TEST_P(CollectivesTest, UnnamedOperations_AreMatchedByTheOrderOfCalls) {
  run([&](Runtime& runtime) {
    Tensor a(4);
    Tensor b(6);
    Tensor c(4);
    const auto value = [&](std::size_t salt) {
      return [&, salt](std::size_t i) { return input_value(runtime.rank(), i, salt); };
    };
    a.fill(value(1));
    b.fill(value(2));
    c.fill(value(3));
    Handle first = allreduce_async(a.view(), a.view(), {.op = ReduceOp::Sum});
    Handle second = allreduce_async(b.view(), b.view(), {.op = ReduceOp::Sum});
    Handle third = broadcast_async(c.view(), size() - 1);
    third.wait();
    second.wait();
    first.wait();
    a.expect([&](std::size_t i) { return input_sum(size(), i, 1); }, "first");
    b.expect([&](std::size_t i) { return input_sum(size(), i, 2); }, "second");
    c.expect([&](std::size_t i) { return input_value(size() - 1, i, 3); }, "third");
  });
}

TEST(CollectivesArgumentsTest, InvalidArguments_AreRejectedAtTheCall) {
  run_runtimes(1, [](Runtime&) {
    Tensor floats(3);
    Tensor more(4);
    Tensor doubles(3, DType::Float64);
    Tensor bools(3, DType::Bool);
    Tensor scalar(DType::Float32, {});
    TensorView no_memory{nullptr, DType::Float32, {3}, {}};
    TensorView on_gpu = floats.view();
    on_gpu.device.kind = DeviceKind::Cuda;
    const auto refused = [](auto call) { return text_thrown_by<InvalidArgument>(call); };
    const auto never_called = [](const std::vector<std::int64_t>&) -> void* { return nullptr; };

    expect_contains(refused([&] { allreduce(floats.view(), more.view(), {.name = "x"}); }), "'x'");
    expect_contains(refused([&] { allreduce(floats.view(), doubles.view()); }), "dtype");
    expect_contains(refused([&] { allreduce(bools.view(), bools.view()); }), "bool");
    expect_contains(refused([&] { allreduce(no_memory, no_memory); }), "no memory");
    expect_contains(refused([&] { allreduce(on_gpu, on_gpu); }), "CUDA");
    expect_contains(refused([&] { broadcast(floats.view(), 1); }), "root rank 1");
    expect_contains(refused([&] { broadcast(floats.view(), -1); }), "root rank -1");
    expect_contains(refused([&] { allgather(scalar.view(), never_called); }), "scalar");
    expect_contains(refused([&] {
                      allreduce(floats.view(), floats.view(),
                                {.compression = Compression::named("zip")});
                    }),
                    "zip");
  });
}

}  // namespace kolo::test::collectives_test
