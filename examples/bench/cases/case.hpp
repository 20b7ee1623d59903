#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/workload/workload.hpp"

namespace bench {

/// A tensor's memory. Input and output may be the same, or one may be part of the other.
struct Tensor {
  std::byte* input;
  std::byte* output;
  std::size_t count;  ///< as in Workload
};

/// The reference that runs one call on all tensors of a group as if they were one tensor.
inline constexpr const char* kFlat = "flat";

/// Identifies a case; the same on all ranks.
struct Label {
  std::string algorithm;
  std::string placement;  ///< "staged": private memory; "window": shared; "private": MPI's
  bool in_place = true;
  std::string compression = "none";
  std::string reference{};  ///< the baseline that it belongs to; empty: none
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Label, algorithm, placement, in_place, compression, reference)

/// One way to run a workload.
struct Case {
  Label label;
  std::vector<Tensor> tensors;
  std::function<void()> run;
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

}  // namespace bench
