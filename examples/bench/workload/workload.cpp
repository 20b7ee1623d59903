#include "bench/workload/workload.hpp"

#include <algorithm>

namespace bench {

std::size_t input_count(Operation operation, std::size_t count, int ranks) {
  const bool is_for_each =
      operation == Operation::ReduceScatter || operation == Operation::AllToAll;
  return is_for_each ? count * static_cast<std::size_t>(ranks) : count;
}

std::size_t output_count(Operation operation, std::size_t count, int ranks) {
  const bool is_from_each = operation == Operation::AllGather || operation == Operation::AllToAll;
  return is_from_each ? count * static_cast<std::size_t>(ranks) : count;
}

std::size_t element_count(const Workload& workload, int ranks) {
  std::size_t elements = 0;
  for (const std::size_t count : workload.counts) {
    elements += std::max(input_count(workload.operation, count, ranks),
                         output_count(workload.operation, count, ranks));
  }
  return elements;
}

std::size_t size_bytes(const Workload& workload, int ranks) {
  return element_count(workload, ranks) * kolo::size_of(workload.dtype);
}

Workload workload_of(Operation operation, kolo::DType dtype, std::size_t bytes, int tensors,
                     int ranks) {
  const auto parts = static_cast<std::size_t>(tensors);
  const std::size_t unit = element_count({operation, dtype, {1}}, ranks);
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): there is a rank, so `unit` is not zero
  const std::size_t count = std::max<std::size_t>(bytes / kolo::size_of(dtype) / unit / parts, 1);
  return {operation, dtype, std::vector<std::size_t>(parts, count)};
}

double bus_factor(Operation operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (operation) {
    case Operation::AllReduce: return 2 * others;
    case Operation::Broadcast: return ranks > 1 ? 1 : 0;
    default: return others;
  }
}

}  // namespace bench
