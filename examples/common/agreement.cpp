#include "common/agreement.hpp"

#include <cstddef>
#include <cstdio>

#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"

namespace examples {
namespace {

template <class T>
kolo::TensorView view(T& value, kolo::DType dtype) {
  return {.data = &value, .dtype = dtype, .shape = {1}};
}

}  // namespace

bool all_ranks_succeeded(std::string_view error) {
  const int size = kolo::size();
  std::int32_t first = error.empty() ? size : kolo::rank();
  const kolo::TensorView tensor = view(first, kolo::DType::Int32);
  kolo::allreduce(tensor, tensor, {.op = kolo::ReduceOp::Min, .name = "first rank that failed"});
  if (first == kolo::rank()) {
    std::fprintf(stderr, "error: %.*s\n", static_cast<int>(error.size()), error.data());
  }
  return first == size;
}

std::vector<int> ranks_that_differ(std::uint64_t digest) {
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(kolo::size()));
  kolo::allgather(view(digest, kolo::DType::Int64),
                  [&](const std::vector<std::int64_t>&) -> void* { return digests.data(); },
                  {.name = "digests"});
  std::vector<int> different;
  for (std::size_t rank = 0; rank < digests.size(); ++rank) {
    if (digests[rank] != digests[0]) different.push_back(static_cast<int>(rank));
  }
  return different;
}

double mean_over_ranks(double value) {
  const kolo::TensorView tensor = view(value, kolo::DType::Float64);
  kolo::allreduce(tensor, tensor, {.op = kolo::ReduceOp::Average, .name = "mean over ranks"});
  return value;
}

double largest_over_ranks(double value) {
  const kolo::TensorView tensor = view(value, kolo::DType::Float64);
  kolo::allreduce(tensor, tensor, {.op = kolo::ReduceOp::Max, .name = "largest over ranks"});
  return value;
}

std::vector<double> mean_over_ranks(std::vector<double> values) {
  const kolo::TensorView tensor{.data = values.data(),
                                .dtype = kolo::DType::Float64,
                                .shape = {static_cast<std::int64_t>(values.size())}};
  kolo::allreduce(tensor, tensor, {.op = kolo::ReduceOp::Average, .name = "means over ranks"});
  return values;
}

std::string training_error(const TrainedDigests& digests) {
  const bool ranks_agree = ranks_that_differ(digests.together.value()).empty();
  const std::size_t own_batches = ranks_that_differ(digests.alone.value()).size() + 1;
  if (digests.together.value() == digests.start.value()) return "the parameters did not change";
  if (!ranks_agree) return "the parameters differ between ranks";
  if (own_batches != static_cast<std::size_t>(kolo::size())) return "ranks had the same batches";
  return "";
}

}  // namespace examples
