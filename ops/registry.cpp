#include "ops/registry.hpp"

#include <string>

#include "kolo/error.hpp"
#include "ops/algorithms.hpp"

namespace kolo::ops {
namespace {

using enum Collective;

// The list: one line per algorithm. Name, collective, needs, rank-ordered, function, compresses.
constexpr Algorithm kBuiltIn[] = {
    {"direct", AllReduce, Needs::Messages, true, allreduce_direct},
    {"ring", AllReduce, Needs::Messages, false, allreduce_ring},
    {"adasum", AllReduce, Needs::Messages, false, allreduce_adasum},
    {"window", AllReduce, Needs::Window, true, allreduce_window, true},
    {"window_small", AllReduce, Needs::Window, true, allreduce_window_small},
    {"zero_copy", AllReduce, Needs::PeerBuffers, true, allreduce_zero_copy},
    {"hierarchical", AllReduce, Needs::Nodes, false, allreduce_hierarchical},
    {"direct", ReduceScatter, Needs::Messages, true, reduce_scatter_direct},
    {"ring", ReduceScatter, Needs::Messages, false, reduce_scatter_ring},
    {"halving", ReduceScatter, Needs::Messages, false, reduce_scatter_halving},
    {"window", ReduceScatter, Needs::Window, true, reduce_scatter_window, true},
    {"zero_copy", ReduceScatter, Needs::PeerBuffers, true, reduce_scatter_zero_copy},
    {"hierarchical", ReduceScatter, Needs::Nodes, false, reduce_scatter_hierarchical},
    {"pairwise", AllGather, Needs::Messages, false, allgather_pairwise},
    {"ring", AllGather, Needs::Messages, false, allgather_ring},
    {"window", AllGather, Needs::Window, false, allgather_window},
    {"zero_copy", AllGather, Needs::PeerBuffers, false, allgather_zero_copy},
    {"hierarchical", AllGather, Needs::Nodes, false, allgather_hierarchical},
    {"binomial", Broadcast, Needs::Messages, false, broadcast_binomial},
    {"window", Broadcast, Needs::Window, false, broadcast_window},
    {"zero_copy", Broadcast, Needs::PeerBuffers, false, broadcast_zero_copy},
    {"hierarchical", Broadcast, Needs::Nodes, false, broadcast_hierarchical},
    {"pairwise", AllToAll, Needs::Messages, false, alltoall_pairwise},
    {"window", AllToAll, Needs::Window, false, alltoall_window},
    {"zero_copy", AllToAll, Needs::PeerBuffers, false, alltoall_zero_copy},
};

const Algorithm* look_up(const std::vector<Algorithm>& algorithms, Collective collective,
                         std::string_view name) {
  for (const Algorithm& algorithm : algorithms) {
    if (algorithm.collective == collective && algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

std::string describe(Collective collective, std::string_view name) {
  return std::string(name_of(collective)) + " algorithm \"" + std::string(name) + "\"";
}

}  // namespace

Registry::Registry() {
  for (const Algorithm& algorithm : kBuiltIn) add(algorithm);
}

void Registry::add(const Algorithm& algorithm) {
  const std::string what = describe(algorithm.collective, algorithm.name);
  if (algorithm.name.empty()) throw InvalidArgument(what + ": the name must not be empty");
  if (algorithm.run == nullptr) throw InvalidArgument(what + ": it has no function to run");
  if (look_up(algorithms_, algorithm.collective, algorithm.name) != nullptr) {
    throw InvalidArgument(what + ": the name is taken; choose another one");
  }
  algorithms_.push_back(algorithm);
}

const Algorithm& Registry::find(Collective collective, std::string_view name) const {
  if (const Algorithm* found = look_up(algorithms_, collective, name)) return *found;
  std::string choices;
  for (const Algorithm& algorithm : algorithms_) {
    if (algorithm.collective != collective) continue;
    choices += (choices.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  throw InvalidArgument(describe(collective, name) +
                        ": there is none of that name; choose one of " + choices);
}

}  // namespace kolo::ops
