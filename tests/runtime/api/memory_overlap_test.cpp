// Memory of one operation that overlaps: what is refused, and what works in place.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"
#include "runtime/values.hpp"

namespace kolo::test::memory_overlap_test {

class MemoryOverlapTest : public testing::TestWithParam<Setting> {
 protected:
  void run(const std::function<void(Runtime&)>& body) { run_runtimes(GetParam(), body); }
};

std::vector<Setting> settings() {
  std::vector<Setting> all = three_ranks();
  all.push_back({.name = "Gpu", .size = 3, .network = {.gpus_per_rank = 1}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(, MemoryOverlapTest, testing::ValuesIn(settings()),
                         [](const auto& item) { return item.param.name; });

/// A view of `count` floats from element `begin` on.
TensorView part(const Tensor& tensor, std::int64_t begin, std::int64_t count) {
  TensorView view = tensor.view();
  view.data = static_cast<std::byte*>(view.data) + begin * 4;
  view.shape = {count};
  return view;
}

struct Case {
  std::string text;  ///< part of all ranks' errors
  /// `shift`: 0 where the memory is right, and one element on the rank where it overlaps.
  std::function<void(const Tensor&, std::int64_t shift)> call;
};

/// The tensor has 96 floats.
std::vector<Case> cases() {
  return {
      {"the output overlaps the input, which begins 4 bytes before it",
       [](const Tensor& tensor, std::int64_t shift) {
         allreduce(part(tensor, 0, 8), part(tensor, shift, 8), {.name = "x"});
       }},
      {"the input overlaps the output, which begins 4 bytes before it",
       [](const Tensor& tensor, std::int64_t shift) {
         allreduce(part(tensor, 8 + shift, 8), part(tensor, 8, 8), {.name = "x"});
       }},
      {"An output may be this rank's rows of its input",
       [](const Tensor& tensor, std::int64_t shift) {
         reduce_scatter(part(tensor, 0, 12), part(tensor, 4 * rank() - shift, 4), {.name = "x"});
       }},
      {"the tensor of tensor 1 overlaps the tensor of tensor 0",
       [](const Tensor& tensor, std::int64_t shift) {
         const TensorView first = part(tensor, 0, 8);
         const TensorView second = part(tensor, 8 - shift, 8);
         grouped_allreduce({{first, first}, {second, second}}, {.name = "x"});
       }},
      {"the output of tensor 0 overlaps the input of tensor 1",
       [](const Tensor& tensor, std::int64_t shift) {
         grouped_reduce_scatter({{part(tensor, 0, 12), part(tensor, 24 - 4 * shift, 4)},
                                 {part(tensor, 12, 12), part(tensor, 32, 4)}},
                                {.name = "x"});
       }},
      {"the tensor of tensor 1 overlaps the tensor of tensor 0",
       [](const Tensor& tensor, std::int64_t shift) {
         grouped_broadcast({part(tensor, 0, 8), part(tensor, 8 - shift, 8)}, 0, {.name = "x"});
       }},
      {"the residual overlaps the tensor",
       [](const Tensor& tensor, std::int64_t shift) {
         const TensorView view = part(tensor, 0, 8);
         allreduce(view, view,
                   {.compression = Compression::int8(),
                    .residual = static_cast<float*>(part(tensor, 8 - shift, 8).data),
                    .name = "x"});
       }},
  };
}

TEST_P(MemoryOverlapTest, OnOneRank_IsAnErrorOnAll) {
  run([](Runtime& runtime) {
    Tensor tensor(96);
    tensor.fill([](std::size_t) { return 0.0; });
    const std::int64_t shift = runtime.rank() == runtime.size() - 1 ? 1 : 0;
    std::vector<Case> all = cases();
    if (tensor_place != nullptr) all.pop_back();  // residuals are of codecs, for CPU memory
    for (const Case& item : all) {
      SCOPED_TRACE(item.text);
      item.call(tensor, 0);
      const std::string text = text_thrown_by<InvalidArgument>([&] { item.call(tensor, shift); });
      expect_contains(text, "rank 2: ");
      expect_contains(text, item.text);
    }
    expect_sum_works(runtime, "y");
  });
}

/// What a rank allocates wrongly ends its set: the others cannot wait to hear of it. On GPUs, where
/// they have launched the operation by then, the next one fails.
TEST_P(MemoryOverlapTest, OfAllocatedMemory_EndsTheSetOnAllRanks) {
  for (const bool is_gather : {true, false}) {
    run([&](Runtime& runtime) {
      const Tensor tensor(96);
      const Tensor other(96);
      const bool overlaps = runtime.rank() == 1;
      const AllocateRows allocate = [&](const auto&) {
        return overlaps ? part(tensor, 2, 1).data : other.view().data;
      };
      const std::string text = text_thrown_by<PeerLostError>([&] {
        const TensorView input = part(tensor, 0, 6);
        is_gather ? allgather(input, allocate, {.name = "x"})
                  : alltoall(input, {}, allocate, {.name = "x"});
        barrier();
      });
      expect_contains(text, "rank 1 failed: ");
      expect_contains(text, "the output overlaps the input, which begins 8 bytes before it");
    });
  }
}

TEST_P(MemoryOverlapTest, OwnRowsInPlace_AreRight) {
  run([](Runtime& runtime) {
    const std::int64_t own = runtime.rank();
    Tensor gathered(12);
    gathered.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    allgather(part(gathered, 4 * own, 4), [&](const auto&) { return gathered.view().data; });
    gathered.expect([](std::size_t i) { return input_value(static_cast<int>(i / 4), i); },
                    "gathered");

    Tensor scattered(12);
    const auto value = [](std::int64_t rank, std::size_t i) {
      return static_cast<double>((rank + 1) * (static_cast<std::int64_t>(i) + 1));
    };
    scattered.fill([&](std::size_t i) { return value(own, i); });
    reduce_scatter(scattered.view(), part(scattered, 4 * own, 4), {.op = ReduceOp::Sum});
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t place = static_cast<std::size_t>(4 * own) + i;
      EXPECT_EQ(scattered.at(place), value(0, place) + value(1, place) + value(2, place));
    }
  });
}

TEST_P(MemoryOverlapTest, InputsOfAGroup_MayBeOne) {
  run([](Runtime& runtime) {
    Tensor input(8);
    input.fill([&](std::size_t i) { return input_value(runtime.rank(), i); });
    const Tensor first(8);
    const Tensor second(8);
    grouped_allreduce({{input.view(), first.view()}, {input.view(), second.view()}},
                      {.op = ReduceOp::Sum});
    for (const Tensor* const sum : {&first, &second}) {
      sum->expect([](std::size_t i) { return input_sum(3, i); }, "sum");
    }
  });
}

TEST_P(MemoryOverlapTest, NoAllocateRows_IsAnErrorOnAllRanks) {
  run([](Runtime& runtime) {
    const Tensor tensor(6);
    const Tensor other(18);
    for (const bool is_gather : {true, false}) {
      AllocateRows allocate;
      if (runtime.rank() != 1) allocate = [&](const auto&) { return other.view().data; };
      const std::string text = text_thrown_by<InvalidArgument>([&] {
        is_gather ? allgather(tensor.view(), allocate, {.name = "x"})
                  : alltoall(tensor.view(), {}, allocate, {.name = "x"});
      });
      expect_contains(text, "rank 1: there is no AllocateRows");
    }
    expect_sum_works(runtime, "y");
  });
}

TEST_P(MemoryOverlapTest, NoMemoryForRows_EndsTheSetOnAllRanks) {
  run([](Runtime& runtime) {
    const Tensor tensor(6);
    const Tensor other(18);
    const AllocateRows allocate = [&](const auto&) -> void* {
      return runtime.rank() == 1 ? nullptr : other.view().data;
    };
    const std::string text = text_thrown_by<PeerLostError>([&] {
      allgather(tensor.view(), allocate, {.name = "x"});
      barrier();
    });
    expect_contains(text, "rank 1 failed: ");
    expect_contains(text, "AllocateRows returned null for 18 rows");
  });
}

}  // namespace kolo::test::memory_overlap_test
