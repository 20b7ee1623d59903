#include "ops/registry.hpp"

#include <algorithm>
#include <string>

#include "kolo/algorithm.hpp"
#include "kolo/error.hpp"
#include "ops/algorithms.hpp"

namespace kolo::ops {
namespace {

using enum Collective;

// What can be chosen, one line each: name, collective, needs, rank-ordered, function, compresses.
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
  if (algorithm.name.empty() || algorithm.name.find(',') != std::string_view::npos) {
    throw InvalidArgument(what + ": the name must not be empty, nor contain a comma");
  }
  if (algorithm.run == nullptr) throw InvalidArgument(what + ": it has no function to run");
  if (look_up(algorithms_, algorithm.collective, algorithm.name) != nullptr) {
    throw InvalidArgument(what + ": the name is taken; choose another one");
  }
  algorithms_.push_back(algorithm);
}

const Algorithm& Registry::find(Collective collective, std::string_view name) const {
  if (const Algorithm* found = look_up(algorithms_, collective, name)) return *found;
  throw InvalidArgument(describe(collective, name) +
                        ": there is none of that name; choose one of " + names_of(collective));
}

void Registry::prefer(std::string_view entries) {
  if (entries.empty()) return;
  for (std::size_t begin = 0; begin <= entries.size();) {
    const std::size_t end = std::min(entries.find(',', begin), entries.size());
    const std::string_view entry = entries.substr(begin, end - begin);
    begin = end + 1;
    const auto reject = [&](const std::string& why) {
      throw InvalidArgument("KOLO_ALGORITHM, entry \"" + std::string(entry) + "\": " + why);
    };
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) {
      reject("expected collective:algorithm, such as allreduce:ring,broadcast:binomial");
    }
    const std::string_view wanted = entry.substr(0, colon);
    const auto known = std::ranges::find(
        algorithms_, wanted, [](const Algorithm& one) { return name_of(one.collective); });
    if (known == algorithms_.end()) {
      reject(
          "there is no collective of that name; choose one of allreduce, reduce_scatter, "
          "allgather, broadcast, alltoall");
    }
    const Collective collective = known->collective;
    const Algorithm* const found = look_up(algorithms_, collective, entry.substr(colon + 1));
    if (found == nullptr) {
      reject(std::string(wanted) + " has no algorithm of that name; choose one of " +
             names_of(collective));
    }
    if (!preferred_.emplace(collective, found->name).second) {
      reject(std::string(wanted) + " is named twice");
    }
  }
}

std::string_view Registry::preferred(Collective collective) const {
  const auto found = preferred_.find(collective);
  return found == preferred_.end() ? std::string_view() : found->second;
}

std::string Registry::names_of(Collective collective) const {
  std::string names;
  for (const Algorithm& algorithm : algorithms_) {
    if (algorithm.collective != collective) continue;
    names += (names.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  return names;
}

}  // namespace kolo::ops

namespace kolo {

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::AllReduce: return "allreduce";
    case Collective::AllGather: return "allgather";
    case Collective::Broadcast: return "broadcast";
    case Collective::ShareMemory: return "shared buffer";
    case Collective::ReduceScatter: return "reduce_scatter";
    case Collective::AllToAll: return "alltoall";
    case Collective::Barrier: return "barrier";
    case Collective::AddProcessSet: return "add_process_set";
    case Collective::RemoveProcessSet: return "remove_process_set";
    case Collective::Send: return "send";
    case Collective::Receive: return "receive";
  }
  return "unknown";
}

}  // namespace kolo
