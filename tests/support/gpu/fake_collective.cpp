#include "support/gpu/fake_collective.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kolo/algorithm.hpp"
#include "kolo/error.hpp"

namespace kolo::test {
namespace {

using Kind = FakeCall::Kind;
using Counts = std::span<const std::size_t>;

/// The byte range of one rank's elements, which follow those of lower ranks.
struct Place {
  std::size_t offset;
  std::size_t size;
};

Place place_of(Counts counts, std::size_t rank, DType dtype) {
  const auto before = static_cast<std::ptrdiff_t>(rank);
  const std::size_t elements =
      std::accumulate(counts.begin(), counts.begin() + before, std::size_t{0});
  return {elements * size_of(dtype), counts[rank] * size_of(dtype)};
}

std::size_t bytes_of(Counts counts, DType dtype) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * size_of(dtype);
}

ByteRange input_of(const FakeCall& call, std::size_t rank) {
  const std::size_t size = call.kind == Kind::AllGather
                               ? place_of(call.counts, rank, call.dtype).size
                               : bytes_of(call.counts, call.dtype);
  return {call.input, size};
}

std::span<std::byte> output_of(const FakeCall& call, std::size_t rank) {
  switch (call.kind) {
    case Kind::ReduceScatter: return {call.output, place_of(call.counts, rank, call.dtype).size};
    case Kind::AllToAll: return {call.output, bytes_of(call.received, call.dtype)};
    case Kind::AllReduce:
    case Kind::AllGather:
    case Kind::Broadcast: break;
  }
  return {call.output, bytes_of(call.counts, call.dtype)};
}

bool is_reduction(const FakeCall& call) {
  return call.kind == Kind::AllReduce || call.kind == Kind::ReduceScatter;
}

void copy(ByteRange from, std::byte* to) {
  if (!from.empty()) std::memmove(to, from.data(), from.size());
}

std::string list_of(Counts counts) {
  std::string text;
  for (const std::size_t count : counts) {
    text += (text.empty() ? "" : " + ") + std::to_string(count);
  }
  return text;
}

std::string kind_name(Kind kind) {
  switch (kind) {
    case Kind::AllReduce: return "all_reduce";
    case Kind::ReduceScatter: return "reduce_scatter";
    case Kind::AllGather: return "all_gather";
    case Kind::Broadcast: return "broadcast";
    case Kind::AllToAll: return "all_to_all";
  }
  return {};
}

/// Whether two ranks' calls match: everything but AllToAll's counts must be equal.
bool agree(const FakeCall& one, const FakeCall& other) {
  return one.kind == other.kind && one.dtype == other.dtype && one.root == other.root &&
         one.op == other.op && (one.kind == Kind::AllToAll || one.counts == other.counts);
}

void reduce(std::span<const FakeCall> calls, const std::vector<std::vector<std::byte>>& inputs,
            Place place, std::span<std::byte* const> outputs) {
  std::vector<const std::byte*> contributions;
  for (const auto& input : inputs) contributions.push_back(input.data() + place.offset);
  const FakeCall& call = calls.front();
  if (place.size == 0) return;
  combine(call.dtype, {.op = call.op}, contributions, outputs, place.size / size_of(call.dtype));
}

}  // namespace

std::string describe(const FakeCall& call) {
  std::string text =
      kind_name(call.kind) + " of " + list_of(call.counts) + " " + std::string(name_of(call.dtype));
  if (is_reduction(call)) text += " by " + std::string(name_of(call.op));
  if (call.kind == Kind::Broadcast) text += " from rank " + std::to_string(call.root);
  if (call.kind == Kind::AllToAll) text += " for " + list_of(call.received);
  return text;
}

void check_call(const FakeCall& call, int ranks) {
  const bool is_by_rank = call.kind != Kind::AllReduce && call.kind != Kind::Broadcast;
  const std::size_t expected = is_by_rank ? static_cast<std::size_t>(ranks) : 1;
  if (call.counts.size() != expected ||
      (call.kind == Kind::AllToAll && call.received.size() != expected)) {
    throw InvalidArgument(describe(call) + ": expected counts of " + std::to_string(expected) +
                          " ranks, got " + std::to_string(call.counts.size()));
  }
  if (call.root < 0 || call.root >= ranks) {
    throw InvalidArgument(describe(call) + ": there are " + std::to_string(ranks) + " ranks");
  }
  if (!is_reduction(call)) return;
  const ReduceOp op = call.op;
  const bool is_order = op == ReduceOp::Min || op == ReduceOp::Max;
  const bool is_arithmetic = op == ReduceOp::Sum || op == ReduceOp::Product;
  const bool is_known =
      call.dtype != DType::Int16 && (is_order || (is_arithmetic && call.dtype != DType::Bool));
  if (!is_known) throw InvalidArgument(describe(call) + ": NCCL cannot reduce that");
}

CallMemory memory_of(const FakeCall& call, int rank) {
  const auto member = static_cast<std::size_t>(rank);
  return {input_of(call, member), output_of(call, member)};
}

MemoryOperation accesses_of(const FakeCall& call, int rank) {
  const auto member = static_cast<std::size_t>(rank);
  const ByteRange input = input_of(call, member);
  const ByteRange output = output_of(call, member);
  MemoryOperation operation{.name = describe(call)};
  if (call.kind == Kind::Broadcast) {
    (rank == call.root ? operation.reads : operation.writes).push_back(output);
    return operation;
  }
  operation.reads.push_back(input);
  // In place, the other ranks' pieces are scratch memory.
  const bool is_in_place = call.kind == Kind::ReduceScatter && overlap(input, output);
  operation.writes.push_back(is_in_place ? input : output);
  return operation;
}

std::string find_invalid_overlap(const FakeCall& call, int rank) {
  const auto member = static_cast<std::size_t>(rank);
  const ByteRange input = input_of(call, member);
  const ByteRange output = output_of(call, member);
  if (call.kind == Kind::Broadcast || !overlap(input, output)) return {};
  const std::size_t offset =
      call.kind == Kind::AllReduce ? 0 : place_of(call.counts, member, call.dtype).offset;
  const bool is_in_place = call.kind == Kind::ReduceScatter ? output.data() == input.data() + offset
                           : call.kind == Kind::AllGather   ? input.data() == output.data() + offset
                                                            : input.data() == output.data();
  if (is_in_place && call.kind != Kind::AllToAll) return {};
  return "in place: '" + describe(call) +
         "' has its input and output overlap in another way than "
         "it may";
}

std::string find_conflict(std::span<const FakeCall> calls, int rank) {
  const auto touches = [](const std::vector<ByteRange>& some,
                          const std::vector<ByteRange>& others) {
    return std::any_of(some.begin(), some.end(), [&](ByteRange one) {
      return std::any_of(others.begin(), others.end(),
                         [&](ByteRange other) { return overlap(one, other); });
    });
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const MemoryOperation later = accesses_of(calls[i], rank);
    for (std::size_t j = 0; j < i; ++j) {
      const MemoryOperation earlier = accesses_of(calls[j], rank);
      if (touches(later.writes, earlier.writes) || touches(later.writes, earlier.reads) ||
          touches(later.reads, earlier.writes)) {
        return "group: '" + earlier.name + "' and '" + later.name + "' use the same memory";
      }
    }
  }
  return {};
}

std::string find_disagreement(std::span<const FakeCall> calls) {
  const auto differ = [&](std::size_t one, std::size_t other) {
    return "ranks disagree: '" + describe(calls[one]) + "' on member " + std::to_string(one) +
           ", '" + describe(calls[other]) + "' on member " + std::to_string(other);
  };
  for (std::size_t member = 1; member < calls.size(); ++member) {
    if (!agree(calls[0], calls[member])) return differ(0, member);
  }
  if (calls[0].kind != Kind::AllToAll) return {};
  for (std::size_t from = 0; from < calls.size(); ++from) {
    for (std::size_t to = 0; to < calls.size(); ++to) {
      if (calls[from].counts[to] != calls[to].received[from]) return differ(from, to);
    }
  }
  return {};
}

void carry_out(std::span<const FakeCall> calls) {
  const std::size_t ranks = calls.size();
  const DType dtype = calls.front().dtype;
  std::vector<std::vector<std::byte>> inputs;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const ByteRange input = input_of(calls[rank], rank);
    inputs.emplace_back(input.begin(), input.end());
  }
  std::vector<std::byte*> outputs;
  for (const FakeCall& call : calls) outputs.push_back(call.output);

  const FakeCall& first = calls.front();
  switch (first.kind) {
    case Kind::AllReduce: reduce(calls, inputs, {0, inputs.front().size()}, outputs); return;
    case Kind::ReduceScatter:
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        reduce(calls, inputs, place_of(first.counts, rank, dtype), {&outputs[rank], 1});
      }
      return;
    case Kind::Broadcast:
      for (std::byte* const output : outputs) {
        copy(inputs[static_cast<std::size_t>(first.root)], output);
      }
      return;
    case Kind::AllGather:
    case Kind::AllToAll: break;
  }
  for (std::size_t to = 0; to < ranks; ++to) {
    std::byte* next = calls[to].output;
    for (std::size_t from = 0; from < ranks; ++from) {
      const Place place = first.kind == Kind::AllGather ? Place{0, inputs[from].size()}
                                                        : place_of(calls[from].counts, to, dtype);
      copy(ByteRange(inputs[from]).subspan(place.offset, place.size), next);
      next += place.size;
    }
  }
}

}  // namespace kolo::test
