#include "bench/mpi_cases.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

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

void allreduce(const void* input, void* output, int count, MPI_Datatype type) {
  MPI_Allreduce(input, output, count, type, MPI_SUM, MPI_COMM_WORLD);
}

void reduce_scatter(const void* input, void* output, int count, MPI_Datatype type) {
  static std::vector<int> counts(static_cast<std::size_t>(size_of_world()));
  std::ranges::fill(counts, count);
  MPI_Reduce_scatter(input, output, counts.data(), type, MPI_SUM, MPI_COMM_WORLD);
}

void reduce_scatter_block(const void* input, void* output, int count, MPI_Datatype type) {
  MPI_Reduce_scatter_block(input, output, count, type, MPI_SUM, MPI_COMM_WORLD);
}

void allgather(const void* input, void* output, int count, MPI_Datatype type) {
  MPI_Allgather(input, count, type, output, count, type, MPI_COMM_WORLD);
}

void broadcast(const void* /*input*/, void* output, int count, MPI_Datatype type) {
  MPI_Bcast(output, count, type, 0, MPI_COMM_WORLD);
}

void alltoall(const void* input, void* output, int count, MPI_Datatype type) {
  MPI_Alltoall(input, count, type, output, count, type, MPI_COMM_WORLD);
}

std::vector<MpiCall> calls_of(Operation operation) {
  switch (operation) {
    case Operation::AllReduce: return {{"MPI_Allreduce", allreduce}};
    case Operation::ReduceScatter:
      return {{"MPI_Reduce_scatter", reduce_scatter},
              {"MPI_Reduce_scatter_block", reduce_scatter_block}};
    case Operation::AllGather: return {{"MPI_Allgather", allgather}};
    case Operation::Broadcast: return {{"MPI_Bcast", broadcast}};
    case Operation::AllToAll: return {{"MPI_Alltoall", alltoall}};
  }
  return {};
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
  for (const MpiCall& call : calls_of(workload.operation)) add_cases(workload, call, cases);
  return cases;
}

void MpiCases::add_cases(const Workload& workload, const MpiCall& call, std::vector<Case>& cases) {
  if (workload.counts.size() > 1) {
    cases.push_back(make_case(workload, call, can_be_in_place(workload.operation)));
    cases.back().label.algorithm += " each";
    cases.back().label.reference = "each";
    cases.push_back(make_flat(workload, call));
    return;
  }
  if (can_be_in_place(workload.operation)) cases.push_back(make_case(workload, call, true));
  if (can_be_out_of_place(workload.operation)) cases.push_back(make_case(workload, call, false));
}

Case MpiCases::make_case(const Workload& workload, const MpiCall& call, bool in_place) {
  const Layout layout = plan_layout(workload, in_place, rank_in_world(), size_of_world());
  Case bench_case{{.algorithm = call.name,
                   .placement = "private",
                   .in_place = in_place,
                   .reference = kReference},
                  layout.at(memory_.reserve(layout.size_bytes)),
                  {}};
  if (in_place && workload.operation == Operation::ReduceScatter) {
    for (Tensor& tensor : bench_case.tensors) tensor.output = tensor.input;  // MPI requires it
  }
  bench_case.run = [run = call.run, type = mpi_type(workload.dtype), in_place,
                    tensors = bench_case.tensors] {
    for (const Tensor& tensor : tensors) {
      run(in_place ? MPI_IN_PLACE : tensor.input, tensor.output, static_cast<int>(tensor.count),
          type);
    }
  };
  return bench_case;
}

Case MpiCases::make_flat(const Workload& workload, const MpiCall& call) {
  Workload flat = workload;
  flat.counts = {std::accumulate(flat.counts.begin(), flat.counts.end(), std::size_t{0})};
  Case bench_case = make_case(flat, call, can_be_in_place(flat.operation));
  bench_case.label.algorithm += " flat";
  bench_case.label.reference = kFlat;
  return bench_case;
}

}  // namespace bench
