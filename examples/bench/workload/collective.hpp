#pragma once

#include "bench/workload/workload.hpp"
#include "kolo/algorithm.hpp"

namespace bench {

constexpr kolo::Collective collective_of(Operation operation) {
  switch (operation) {
    case Operation::AllReduce: return kolo::Collective::AllReduce;
    case Operation::ReduceScatter: return kolo::Collective::ReduceScatter;
    case Operation::AllGather: return kolo::Collective::AllGather;
    case Operation::Broadcast: return kolo::Collective::Broadcast;
    case Operation::AllToAll: return kolo::Collective::AllToAll;
  }
  return kolo::Collective::AllReduce;
}

}  // namespace bench
