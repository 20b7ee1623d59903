#include "kolo/algorithm.hpp"

namespace kolo {

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::AllReduce: return "allreduce";
    case Collective::AllGather: return "allgather";
    case Collective::Broadcast: return "broadcast";
    case Collective::ShareMemory: return "shared buffer";
  }
  return "unknown";
}

}  // namespace kolo
