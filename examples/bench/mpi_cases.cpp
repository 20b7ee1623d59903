#include "bench/mpi_cases.hpp"

#include <limits>
#include <numeric>
#include <string>

#include <mpi.h>

namespace bench {

namespace {

using kolo::DType;

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::UInt8:
    case DType::Bool: return MPI_UINT8_T;
    case DType::Int8: return MPI_INT8_T;
    case DType::Int16: return MPI_INT16_T;
    case DType::Float16:
    case DType::BFloat16: return MPI_UINT16_T;  // moved, never reduced
    case DType::Int32: return MPI_INT32_T;
    case DType::Int64: return MPI_INT64_T;
    case DType::Float32: return MPI_FLOAT;
    case DType::Float64: return MPI_DOUBLE;
    case DType::Complex64: return MPI_C_FLOAT_COMPLEX;
    case DType::Complex128: return MPI_C_DOUBLE_COMPLEX;
  }
  return MPI_BYTE;
}

const char* name_of_call(Operation operation) {
  switch (operation) {
    case Operation::AllReduce: return "MPI_Allreduce";
    case Operation::ReduceScatter: return "MPI_Reduce_scatter_block";
    case Operation::AllGather: return "MPI_Allgather";
    case Operation::Broadcast: return "MPI_Bcast";
    case Operation::AllToAll: return "MPI_Alltoall";
  }
  return "";
}

void call(Operation operation, const Tensor& tensor, MPI_Datatype type, bool in_place) {
  const auto count = static_cast<int>(tensor.count);
  const void* const input = in_place ? MPI_IN_PLACE : tensor.input;
  switch (operation) {
    case Operation::AllReduce:
      MPI_Allreduce(input, tensor.output, count, type, MPI_SUM, MPI_COMM_WORLD);
      break;
    case Operation::ReduceScatter:
      MPI_Reduce_scatter_block(input, tensor.output, count, type, MPI_SUM, MPI_COMM_WORLD);
      break;
    case Operation::AllGather:
      MPI_Allgather(input, count, type, tensor.output, count, type, MPI_COMM_WORLD);
      break;
    case Operation::Broadcast: MPI_Bcast(tensor.output, count, type, 0, MPI_COMM_WORLD); break;
    case Operation::AllToAll:
      MPI_Alltoall(input, count, type, tensor.output, count, type, MPI_COMM_WORLD);
      break;
  }
}

constexpr const char* kReference = "MPI";

}  // namespace

std::vector<Case> MpiCases::make(const Workload& workload) {
  if (!mpi_supports(workload.operation, workload.dtype)) return {};
  for (const std::size_t count : workload.counts) {
    if (count > std::numeric_limits<int>::max()) return {};  // more than MPI can count
  }
  memory_.reserve(plan_layout(workload, false, rank_in_world(), size_of_world()).size_bytes);
  std::vector<Case> cases;
  if (workload.counts.size() > 1) {
    cases.push_back(make_case(workload, can_be_in_place(workload.operation)));
    cases.back().label.algorithm += " each";
    cases.back().label.reference = "each";
    cases.push_back(make_flat(workload));
    return cases;
  }
  if (can_be_in_place(workload.operation)) cases.push_back(make_case(workload, true));
  if (can_be_out_of_place(workload.operation)) cases.push_back(make_case(workload, false));
  return cases;
}

Case MpiCases::make_case(const Workload& workload, bool in_place) {
  const Layout layout = plan_layout(workload, in_place, rank_in_world(), size_of_world());
  Case bench_case{{.algorithm = name_of_call(workload.operation),
                   .placement = "private",
                   .in_place = in_place,
                   .reference = kReference},
                  layout.at(memory_.reserve(layout.size_bytes)),
                  {}};
  if (in_place && workload.operation == Operation::ReduceScatter) {
    for (Tensor& tensor : bench_case.tensors) tensor.output = tensor.input;  // MPI requires it
  }
  bench_case.run = [operation = workload.operation, type = mpi_type(workload.dtype), in_place,
                    tensors = bench_case.tensors] {
    for (const Tensor& tensor : tensors) call(operation, tensor, type, in_place);
  };
  return bench_case;
}

Case MpiCases::make_flat(const Workload& workload) {
  Workload flat = workload;
  flat.counts = {std::accumulate(flat.counts.begin(), flat.counts.end(), std::size_t{0})};
  Case bench_case = make_case(flat, can_be_in_place(flat.operation));
  bench_case.label.algorithm += " flat";
  bench_case.label.reference = kFlat;
  return bench_case;
}

}  // namespace bench
