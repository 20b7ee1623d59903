#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "kolo/dtype.hpp"

namespace bench {

/// What is measured. The numbers travel between the programs.
enum class Operation { AllReduce, ReduceScatter, AllGather, Broadcast, AllToAll };

/// As on the command line.
inline constexpr std::array<std::string_view, 5> kOperationNames{
    "allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"};

constexpr std::string_view name_of(Operation operation) {
  return kOperationNames[static_cast<std::size_t>(operation)];
}

constexpr bool is_reduction(Operation operation) {
  return operation == Operation::AllReduce || operation == Operation::ReduceScatter;
}

/// Whether plain MPI has this: it knows no 16-bit floats and cannot add booleans.
constexpr bool mpi_can_do(Operation operation, kolo::DType dtype) {
  return !is_reduction(operation) || !(kolo::is_half(dtype) || dtype == kolo::DType::Bool);
}

/// One step of every rank: the operation on each of some tensors. A tensor's count is that of the
/// whole buffer (AllReduce, Broadcast) or of what one rank gives to another (the rest).
struct Workload {
  Operation operation = Operation::AllReduce;
  kolo::DType dtype = kolo::DType::Float32;
  std::vector<std::size_t> counts{};
};

/// Elements that a rank reads, and writes, for a tensor of `count`.
std::size_t input_count(Operation operation, std::size_t count, int ranks);
std::size_t output_count(Operation operation, std::size_t count, int ranks);

/// Elements, and bytes, of the larger of input and output of a rank: nccl-tests' size.
std::size_t element_count(const Workload& workload, int ranks);
std::size_t size_bytes(const Workload& workload, int ranks);

/// `tensors` equal ones, as large as they can be within `bytes`, at least one element each.
Workload workload_of(Operation operation, kolo::DType dtype, std::size_t bytes, int tensors,
                     int ranks);

/// What a rank must send at least, as a part of `size_bytes`; nccl-tests' factor.
double bus_factor(Operation operation, int ranks);

}  // namespace bench
