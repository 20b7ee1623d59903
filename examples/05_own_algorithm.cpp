// A custom all-reduce algorithm and a custom reduction: both are passed to the Runtime and selected
// by name.
//
//   mpirun -np 2 05_own_algorithm
#include <algorithm>
#include <cstdio>
#include <span>
#include <vector>

#include "kolo/algorithm.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace {

/// accumulator[i] = the value farther from zero. Only for float32, like this whole example.
void keep_larger_magnitude(kolo::DType, const void* next, void* accumulator, std::size_t count) {
  const auto* from = static_cast<const float*>(next);
  auto* to = static_cast<float*>(accumulator);
  for (std::size_t i = 0; i < count; ++i) {
    if (from[i] * from[i] > to[i] * to[i]) to[i] = from[i];
  }
}

void fill_zero(kolo::DType, void* values, std::size_t count) {
  std::fill_n(static_cast<float*>(values), count, 0.0f);
}

/// Sends everything to rank 0 and back, one segment after another: simple, and slow on many ranks.
/// It never blocks, but suspends at every co_await until the awaitable is ready.
kolo::Task star(kolo::CollectiveCall call) {
  constexpr int kInputs = 0;
  constexpr int kResult = 1;
  kolo::Communicator& communicator = *call.communicator;
  const std::size_t element_bytes = kolo::size_of(call.dtype);
  const std::size_t total_bytes = call.count * element_bytes;
  std::vector<std::vector<std::byte>> received(static_cast<std::size_t>(communicator.size()));
  for (std::size_t begin = 0; begin < total_bytes; begin += call.segment_bytes) {
    const std::size_t bytes = std::min(call.segment_bytes, total_bytes - begin);
    const std::byte* input = call.input + begin;
    std::byte* output = call.output + begin;
    if (communicator.rank() > 0) {
      co_await communicator.send({input, bytes}, 0, kInputs);
      co_await communicator.receive({output, bytes}, 0, kResult);
      continue;
    }
    std::vector<const std::byte*> inputs{input};
    for (int other = 1; other < communicator.size(); ++other) {
      std::vector<std::byte>& place = received[static_cast<std::size_t>(other)];
      place.resize(bytes);
      co_await communicator.receive(place, other, kInputs);
      inputs.push_back(place.data());
    }
    kolo::combine(call.dtype, call.reduction, inputs, {&output, 1}, bytes / element_bytes);
    for (int other = 1; other < communicator.size(); ++other) {
      co_await communicator.send({output, bytes}, other, kResult);
    }
  }
}

}  // namespace

int main() {
  kolo::InitOptions options;
  options.algorithms.push_back({.name = "star",
                                .collective = kolo::Collective::AllReduce,
                                .needs = kolo::Needs::Messages,
                                .rank_ordered = true,
                                .run = star});
  options.reductions.push_back(
      {.name = "larger magnitude", .combine = keep_larger_magnitude, .fill_identity = fill_zero});
  options.config.algorithm = "allreduce:star";
  kolo::Runtime runtime(options);

  constexpr std::size_t kCount = 300'000;  // several segments
  const auto rank = static_cast<float>(runtime.rank());
  const float pattern[] = {rank, -2 * rank, 0.5f - rank};
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = pattern[i % 3];
  const kolo::TensorView view{values.data(), kolo::DType::Float32, {kCount}};
  kolo::allreduce(view, view, {.op = kolo::ReduceOp::Custom, .custom = "larger magnitude"});
  std::printf("rank %d: %g %g %g … %g\n", runtime.rank(), values[0], values[1], values[2],
              values.back());
  return 0;
}
