#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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
  std::vector<std::size_t> counts;      ///< one, or one per rank; of AllToAll those sent
  std::vector<std::size_t> received{};  ///< AllToAll only
  DType dtype;
  comm::DeviceReduction reduction{};
  int root = 0;
  /// Whether the communicator knew the memory when this was launched; empty for no memory.
  std::optional<bool> has_registered_input{};
  std::optional<bool> has_registered_output{};
};

/// What a call is given. Empty where it uses none.
struct CallMemory {
  ByteRange input;
  ByteRange output;
};

/// The calls of a group, or one.
struct FakeLaunch {
  std::vector<FakeCall> calls{};
  comm::DeviceStream stream = nullptr;
};

/// For example "all_reduce of 5 float32 by Sum".
std::string describe(const FakeCall& call);

/// Throws InvalidArgument for what NCCL does not support, and for a wrong number of counts.
void check_call(const FakeCall& call, int ranks);

CallMemory memory_of(const FakeCall& call, int rank);

/// What the call of `rank` reads and writes.
MemoryOperation accesses_of(const FakeCall& call, int rank);

/// Why input and output may not overlap like this; empty if they may.
std::string misplacement_of(const FakeCall& call, int rank);

/// Which calls of one group of `rank` are in each other's way; empty if none are. A group has no
/// order.
std::string conflict_among(std::span<const FakeCall> calls, int rank);

/// What differs between the calls of two ranks; empty if all match.
std::string disagreement_among(std::span<const FakeCall> calls);

/// Where the calls of all ranks mix registered memory with memory that is not; empty if they do
/// not. All have registered inputs or none does, and likewise outputs. Where elements are only
/// moved, inputs and outputs are alike, too.
std::string mixture_among(std::span<const FakeCall> calls);

/// Executes the matching calls of all ranks.
void carry_out(std::span<const FakeCall> calls);

}  // namespace kolo::test
