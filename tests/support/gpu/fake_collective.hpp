#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/gpu/device_communicator.hpp"
#include "support/gpu/happens_before.hpp"

namespace kolo::test {

/// One rank's call of a DeviceCommunicator.
struct FakeCall {
  enum class Kind : std::uint8_t { AllReduce, ReduceScatter, AllGather, Broadcast, AllToAll };

  Kind kind;
  const std::byte* input;
  std::byte* output;
  std::vector<std::size_t> counts;      ///< one, or one a rank; those sent of AllToAll
  std::vector<std::size_t> received{};  ///< AllToAll only
  DType dtype;
  comm::DeviceReduction reduction{};
  int root = 0;
};

/// As in "all_reduce of 5 float32 by Sum".
std::string describe(const FakeCall& call);

/// Throws InvalidArgument for what NCCL does not know, and for another number of counts than ranks.
void check_call(const FakeCall& call, int ranks);

/// What the call of `rank` reads and writes.
MemoryOperation accesses_of(const FakeCall& call, int rank);

/// Why input and output must not lie as they do; empty where they may.
std::string misplacement_of(const FakeCall& call, int rank);

/// What two ranks call differently; empty where all fit together.
std::string disagreement_among(std::span<const FakeCall> calls);

/// Does what all ranks have called, which fits together.
void carry_out(std::span<const FakeCall> calls);

}  // namespace kolo::test
