#include "kolo/algorithm.hpp"

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
  }
  return "unknown";
}

}  // namespace kolo
