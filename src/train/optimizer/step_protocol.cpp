#include "train/optimizer/step_protocol.hpp"

#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "kolo/error.hpp"

namespace kolo::train {

void StepProtocol::require_all(const std::string& call) {
  if (context_.set.size() == 1) return;
  const std::vector<int> joined = find_joined(call);
  if (joined.empty()) return;
  throw InvalidArgument("DistributedOptimizer: " + call + " needs all ranks, but " +
                        list_ranks(joined) + (joined.size() == 1 ? " has" : " have") +
                        " joined. Call it before any rank joins, or after join() has returned.");
}

void StepProtocol::announce(const std::string& call) { announce(call, nullptr); }

}  // namespace kolo::train
