#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/gpu/device_communicator.hpp"
#include "support/gpu/happens_before.hpp"

namespace kolo::test {

/// One rank's call of a collective of DeviceCommunicator.
struct FakeCall {
  enum class Kind : std::uint8_t { AllReduce, ReduceScatter, AllGather, Broadcast, AllToAll };

  Kind kind;
  const std::byte* input;
  std::byte* output;
  std::vector<std::size_t> counts;      ///< one, or one per rank; for AllToAll the counts sent
  std::vector<std::size_t> received{};  ///< AllToAll only
  DType dtype;
  ReduceOp op = ReduceOp::Sum;
  int root = 0;
};

/// The memory of a call; a range that it does not use is empty.
struct CallMemory {
  ByteRange input;
  ByteRange output;
};

/// The calls of a group, or a single call.
struct FakeLaunch {
  std::vector<FakeCall> calls{};
  comm::DeviceStream stream = nullptr;
};

/// For example "all_reduce of 5 float32 by Sum".
std::string describe(const FakeCall& call);

/// Throws InvalidArgument for calls that NCCL does not support, and for a wrong number of counts.
void check_call(const FakeCall& call, int ranks);

CallMemory memory_of(const FakeCall& call, int rank);

/// The memory that `rank` reads and writes in this call.
MemoryOperation accesses_of(const FakeCall& call, int rank);

/// An error text if input and output overlap in a way that is not allowed; otherwise empty.
std::string find_invalid_overlap(const FakeCall& call, int rank);

/// An error text if calls of one group of `rank` access the same memory and one of them writes it;
/// otherwise empty. The calls of a group have no order.
std::string find_conflict(std::span<const FakeCall> calls, int rank);

/// An error text if the calls of two ranks differ; empty if all match.
std::string find_disagreement(std::span<const FakeCall> calls);

/// Executes the ranks' matching calls.
void carry_out(std::span<const FakeCall> calls);

}  // namespace kolo::test
