#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/workload/workload.hpp"

namespace bench {

/// Where a tensor lies. Input and output may be the same memory, or one a part of the other.
struct Tensor {
  std::byte* input;
  std::byte* output;
  std::size_t count;  ///< as in Workload
};

/// The reference that is one call on all tensors of a group, as one tensor.
inline constexpr const char* kFlat = "flat";

/// How a case is told from others; the same on all ranks.
struct Label {
  std::string algorithm;
  std::string placement;  ///< "staged": private memory; "window": shared; "private": MPI's
  bool in_place = true;
  std::string compression = "none";
  std::string reference{};  ///< what others are compared with; empty: one of the others
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Label, algorithm, placement, in_place, compression, reference)

/// One way to do a workload.
struct Case {
  Label label;
  std::vector<Tensor> tensors;
  std::function<void()> run;
};

/// Offsets of a rank's tensors in one stretch of memory, each input and output at a multiple of 64
/// bytes of its own.
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

/// Whether there is a form of it for memory that all ranks reach: what a rank gives must lie there,
/// and that of an all-reduce or all-gather is a part of its output.
constexpr bool can_be_in_window(Operation operation, bool in_place) {
  return in_place || operation == Operation::ReduceScatter || operation == Operation::AllToAll;
}

}  // namespace bench
