#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "kolo/dtype.hpp"

namespace bench {

/// The measured collective. Messages between the programs contain its number.
enum class Operation { AllReduce, ReduceScatter, AllGather, Broadcast, AllToAll };

/// Their names on the command line.
inline constexpr std::array<std::string_view, 5> kOperationNames{
    "allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"};

constexpr std::string_view name_of(Operation operation) {
  return kOperationNames[static_cast<std::size_t>(operation)];
}

constexpr bool is_reduction(Operation operation) {
  return operation == Operation::AllReduce || operation == Operation::ReduceScatter;
}

/// Whether plain MPI supports this: it has no 16-bit floats and cannot add booleans.
constexpr bool mpi_supports(Operation operation, kolo::DType dtype) {
  return !is_reduction(operation) || !(kolo::is_half(dtype) || dtype == kolo::DType::Bool);
}

/// What all ranks run in one call of a case: the operation on each of several tensors. A tensor's
/// count is that of the whole buffer (AllReduce, Broadcast) or of one rank's block (the rest).
struct Workload {
  Operation operation = Operation::AllReduce;
  kolo::DType dtype = kolo::DType::Float32;
  std::vector<std::size_t> counts{};
};

/// The number of elements that a rank reads, and writes, for a tensor of `count`.
std::size_t input_count(Operation operation, std::size_t count, int ranks);
std::size_t output_count(Operation operation, std::size_t count, int ranks);

/// The elements, and bytes, in the larger of a rank's input and output: the size in nccl-tests.
std::size_t element_count(const Workload& workload, int ranks);
std::size_t size_bytes(const Workload& workload, int ranks);

/// `tensors` equal tensors, as large as fit into `bytes`, of at least one element each.
Workload workload_of(Operation operation, kolo::DType dtype, std::size_t bytes, int tensors,
                     int ranks);

/// The least that a rank must send, divided by `size_bytes`; the factor of nccl-tests.
double bus_factor(Operation operation, int ranks);

}  // namespace bench
