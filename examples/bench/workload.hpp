#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/algorithm.hpp"
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

constexpr kolo::Collective collective_of(Operation operation) {
  switch (operation) {
    case Operation::AllReduce: return kolo::Collective::AllReduce;
    case Operation::ReduceScatter: return kolo::Collective::ReduceScatter;
    case Operation::AllGather: return kolo::Collective::AllGather;
    case Operation::Broadcast: return kolo::Collective::Broadcast;
    case Operation::AllToAll: return kolo::Collective::AllToAll;
  }
  return kolo::Collective::AllReduce;
}

/// A tensor's memory. Input and output may be the same, or one may be part of the other.
struct Tensor {
  std::byte* input;
  std::byte* output;
  std::size_t count;  ///< as in Workload
};

/// Offsets of a rank's tensors in one contiguous block of memory. Separate inputs and outputs begin
/// at multiples of 64 bytes.
struct Layout {
  struct Place {
    std::size_t input;
    std::size_t output;
    std::size_t count;
  };
  std::vector<Place> places;
  std::size_t size_bytes = 0;

  std::vector<Tensor> at(std::byte* memory) const;
};

/// In place, an all-gather's input is this rank's part of the output, a reduce-scatter's output its
/// part of the input; an all-to-all cannot be in place, and a broadcast always is.
Layout plan_layout(const Workload& workload, bool in_place, int rank, int ranks);

constexpr bool can_be_in_place(Operation operation) { return operation != Operation::AllToAll; }
constexpr bool can_be_out_of_place(Operation operation) {
  return operation != Operation::Broadcast;
}

/// Whether Kolo has a variant for memory that all ranks can access. A rank's contribution must be
/// in that memory; an all-reduce or all-gather takes it from the output, so these are only in
/// place.
constexpr bool can_be_in_window(Operation operation, bool in_place) {
  return in_place || operation == Operation::ReduceScatter || operation == Operation::AllToAll;
}

/// Writes known inputs, and overwrites outputs so that they cannot hold the results already. Inputs
/// are whole numbers from 0 to 3 that differ by rank and element, so that their sums are exact in
/// every type.
void write_inputs(const Workload& workload, const std::vector<Tensor>& tensors, int rank,
                  int ranks);

/// The number of wrong output elements after the operation on such inputs.
std::uint64_t count_wrong(const Workload& workload, const std::vector<Tensor>& tensors, int rank,
                          int ranks);

/// Memory of one rank that grows on demand.
class GrowingBuffer {
 public:
  using Allocate = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

  /// Private CPU memory, aligned to 4096 bytes; every page has been written.
  GrowingBuffer();
  explicit GrowingBuffer(Allocate allocate);

  /// At least `bytes` of memory. Frees the current memory unless it is large enough.
  std::byte* reserve(std::size_t bytes);

  std::byte* data() const { return memory_.get(); }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  Allocate allocate_;
  std::shared_ptr<std::byte> memory_;
  std::size_t size_bytes_ = 0;
};

}  // namespace bench
